"""Checks of how the training went: gradients, learning rates, errors, its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from training.config import TrainConfig

from .advice import STEP, end_codes, follow_latents, longer, schedule, slower
from .finding import Finding
from .gradient import SILENT, GradientFlow
from .lines import figure

# Share of the tokens whose latents hear nothing of the decoder, or of the norm that arrives.
SILENT_SHARE, SEVERE_SILENT_SHARE = 0.9, 0.99
WEAK_RATIO, SEVERE_RATIO = 0.05, 0.01
# Encoder's over prototypes' learning rate: the source paper advises 0.01 to 0.1 and reports
# collapse at 1. Three times beyond its range is a warning.
EPSILON_HIGH, EPSILON_COLLAPSE = 0.3, 1.0
# What is advised beyond the default; a standard deviation that is none.
EPSILONS, NO_SCALE = (0.05, 0.1, 0.2, 0.3), 1e-3
# Of what Adam moves a coordinate of a prototype by in a step.
SEVERE_STEP = 1.0
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
            f"{_softer(config)}."
        )
    else:
        advice = (
            "A straight-through codebook passes all of it, so the decoder itself does not look at "
            f"its code: train longer, {longer(config)}, or at another rate, {_other_rate(config)}."
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
    epsilon, limit = config.timescale_ratio, EPSILON_HIGH if soft else EPSILON_COLLAPSE
    rate = config.lr / epsilon
    leap = rate / max(scale, 1e-30)
    if leap >= STEP:
        return Finding(
            "epsilon",
            "severe" if leap >= SEVERE_STEP else "warning",
            f"Prototypes learn at {rate:.3g} (--lr {config.lr:g} over epsilon {epsilon:g}): a step "
            f"of Adam moves a coordinate by {leap:.2g} of the latents' standard deviation (limit "
            f"{STEP:g}).",
            f"Slow them down: {_pace(scale, limit, config)}.",
        )
    if epsilon <= limit:
        return None
    reported = f", and from {EPSILON_COLLAPSE:g} on collapse has been reported" if soft else ""
    return Finding(
        "epsilon",
        "severe" if soft and epsilon >= EPSILON_COLLAPSE else "warning",
        f"The encoder learns at {epsilon:g} of the prototypes' rate; above {limit:g} it outruns "
        f"them{reported}.",
        f"Let prototypes be the faster ones: {_pace(scale, limit, config)}.",
    )


def _pace(scale: float, limit: float, config: TrainConfig) -> str:
    """An epsilon at which prototypes neither leap nor fall behind, or else a lower rate."""
    if scale < NO_SCALE and not config.normalize_latents:
        return "--normalize-latents, for the latents have shrunk to nothing"
    default = 1.0 if config.quantizer == "vq" else 0.03
    for epsilon in (default, *(e for e in EPSILONS if default < e <= limit)):
        if config.lr / epsilon < STEP * scale:
            return f"--epsilon {epsilon:g}"
    # Half of the step that is too large; at the default, for no ratio makes this rate small.
    rate = min(config.lr / 2, default * max(scale, NO_SCALE) * STEP / 2)
    ratio = "" if config.timescale_ratio == default else f" --epsilon {default:g}"
    return f"--lr {rate:.3g}{ratio}"


def _softer(config: TrainConfig) -> str:
    """A schedule that ends with more codes per token."""
    if config.temperature_mode != "codes":
        return follow_latents(config)
    start, end = config.temperatures
    end = end_codes(config) if end < end_codes(config) else 1 + 2 * (end - 1)
    return schedule("codes", max(start, end), end, config)


def _other_rate(config: TrainConfig) -> str:
    """Half of a rate above the default, twice one that is not."""
    above = config.lr > TrainConfig.lr
    return slower(config) if above else f"--lr {2 * config.lr:g}"


def check_worse_than_mean(
    mse: float, mse_mean: float, what: str, config: TrainConfig
) -> Finding | None:
    """A reconstruction that says little more than the mean image.

    Args:
        mse: Of the reconstruction.
        mse_mean: Of the mean image in the place of each.
        what: What was reconstructed from, for people.
        config: Of the training, for the advice.
    """
    ratio = mse / max(mse_mean, 1e-12)
    if ratio < HALF or mse_mean < 1e-8:
        return None
    return Finding(
        "worse-than-mean",
        "severe" if ratio >= MEAN else "warning",
        f"The error of {what}, {mse:.4f}, is {ratio:.2f} times that of the mean image, "
        f"{mse_mean:.4f}.",
        f"Train longer, {longer(config)}, or at another rate, {_other_rate(config)}; mend what "
        "else is found first.",
    )


def check_got_worse(lines: Sequence[dict[str, Any]], config: TrainConfig) -> Finding | None:
    """A run that ended worse than it was.

    Args:
        lines: Those of ``metrics.jsonl``.
        config: Of the training, for the advice.
    """
    key = "mse_argmax"
    val = [line for line in lines if line.get("split") == "val"]
    if any(figure(line, key) is None for line in val):
        key = "mse_soft"
    known = [(figure(line, key), line["epoch"]) for line in val]
    errors = [(error, epoch) for error, epoch in known if error is not None and error > 0]
    if len(errors) < 2:
        return None
    best, epoch = min(errors)
    last, end = errors[-1]
    if last <= WORSE * best:
        return None
    cosine = "" if config.lr_schedule == "cosine" else " --lr-schedule cosine"
    return Finding(
        "got-worse",
        "warning",
        f"The validation error ({key}) was {best:.5f} after epoch {epoch} and {last:.5f} after "
        f"epoch {end}, {last / best:.2f} times as much.",
        "best.pt is of the better epoch; look at the end with python -m eval doctor RUN/last.pt, "
        f"and train with {slower(config)}{cosine}.",
    )


def check_unfinished(
    step: int,
    total: int,
    schedule_end: int | None,
    ends_at: str | None,
    logged: bool = True,
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
    return Finding(
        "unfinished",
        "note",
        f"{'This' if logged else 'The checkpoint'} is of step {step} of {total}{cooling}.",
        "If the run has stopped here, go on before judging it: train.py --resume --out RUN."
        if logged
        else "Whether the run went on, its log would say: give the run folder where there is one.",
    )
