"""Figures of the lines of ``metrics.jsonl``, which may be damaged or of another version."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


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
    if levels == 1:
        return line
    own = line.get("levels")
    if not isinstance(own, list) or number >= len(own) or not isinstance(own[number], dict):
        return {}
    found: dict[str, Any] = own[number]
    return found


def training_lines(
    lines: Sequence[Mapping[str, Any]], step: int
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Lines of the training split, up to a step and after it."""
    of_train = [line for line in lines if line.get("split") == "train"]
    return (
        [line for line in of_train if line["step"] <= step],
        [line for line in of_train if line["step"] > step],
    )
