"""What repeated runs say of a figure: mean, standard deviation, interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Summary(NamedTuple):
    """A figure over repeated runs.

    Attributes:
        mean: The mean of the values.
        sd: The sample standard deviation, with n - 1; None for fewer than two values.
        interval: Half of the 95 % interval of the mean, by Student's t; None likewise.
    """

    mean: float
    sd: float | None
    interval: float | None


def summary(values: Sequence[float]) -> Summary:
    """Mean, standard deviation and 95 % interval of a figure over seeds.

    Args:
        values: One value for each run, at least one.

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
    sd = statistics.stdev(values)
    return Summary(mean, sd, float(t.interval(0.95, count - 1)[1]) * sd / math.sqrt(count))
