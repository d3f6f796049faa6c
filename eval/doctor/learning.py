"""Checks of how the training went: gradients, learning rates, errors, its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from training.config import TrainConfig

from .finding import Finding
from .gradient import SILENT, GradientFlow

# Share of the tokens whose latents hear nothing of the decoder, or of the norm that arrives.
SILENT_SHARE, SEVERE_SILENT_SHARE = 0.9, 0.99
WEAK_RATIO, SEVERE_RATIO = 0.05, 0.01
# Encoder's over prototypes' learning rate: the source paper advises 0.01 to 0.1 and reports
# collapse at 1. Three times beyond its range is a warning.
EPSILON_HIGH, EPSILON_COLLAPSE = 0.3, 1.0
# What Adam moves a coordinate of a prototype by in a step, in standard deviations of the latents.
STEP, SEVERE_STEP = 0.25, 1.0
# Error over that of the mean image.
HALF, MEAN = 0.5, 1.0
WORSE = 1.1


def check_dead_gradient(flow: GradientFlow, config: TrainConfig) -> Finding | None:
    """An encoder that the decoder does not teach.

    Args:
        flow: Through the codebook.
        config: Of the training, for the advice.
    """
    if flow.ratio >= WEAK_RATIO and flow.silent < SILENT_SHARE:
        return None
    severe = flow.ratio < SEVERE_RATIO or flow.silent >= SEVERE_SILENT_SHARE
    if config.quantizer == "ddcl" and config.recipe == "paper":
        advice = "Pass the gradient straight through, --recipe tokens, or stay softer: " + (
            "--temperature-end 1.3."
            if config.temperature_mode == "codes"
            else "--temperature-mode codes --temperature-start 3 --temperature-end 1.3."
        )
    else:
        advice = (
            "A straight-through codebook passes all of it, so the decoder itself does not look at "
            "its code: train longer, --epochs 20, or at a higher rate, --lr 0.002."
        )
    return Finding(
        "dead-gradient",
        "severe" if severe else "warning",
        f"The decoder's gradient reaches the latents with {flow.ratio:.2g} times the norm that it "
        f"has at their codes (straight through: 1), and {100 * flow.silent:.1f} % of the tokens "
        f"get less than {100 * SILENT:g} % of it.",
        advice,
    )


def check_epsilon(scale: float, config: TrainConfig) -> Finding | None:
    """Prototypes that learn by gradient, too slowly for their encoder or in leaps.

    Args:
        scale: RMS over channels of the latents' standard deviation.
        config: Of the training.
    """
    soft = config.quantizer == "ddcl" and config.recipe == "paper"
    if not soft and config.quantizer != "vq":
        return None
    epsilon = config.timescale_ratio
    rate = config.lr / epsilon
    leap = rate / max(scale, 1e-30)
    slow = epsilon > EPSILON_HIGH if soft else epsilon > EPSILON_COLLAPSE
    if not slow and leap < STEP:
        return None
    default = 0.03 if soft else 1.0
    if leap >= STEP:
        safe = default if config.lr / default < STEP * scale else 1.0
        evidence = (
            f"Prototypes learn at {rate:.3g} (--lr {config.lr:g} over epsilon {epsilon:g}): a step "
            f"of Adam moves a coordinate by {leap:.2g} of the latents' standard deviation."
        )
        return Finding(
            "epsilon",
            "severe" if leap >= SEVERE_STEP else "warning",
            evidence,
            f"Slow them down: --epsilon {safe:g}.",
        )
    return Finding(
        "epsilon",
        "severe" if soft and epsilon >= EPSILON_COLLAPSE else "warning",
        f"The encoder learns at {epsilon:g} of the prototypes' rate; above {EPSILON_HIGH:g} it "
        "outruns them, and from 1 on collapse has been reported.",
        f"Let prototypes be the faster ones: --epsilon {default:g}.",
    )


def check_worse_than_mean(mse: float, mse_mean: float, what: str) -> Finding | None:
    """A reconstruction that says little more than the mean image.

    Args:
        mse: Of the reconstruction.
        mse_mean: Of the mean image in the place of each.
        what: What was reconstructed from, for people.
    """
    ratio = mse / max(mse_mean, 1e-12)
    if ratio < HALF or mse_mean < 1e-8:
        return None
    return Finding(
        "worse-than-mean",
        "severe" if ratio >= MEAN else "warning",
        f"The error of {what}, {mse:.4f}, is {ratio:.2f} times that of the mean image, "
        f"{mse_mean:.4f}.",
        "Train longer, --epochs 20, at --lr 0.002; mend what else is found first.",
    )


def check_got_worse(lines: Sequence[dict[str, Any]]) -> Finding | None:
    """A run that ended worse than it was.

    Args:
        lines: Those of ``metrics.jsonl``.
    """
    key = "mse_argmax"
    val = [line for line in lines if line.get("split") == "val"]
    if any(line.get(key) is None for line in val):
        key = "mse_soft"
    errors = [(line[key], line["epoch"]) for line in val if line.get(key) is not None]
    if len(errors) < 2:
        return None
    best, epoch = min(errors)
    last, end = errors[-1]
    if last <= WORSE * best:
        return None
    return Finding(
        "got-worse",
        "warning",
        f"The validation error ({key}) was {best:.5f} after epoch {epoch} and {last:.5f} after "
        f"epoch {end}, {last / best:.2f} times as much.",
        "best.pt is of the better epoch; look at the end with python -m eval doctor RUN/last.pt, "
        "and train with --lr 0.001 --lr-schedule cosine.",
    )


def check_unfinished(
    step: int, total: int, schedule_end: int | None, schedule: str | None
) -> Finding | None:
    """A training that has not reached its end.

    Args:
        step: Steps done.
        total: Steps asked for.
        schedule_end: Step at which the temperature's schedule ends; None without one.
        schedule: Its last value, for people.
    """
    if step >= total:
        return None
    cooling = ""
    if schedule_end is not None and step < schedule_end:
        cooling = f", and the temperature reaches {schedule} at step {schedule_end} only"
    return Finding(
        "unfinished",
        "note",
        f"This is step {step} of {total}{cooling}.",
        "If the run has stopped here, go on before judging it: train.py --resume --out RUN.",
    )
