"""Check of what became of a codebook after its best epoch, from the lines of the log."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from training.config import TrainConfig

from .finding import SEVERE_LOSS, Finding
from .lines import Lines, figure, of_level, since, training_lines
from .temperature import COLLAPSED_RATIO, NEAR_RATIO, collapse_advice
from .usage import LOST_BITS, SEVERE_LOST_BITS, STARVED, dead_by_chance, starved_advice


class Level(NamedTuple):
    """The level that is looked at.

    Attributes:
        number: Its number, from 0.
        levels: How many levels there are.
        codes: K.
        tokens: Number of tokens of an epoch.
    """

    number: int
    levels: int
    codes: int
    tokens: int


def grades(values: Mapping[str, Any], level: Level) -> dict[str, int]:
    """How bad the temperature, the dead codes and the perplexity of a line are.

    Args:
        values: The level's figures.
        level: The level.

    Returns:
        2 for severe, 1 for a warning, 0 otherwise, by the thresholds of the other checks.

    Example:
        >>> grades({"dead_codes": 511, "perplexity": 1.0}, Level(0, 1, 512, 10**6))
        {'hot': 0, 'dead': 2, 'uneven': 2}
    """
    codes, lost = level.codes, _dead(values, level)
    ratio = figure(values, "temperature_ratio") or 0.0
    if codes == 1:
        ratio = 0.0  # a codebook of one code has nothing to collapse
    # With few tokens chance leaves codes without any, and uneven ones.
    starved = lost - dead_by_chance(level.tokens, codes) > STARVED * codes
    perplexity = figure(values, "perplexity") or 0.0
    bits = math.log2(codes / perplexity) if perplexity > 0 else 0.0
    return {
        "hot": (ratio >= NEAR_RATIO) + (ratio >= COLLAPSED_RATIO),
        "dead": starved + (starved and lost >= SEVERE_LOSS * codes),
        "uneven": (bits >= LOST_BITS) + (bits >= SEVERE_LOST_BITS),
    }


def _dead(values: Mapping[str, Any], level: Level) -> float:
    """Codes without a token, by either of the figures that say so."""
    dead, used = figure(values, "dead_codes"), figure(values, "utilization")
    if dead is None:
        return 0.0 if used is None else (1 - used) * level.codes
    return dead


def check_later(lines: Lines, step: int, level: Level, config: TrainConfig) -> Finding | None:
    """A codebook that the epochs after the checkpoint's made worse than it was there.

    Args:
        lines: Those of ``metrics.jsonl``.
        step: Step of the checkpoint; what it has itself is for the other checks to say.
        level: The level.
        config: The options of the training, for the advice.
    """
    before, after = training_lines(lines, step)
    if not after:
        return None
    own = [of_level(line, level.number, level.levels) for line in after]
    rows = [grades(values, level) for values in own]
    least = dict.fromkeys(rows[-1], 0)
    if before:
        least = grades(of_level(before[-1], level.number, level.levels), level)
    worse = {key: grade for key, grade in rows[-1].items() if grade > least[key]}
    if not worse:
        return None
    first = min(since([row[k] >= grade for row in rows]) or 0 for k, grade in worse.items())
    dead = round(_dead(own[-1], level))
    ratio, perplexity = (figure(own[-1], k) or 0.0 for k in ("temperature_ratio", "perplexity"))
    words = {
        "hot": f"T was {ratio:.3g} of the critical temperature",
        "dead": f"{dead} of {level.codes} codes had no token",
        "uneven": f"the perplexity was {perplexity:.1f} of {level.codes}",
    }
    cure = starved_advice(config, level.codes - dead, level.number)
    return Finding(
        "later-collapse",
        "severe" if max(worse.values()) == 2 else "warning",
        f"After the checkpoint's epoch the codebook got worse: in epoch {after[-1]['epoch']} "
        f"{', '.join(words[key] for key in worse)} (since epoch {after[first]['epoch']}).",
        "The checkpoint is of before; look at the end with python -m eval doctor RUN/last.pt. "
        + (collapse_advice(config) if rows[-1]["hot"] else cure),
    )
