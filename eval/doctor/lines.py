"""Figures of the lines of ``metrics.jsonl``, which may be damaged or of another version."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Lines = Sequence[Mapping[str, Any]]


def figure(values: Mapping[str, Any], key: str) -> float | None:
    """A finite number; None where there is none.

    Example:
        >>> figure({"a": 2, "b": "2"}, "a"), figure({"a": 2, "b": "2"}, "b")
        (2.0, None)
    """
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def of_level(line: Mapping[str, Any], number: int, levels: int) -> Mapping[str, Any]:
    """The figures of one level, from 0; nothing where the line has none.

    With several levels the line itself holds only what sums them up.

    Example:
        >>> of_level({"perplexity": 1.0, "levels": [{"perplexity": 9.0}, {}]}, 0, 2)
        {'perplexity': 9.0}
    """
    own = line.get("levels") if levels > 1 else [line]
    if not isinstance(own, list) or number >= len(own) or not isinstance(own[number], Mapping):
        return {}
    found: Mapping[str, Any] = own[number]
    return found


def training_lines(lines: Lines, step: int) -> tuple[Lines, Lines]:
    """Lines of the training split, up to a step and after it."""
    own = [line for line in lines if line.get("split") == "train"]
    return [line for line in own if line["step"] <= step], [x for x in own if x["step"] > step]


def since(lines: Sequence[bool]) -> int | None:
    """The first of the lines from which on all are true; None where the last is not.

    Example:
        >>> since([True, False, True, True]), since([True, False])
        (2, None)
    """
    first = len(lines)
    while first and lines[first - 1]:
        first -= 1
    return first if first < len(lines) else None
