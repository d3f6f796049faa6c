"""Checks of how the codes are used, from the counts of each training epoch.

E: epochs, K: codes. Counts are tokens whose nearest prototype a code was.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softvq.diagnosis import codes_of, listed
from training.config import TrainConfig
from training.config.quantizers import LATTICES, OWN, SOFT

from .advice import (
    either,
    flags,
    longer,
    more_restarts,
    power_of_two,
    restarts_below,
    size,
    vq_alternatives,
)
from .finding import Finding, lost_share_severity

# Dead codes beyond what chance explains, of all: below, restarts are about to mend them.
STARVED = 0.01
# Of a hard codebook in every epoch but the first, while everything still moves.
NEVER_USED, NEVER_ROSE = 0.5, 0.1
# log2(K / perplexity): bits of each token that say nothing.
LOST_BITS, SEVERE_LOST_BITS = 1.0, 3.0
# Tokens per code in an epoch. 39 is the least at which faiss trains a centroid without a warning;
# with 4, chance alone leaves exp(-4) = 2 % of perfectly even codes without a token.
FEW_TOKENS, VERY_FEW_TOKENS = 39.0, 4.0


def dead_by_chance(tokens: float, codes: int) -> float:
    """Codes without a token that even use would leave.

    Example:
        >>> round(dead_by_chance(200, 100), 1)
        13.5
    """
    return codes * math.exp(-tokens / codes)


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
        config: The options of the training, for the advice.
        number: Number of the level, from 0.
    """
    since, codes = dead_since(history), history.shape[1]
    dead = since.nonzero().squeeze(1).tolist()
    if len(dead) - dead_by_chance(float(history[-1].sum()), codes) <= STARVED * codes:
        return None
    when = f", {_when(since[since > 0])}" if len(history) > 1 else ""
    return Finding(
        "starved-codes",
        lost_share_severity(len(dead), codes),
        f"{codes_of(len(dead), codes)} had no token in {source}{when}: {listed(dead)}.",
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
        config: The options of the training.
        used: Number of codes that have tokens.
        number: Number of the level, from 0.
    """
    name, restarted = config.quantizer.name, restarts_below(config) > 0
    if name == "vq" and not (restarted and config.quantizer.kmeans_init):
        return vq_alternatives(config)
    if name not in OWN:
        fewer = size(config, number, max(4, power_of_two(used)))
        begin = "This quantizer has no restarts here: take "
        return either("--quantizer ddcl-em", "--quantizer vq-ema", fewer, begin=begin)
    if restarted and config.quantizer.kmeans_init:
        more, fewer = more_restarts(config), size(config, number, max(1, used))
        told = [more and f"restart earlier, {more}", fewer and f"take {fewer}"]
        return either(*told) if any(told) else f"Train longer, {longer(config)}."
    threshold = restarts_below(config) or (0.02 if name in SOFT else 0.1)
    changes = flags(config, init="kmeans", restart_threshold=threshold)
    return f"Restart starved codes, and start on the latents: {changes}."


def check_never_recovered(history: Tensor, config: TrainConfig, number: int = 0) -> Finding | None:
    """A hard codebook that most codes left early, and that has not come back.

    Args:
        history: (E, K).
        config: The options of the training, for the advice.
        number: Number of the level, from 0.
    """
    if config.quantizer.name in (*SOFT, "none") or len(history) < 3:
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
        config: The options of the training, for the advice.
        number: Number of the level, from 0.
    """
    shares, codes = counts.double() / counts.sum(), len(counts)
    perplexity = float(torch.special.entr(shares).sum().exp())
    lost = math.log2(codes / perplexity)
    if lost < LOST_BITS:
        return None
    least = 4.0 if config.quantizer.name in LATTICES else 2.0
    return Finding(
        "low-perplexity",
        "severe" if lost >= SEVERE_LOST_BITS else "warning",
        f"The perplexity of {codes} codes was {perplexity:.1f} in {source}: {lost:.1f} of "
        f"{math.log2(codes):.1f} bits of each token say nothing.",
        _even_advice(config, size(config, number, power_of_two(max(perplexity, least)))),
    )


def _even_advice(config: TrainConfig, fewer: str | None) -> str:
    """What makes the codes used evenly, or fewer of them."""
    name, own = config.quantizer.name, config.quantizer.settings
    if name in SOFT:
        weight = f"--usage-weight {max(0.05, 2 * own['usage_weight']):g}"
        if own.get("balance", 1.0) < 1:
            weight = f"--balance {min(1.0, max(0.3, 2 * own['balance'])):g}"
        return either(weight, fewer and f"take {fewer}", begin="even out the use, ")
    if name == "vq":
        return vq_alternatives(config)
    other = "" if name == "vq-ema" else "take --quantizer vq-ema"
    told = [fewer and f"take {fewer}, which would carry as much", other]
    return either(*told) if any(told) else f"Train longer, {longer(config)}."


def check_too_many_codes(
    tokens: int, codes: int, config: TrainConfig, number: int = 0
) -> Finding | None:
    """More codes than the data can place.

    Args:
        tokens: Number of tokens of an epoch.
        codes: K.
        config: The options of the training, for the advice.
        number: Number of the level, from 0.
    """
    each = tokens / codes
    if each >= FEW_TOKENS:
        return None
    fewer = size(config, number, 2 ** math.floor(math.log2(max(1.0, tokens / FEW_TOKENS))))
    return Finding(
        "too-many-codes",
        "severe" if each < VERY_FEW_TOKENS else "warning",
        f"An epoch has {tokens:,} tokens for {codes:,} codes, {each:.1f} each; with fewer than "
        f"{FEW_TOKENS:g} a code follows single latents.",
        either(fewer and f"take {fewer}", "train on more images (a larger --limit-train)"),
    )
