"""Checks of how the codes are used, from the counts of each training epoch.

E: epochs, K: codes. Counts are tokens whose nearest prototype a code was.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softvq import perplexity_of
from training.config import TrainConfig
from training.options import LATTICES, OWN

from .advice import either, longer, more_restarts, power_of_two, size, vq_alternatives
from .finding import Finding, lost_share_severity
from .words import codes_of, listed

# Dead codes beyond what chance explains, of all: below, restarts are about to mend them.
STARVED = 0.01
# Of a hard codebook in every epoch but the first, while everything still moves.
NEVER_USED, NEVER_ROSE = 0.5, 0.1
# log2(K / perplexity): bits of each token that say nothing.
LOST_BITS, SEVERE_LOST_BITS = 1.0, 3.0
# Tokens per code in an epoch. 39 is the least at which faiss trains a centroid without a warning;
# with 4, chance alone leaves exp(-4) = 2 % of perfectly even codes without a token.
FEW_TOKENS, VERY_FEW_TOKENS = 39.0, 4.0


def dead_by_chance(counts: Tensor) -> float:
    """Codes without a token that even use would leave, ``K exp(-tokens / K)``.

    Example:
        >>> round(dead_by_chance(torch.full((100,), 2)), 1)
        13.5
    """
    return len(counts) * math.exp(-float(counts.sum()) / len(counts))


def dead_since(history: Tensor) -> Tensor:
    """Epoch since which each code has had no token; 0 for codes that have some.

    Args:
        history: (E, K).

    Returns:
        (K,) int64; 1 for a code that never had a token.

    Example:
        >>> dead_since(torch.tensor([[5, 0, 1], [5, 0, 0], [5, 0, 0]])).tolist()
        [0, 1, 2]
    """
    epochs = torch.arange(1, len(history) + 1)[:, None]
    last_used = ((history > 0) * epochs).max(dim=0).values  # (K,)
    return torch.where(history[-1] > 0, 0, last_used + 1)


def check_starved_codes(
    history: Tensor, source: str, config: TrainConfig, number: int = 0
) -> Finding | None:
    """Codes without a token, more than chance explains.

    Args:
        history: (E, K), at least one epoch.
        source: What the last row counts, for people.
        config: Of the training, for the advice.
        number: Of the level, from 0.
    """
    since = dead_since(history)
    dead = since.nonzero().squeeze(1).tolist()
    codes = history.shape[1]
    if len(dead) - dead_by_chance(history[-1]) <= STARVED * codes:
        return None
    when = _when(since[since > 0]) if len(history) > 1 else ""
    return Finding(
        "starved-codes",
        lost_share_severity(len(dead), codes),
        f"{codes_of(len(dead), codes)} had no token in {source}"
        + (f", {when}" if when else "")
        + f": {listed(dead)}.",
        starved_advice(config, codes - len(dead), number),
    )


def _when(since: Tensor) -> str:
    """Since which epochs the dead codes have been dead, by :func:`dead_since`."""
    never, later = int((since == 1).sum()), since[since > 1]
    told = [f"{never} of them in no epoch"] if never else []
    if len(later):
        low, high = int(later.min()), int(later.max())
        epochs = f"epoch {low}" if low == high else f"epochs {low} to {high}"
        told.append(f"{'the others' if never else 'all of them dead'} since {epochs}")
    return ", ".join(told)


def starved_advice(config: TrainConfig, used: int, number: int = 0) -> str:
    """What brings codes back.

    Args:
        config: Of the training.
        used: Codes that have tokens.
        number: Of the level, from 0.
    """
    restarted = config.restarts_below > 0 and config.kmeans_init
    if config.quantizer == "vq" and not restarted:
        return vq_alternatives(config)
    if config.quantizer not in OWN:
        fewer = size(config, number, max(4, power_of_two(used)))
        other = either("take --quantizer ddcl", "--quantizer vq-ema", fewer)
        return f"This quantizer has no restarts here: {other}."
    if restarted:
        more = more_restarts(config, 0.02)
        fewer = size(config, number, max(1, used))
        told = either(more and f"restart earlier, {more}", fewer and f"take {fewer}")
        told = told or f"train longer, {longer(config)}"
        return f"{told[0].upper()}{told[1:]}."
    flags = [] if config.kmeans_init else ["--init kmeans"]
    if config.restarts_below == 0:
        flags.append(f"--restart-threshold {0.02 if config.quantizer == 'ddcl' else 0.1:g}")
    return f"Restart starved codes, and start on the latents: {' '.join(flags)}."


def check_never_recovered(history: Tensor, config: TrainConfig, number: int = 0) -> Finding | None:
    """A hard codebook that most codes left early, and that has not come back.

    Args:
        history: (E, K).
        config: Of the training, for the advice.
        number: Of the level, from 0.
    """
    if config.quantizer in ("ddcl", "none") or len(history) < 3:
        return None
    used = (history[1:] > 0).double().mean(dim=1)  # (E - 1,)
    if float(used.max()) >= NEVER_USED or float(used[-1] - used.min()) > NEVER_ROSE:
        return None
    first, last = int((history[0] > 0).sum()), int((history[-1] > 0).sum())
    return Finding(
        "never-recovered",
        "severe",
        f"Since epoch 2 at most {100 * float(used.max()):.1f} % of the codes have been used; "
        f"{first} of {history.shape[1]} in epoch 1, {last} in epoch {len(history)}.",
        starved_advice(config, last, number),
    )


def check_low_perplexity(
    counts: Tensor, source: str, config: TrainConfig, number: int = 0
) -> Finding | None:
    """Codes used so unevenly that bits of each token say nothing.

    Args:
        counts: (K,), at least one token.
        source: What they count, for people.
        config: Of the training, for the advice.
        number: Of the level, from 0.
    """
    perplexity = perplexity_of(counts)
    lost = math.log2(len(counts) / perplexity)
    if lost < LOST_BITS:
        return None
    least = 4.0 if config.quantizer in LATTICES else 2.0
    advice = _even_advice(config, size(config, number, power_of_two(max(perplexity, least))))
    return Finding(
        "low-perplexity",
        "severe" if lost >= SEVERE_LOST_BITS else "warning",
        f"The perplexity of {len(counts)} codes was {perplexity:.1f} in {source}: {lost:.1f} of "
        f"{math.log2(len(counts)):.1f} bits of each token say nothing.",
        advice,
    )


def _even_advice(config: TrainConfig, fewer: str | None) -> str:
    """What makes the codes used evenly, or fewer of them."""
    if config.quantizer == "ddcl":
        if config.recipe == "tokens" and config.usage_balance < 1:
            weight = f"--balance {min(1.0, max(0.3, 2 * config.usage_balance)):g}"
        else:
            weight = f"--usage-weight {max(0.05, 2 * config.loss_weights[1]):g}"
        return f"Even out the use, {either(weight, fewer and f'take {fewer}')}."
    if config.quantizer == "vq":
        return vq_alternatives(config)
    told = either(
        fewer and f"take {fewer}, which would carry as much",
        None if config.quantizer == "vq-ema" else "take --quantizer vq-ema",
    )
    told = told or f"train longer, {longer(config)}"
    return f"{told[0].upper()}{told[1:]}."


def check_too_many_codes(
    tokens: int, codes: int, config: TrainConfig, number: int = 0
) -> Finding | None:
    """More codes than the data can place.

    Args:
        tokens: Of an epoch.
        codes: K.
        config: Of the training, for the advice.
        number: Of the level, from 0.
    """
    each = tokens / codes
    if each >= FEW_TOKENS:
        return None
    fewer = size(config, number, 2 ** math.floor(math.log2(max(1.0, tokens / FEW_TOKENS))))
    told = either(fewer and f"take {fewer}", "train on more images (a larger --limit-train)")
    return Finding(
        "too-many-codes",
        "severe" if each < VERY_FEW_TOKENS else "warning",
        f"An epoch has {tokens:,} tokens for {codes:,} codes, {each:.1f} each; with fewer than "
        f"{FEW_TOKENS:g} a code follows single latents.",
        f"{told[0].upper()}{told[1:]}.",
    )
