"""What repeated runs say of a figure: mean, standard deviation, interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Summary(NamedTuple):
    """A figure over repeated runs.

    Attributes:
        mean: Of the values.
        sd: Sample standard deviation, with n - 1; None of fewer than two values.
        interval: Half of the 95 % interval of the mean, by Student's t; None of fewer than two.
    """

    mean: float
    sd: float | None
    interval: float | None


def summary(values: Sequence[float]) -> Summary:
    """Mean, standard deviation and 95 % interval of a figure over seeds.

    Args:
        values: One for each run, at least one.

    Raises:
        ValueError: If there is no value.

    Example:
        >>> mean, sd, interval = summary([1.0, 2.0, 3.0])
        >>> mean, sd, round(interval, 3)
        (2.0, 1.0, 2.484)
    """
    from scipy.stats import t

    count = len(values)
    if not count:
        raise ValueError("a summary needs at least one value, got none")
    mean = sum(values) / count
    if count < 2:
        return Summary(mean, None, None)
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    interval = float(t.ppf(0.975, count - 1)) * math.sqrt(variance / count)
    return Summary(mean, math.sqrt(variance), interval)


def half_interval(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval of a mean, by Student's t; None of fewer than two values.

    Example:
        >>> round(half_interval([1.0, 2.0, 3.0]), 3)
        2.484
    """
    return summary(values).interval if values else None
