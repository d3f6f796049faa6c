"""Checks of a run as a whole: its weights, its errors, its end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from training.config import TrainConfig

from .advice import flags, longer, slower
from .finding import Finding
from .gradient import other_rate

# Error over that of the mean image.
HALF, MEAN = 0.5, 1.0
WORSE = 1.1


def figure(values: Mapping[str, Any], key: str) -> float | None:
    """A finite number of a line of ``metrics.jsonl``, which may be damaged; None without one.

    Example:
        >>> figure({"a": 2, "b": "2"}, "a"), figure({"a": 2, "b": "2"}, "b")
        (2.0, None)
    """
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def check_non_finite(weights: Mapping[str, Tensor], config: TrainConfig) -> Finding | None:
    """NaN or infinity in the weights or the state.

    Args:
        weights: The model's state_dict.
        config: The options of the training, for the advice.
    """
    counts = {name: int((~value.isfinite()).sum()) for name, value in weights.items()}
    bad = {name: count for name, count in counts.items() if count}
    if not bad:
        return None
    names = ", ".join(list(bad)[:3]) + (" and others" if len(bad) > 3 else "")
    exact = flags(config, precision="fp32")
    return Finding(
        "non-finite",
        "severe",
        f"{sum(bad.values())} values in {len(bad)} of {len(weights)} tensors are NaN or infinite: "
        f"{names}.",
        "Take the run's other checkpoint, and train again with half the learning rate "
        f"({slower(config)}){exact and f' and {exact}'}.",
    )


def check_worse_than_mean(
    mse: float, mse_mean: float, what: str, config: TrainConfig
) -> Finding | None:
    """A reconstruction that says little more than the mean image.

    Args:
        mse: Error of the reconstruction.
        mse_mean: Error of the mean image in the place of each.
        what: What was reconstructed from, for people.
        config: The options of the training, for the advice.
    """
    ratio = mse / max(mse_mean, 1e-12)
    if ratio < HALF or mse_mean < 1e-8:
        return None
    return Finding(
        "worse-than-mean",
        "severe" if ratio >= MEAN else "warning",
        f"The error of {what}, {mse:.4f}, is {ratio:.2f} times that of the mean image, "
        f"{mse_mean:.4f}.",
        f"Train longer, {longer(config)}, or at another rate, {other_rate(config)}; mend what "
        "else is found first.",
    )


def check_got_worse(lines: Sequence[Mapping[str, Any]], config: TrainConfig) -> Finding | None:
    """A run that ended worse than it was.

    Args:
        lines: Those of ``metrics.jsonl``.
        config: The options of the training, for the advice.
    """
    val = [line for line in lines if line.get("split") == "val"]
    tokens = all(figure(line, "mse_argmax") is not None for line in val)
    key = "mse_argmax" if tokens else "mse_soft"
    known = [(figure(line, key) or 0.0, line["epoch"]) for line in val]
    errors = [(error, epoch) for error, epoch in known if error > 0]
    if len(errors) < 2:
        return None
    (best, epoch), (last, end) = min(errors), errors[-1]
    if last <= WORSE * best:
        return None
    change = f"{slower(config)} {flags(config, lr_schedule='cosine')}".strip()
    return Finding(
        "got-worse",
        "warning",
        f"The validation error ({key}) was {best:.5f} after epoch {epoch} and {last:.5f} after "
        f"epoch {end}, {last / best:.2f} times as much.",
        "best.pt is of the better epoch; look at the end with python -m eval doctor RUN/last.pt, "
        f"and train with {change}.",
    )


def check_unfinished(
    step: int, total: int, schedule_end: int | None, ends_at: str, logged: bool = True
) -> Finding | None:
    """A training that has not reached its end.

    Args:
        step: Steps done.
        total: Steps asked for.
        schedule_end: Step at which the temperature's schedule ends; None without one.
        ends_at: Its last value, for people.
        logged: Whether the log of the run is known: a checkpoint alone, such as a best.pt of an
            early epoch, does not say that the run has stopped there.
    """
    if step >= total:
        return None
    cooling = ""
    if schedule_end is not None and step < schedule_end:
        cooling = f", and the temperature reaches {ends_at} at step {schedule_end} only"
    advice = "If the run has stopped here, go on before judging it: train.py --resume --out RUN."
    if not logged:
        advice = (
            "Whether the run went on, its log would say: give the run folder where there is one."
        )
    subject = "This" if logged else "The checkpoint"
    told = f"{subject} is of step {step} of {total}{cooling}."
    return Finding("unfinished", "note", told, advice)
