"""Checks of the state that is kept beside the weights: is it that of the data?

C: channels, D: vector size, K: codes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from softvq.functional import largest_variance, latent_covariance
from training.config import TrainConfig

from .advice import slower
from .finding import Finding
from .words import listed

# Of the latents, in the running standard deviation: RMS over channels of the shift of the mean, and
# of the logarithm of the variance. docs/doctor.md has what they cost.
SHIFT, SEVERE_SHIFT = 0.25, 1.0
LOG_VARIANCE, SEVERE_LOG_VARIANCE = math.log(2.0), math.log(4.0)
# Factor between the tracked and the measured largest variance: T / T_c is wrong by it.
COVARIANCE = 2.0
# Share of the assignments that are of other codes than the running usage says, beyond what a sample
# of this size would show.
USAGE = 0.5

CALIBRATE = (
    "Call model.calibrate(batches) on 16 batches of training images and save it again, as "
    "train.py does after each epoch"
)


def check_non_finite(weights: Mapping[str, Tensor], config: TrainConfig) -> Finding | None:
    """NaN or infinity in the weights or the state.

    Args:
        weights: The model's state_dict.
        config: Of the training, for the advice.
    """
    bad = {
        name: int((~value.isfinite()).sum())
        for name, value in weights.items()
        if value.is_floating_point() and not bool(value.isfinite().all())
    }
    if not bad:
        return None
    names = ", ".join(list(bad)[:3]) + (" and others" if len(bad) > 3 else "")
    return Finding(
        "non-finite",
        "severe",
        f"{sum(bad.values())} values in {len(bad)} of {len(weights)} tensors are NaN or infinite: "
        f"{names}.",
        "Take the run's other checkpoint, and train again with half the learning rate "
        f"({slower(config)}){'' if config.precision == 'fp32' else ' and --precision fp32'}.",
    )


def check_norm_statistics(mean: Tensor, variance: Tensor) -> Finding | None:
    """Running statistics of a normalisation that are not the data's.

    Args:
        mean: (C,), of its output on the data.
        variance: (C,), likewise.
    """
    shift = float(mean.square().mean().sqrt())
    log_variance = variance.clamp_min(1e-6).log()
    factor = float(log_variance.square().mean().sqrt())
    if shift < SHIFT and factor < LOG_VARIANCE:
        return None
    severe = shift >= SEVERE_SHIFT or factor >= SEVERE_LOG_VARIANCE
    worst = int((mean.abs() + log_variance.abs()).argmax())
    return Finding(
        "norm-statistics",
        "severe" if severe else "warning",
        "Latents that should have mean 0 and variance 1 are off by "
        f"{shift:.2f} standard deviations and by a factor of {math.exp(factor):.2f} in variance "
        f"(RMS over channels; channel {worst}: mean {float(mean[worst]):.2f}, variance "
        f"{float(variance[worst]):.2f}).",
        f"{CALIBRATE}; if the data has changed, give the one that it was trained on with "
        "--data-dir.",
    )


def check_stale_covariance(tracked: Tensor, latents: Tensor, config: TrainConfig) -> Finding | None:
    """A running covariance, and so a T_c, that is not that of the latents.

    Args:
        tracked: (D, D), the codebook's.
        latents: (M, D).
        config: Of the training, for the advice.
    """
    kept = float(largest_variance(tracked))
    measured = float(largest_variance(latent_covariance(latents)))
    factor = max(kept, 1e-30) / max(measured, 1e-30)
    if 1 / COVARIANCE < factor < COVARIANCE:
        return None
    return Finding(
        "stale-covariance",
        "warning",
        f"The codebook's running covariance has a largest variance of {kept:.3g}, these latents "
        f"{measured:.3g}: the T / T_c of the log is wrong by a factor of "
        f"{max(factor, 1 / factor):.1f}.",
        f"{CALIBRATE}; then a smaller decay of the codebook (argument decay, 0.9 by default), or a "
        f"lower rate, {slower(config)}, lets it follow.",
    )


def check_stale_usage(
    running: Tensor, usage: Tensor, tokens: int, config: TrainConfig
) -> Finding | None:
    """A running usage, by which starved codes are restarted, that is not that of the latents.

    Args:
        running: (K,), the codebook's, of any sum.
        usage: (K,), mean assignment measured.
        tokens: That were measured.
        config: Of the training, for the advice.
    """
    running = running.double() / running.double().sum().clamp_min(1e-30)
    distance = float((running - usage).abs().sum()) / 2
    # Half of the mean absolute error of a histogram of that many draws.
    chance = float((2 * usage.clamp_min(0) / (math.pi * tokens)).sqrt().sum()) / 2
    if distance - chance < USAGE:
        return None
    worst = (running - usage).abs().argsort(descending=True)[:4].tolist()
    return Finding(
        "stale-usage",
        "warning",
        f"{100 * distance:.0f} % of the assignments are of other codes than the running usage says "
        f"(most of all {listed(worst)}), so restarts move the wrong codes.",
        _follow_faster(config),
    )


def _follow_faster(config: TrainConfig) -> str:
    """A smaller decay of the running usage, where train.py has one."""
    if config.quantizer not in ("vq", "vq-ema"):
        return (
            "Let the average follow faster: a smaller decay of the codebook (argument decay, 0.9 "
            f"by default), or latents that move less, {slower(config)}."
        )
    decay = 0.9 if config.decay > 0.9 else config.decay / 2
    flag = f"--decay {decay:.3g}" if config.decay > 0 else slower(config)
    return f"Let the average follow faster: {flag}."
