"""Check of what became of a codebook after its best epoch, from the lines of the log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from training.config import TrainConfig

from .finding import SEVERE_LOSS, Finding
from .lines import figure, of_level, training_lines
from .temperature import COLLAPSED_RATIO, NEAR_RATIO, collapse_advice
from .usage import LOST_BITS, SEVERE_LOST_BITS, STARVED, starved_advice


class Level(NamedTuple):
    """The level that is looked at.

    Attributes:
        number: From 0.
        levels: How many there are.
        codes: K.
        tokens: Of an epoch.
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
    ratio = figure(values, "temperature_ratio") or 0.0
    lost = _dead(values, level)
    # With few tokens chance leaves codes without any, and uneven ones.
    beyond = lost - level.codes * math.exp(-level.tokens / level.codes)
    perplexity = figure(values, "perplexity")
    bits = math.log2(level.codes / perplexity) if perplexity and perplexity > 0 else 0.0
    hot = (ratio >= NEAR_RATIO) + (ratio >= COLLAPSED_RATIO)
    dead = 0 if beyond <= STARVED * level.codes else 1 + (lost >= SEVERE_LOSS * level.codes)
    return {
        # A codebook of one code has nothing to collapse.
        "hot": hot if level.codes > 1 else 0,
        "dead": dead,
        "uneven": (bits >= LOST_BITS) + (bits >= SEVERE_LOST_BITS),
    }


def _dead(values: Mapping[str, Any], level: Level) -> float:
    """Codes without a token, by either of the figures that say so."""
    dead, used = figure(values, "dead_codes"), figure(values, "utilization")
    if dead is None:
        return 0.0 if used is None else (1 - used) * level.codes
    return dead


def check_later(
    lines: Sequence[Mapping[str, Any]], step: int, level: Level, config: TrainConfig
) -> Finding | None:
    """A codebook that the epochs after the checkpoint's made worse than it was there.

    Args:
        lines: Those of ``metrics.jsonl``.
        step: Of the checkpoint; what it has itself is for the other checks to say.
        level: The level.
        config: Of the training, for the advice.
    """
    before, after = training_lines(lines, step)
    if not after:
        return None
    rows = [grades(of_level(line, level.number, level.levels), level) for line in after]
    least = dict.fromkeys(rows[-1], 0)
    if before:
        least = grades(of_level(before[-1], level.number, level.levels), level)
    worse = {key: grade for key, grade in rows[-1].items() if grade > least[key]}
    if not worse:
        return None
    first = min(_since(rows, key, grade) for key, grade in worse.items())
    values = of_level(after[-1], level.number, level.levels)
    used = level.codes - round(_dead(values, level))
    cure = starved_advice(config, used, level.number)
    return Finding(
        "later-collapse",
        "severe" if max(worse.values()) == 2 else "warning",
        f"After the checkpoint's epoch the codebook got worse: in epoch {after[-1]['epoch']} "
        f"{_told(values, level, worse)} (since epoch {after[first]['epoch']}).",
        "The checkpoint is of before; look at the end with python -m eval doctor RUN/last.pt. "
        + (collapse_advice(config) if rows[-1]["hot"] else cure),
    )


def _told(values: Mapping[str, Any], level: Level, worse: Iterable[str]) -> str:
    """What got worse, in words."""
    ratio, perplexity = (figure(values, k) or 0.0 for k in ("temperature_ratio", "perplexity"))
    told = {
        "hot": f"T was {ratio:.3g} of the critical temperature",
        "dead": f"{round(_dead(values, level))} of {level.codes} codes had no token",
        "uneven": f"the perplexity was {perplexity:.1f} of {level.codes}",
    }
    return ", ".join(told[key] for key in worse)


def _since(rows: Sequence[Mapping[str, int]], key: str, grade: int) -> int:
    """The row from which on a figure has been this bad without a break."""
    first = len(rows) - 1
    while first > 0 and rows[first - 1][key] >= grade:
        first -= 1
    return first
