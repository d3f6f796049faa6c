"""Checks of where prototypes and latents lie.

K: codes, D: vector size, M: latents, C: channels.
"""

from __future__ import annotations

import math

from torch import Tensor

from softvq.diagnosis import codes_of, listed
from softvq.functional import latent_covariance
from softvq.geometry import DOUBLE, neighbour_distances, usual_distance
from training.config import TrainConfig
from training.config.quantizers import OWN, SOFT

from .advice import COLD_START_CODES, colder, flags, more_restarts, size, slower
from .finding import Finding, lost_share_severity

# In sqrt(tr C) from the latents' mean: a prototype at 2 came back, one at 3 did not
# (docs/doctor.md).
FAR = 2.5
# Dimensions that the latents fill, of D; healthy runs of 155 steps with D = 64 have 2.4 or more.
LOW_DIMENSION = 1 / 32
ONE_DIRECTION = 1.5
# Of the latents, in the running standard deviation: RMS over channels of the shift of the mean, and
# of the logarithm of the variance. docs/doctor.md has what they cost.
SHIFT, SEVERE_SHIFT = 0.25, 1.0
LOG_VARIANCE, SEVERE_LOG_VARIANCE = math.log(2.0), math.log(4.0)


def check_duplicates(codebook: Tensor, config: TrainConfig, number: int = 0) -> Finding | None:
    """Pairs of prototypes far closer than is usual in this codebook.

    Args:
        codebook: (K, D).
        config: The options of the training, for the advice.
        number: Number of the level, from 0.
    """
    if len(codebook) < 4:
        return None
    distance, other = neighbour_distances(codebook)
    usual = usual_distance(codebook)
    double = (distance < DOUBLE * usual).nonzero().squeeze(1).tolist()
    if not double:
        return None
    pairs = {(min(k, int(other[k])), max(k, int(other[k]))) for k in double}
    # Of a group that lies together one remains: the codes that are chosen over none of the others.
    lost = {high for _, high in pairs}
    a, b = min(pairs, key=lambda pair: float(distance[pair[0]]) + float(distance[pair[1]]))
    return Finding(
        "duplicates",
        lost_share_severity(len(lost), len(codebook)),
        f"{codes_of(len(lost), len(codebook))} lie on another one, closer than {DOUBLE:g} of the "
        f"usual distance between neighbours ({usual:.3g}): {listed(sorted(lost))}; closest are "
        f"{a} and {b}, {float((codebook[a] - codebook[b]).norm()):.2g} apart.",
        _duplicates_advice(config, size(config, number, len(codebook) - len(lost))),
    )


def _duplicates_advice(config: TrainConfig, fewer: str | None) -> str:
    if config.quantizer.name in SOFT:
        return (
            "A double is starved of neither gradient nor tokens, so no restart mends it: train "
            f"colder from the start ({colder(config, COLD_START_CODES)}), or with {fewer}."
        )
    if config.quantizer.name in OWN and not config.quantizer.kmeans_init:
        return f"Start from latents with --init kmeans, or take {fewer}."
    return f"There are fewer distinct latents than codes: take {fewer}, or give more data."


def check_far_codes(codebook: Tensor, latents: Tensor, config: TrainConfig) -> Finding | None:
    """Prototypes outside of all latents, so far that nothing but a restart brings them back.

    Args:
        codebook: (K, D).
        latents: (M, D).
        config: The options of the training, for the advice.
    """
    mean = latents.mean(dim=0)
    radius = (latents - mean).norm(dim=1)  # (M,)
    scale = float(radius.square().mean().sqrt())  # sqrt(tr C)
    limit = max(FAR * scale, float(radius.max()))
    distance = (codebook - mean).norm(dim=1)  # (K,)
    far = (distance > limit).nonzero().squeeze(1).tolist()
    if not far:
        return None
    if config.quantizer.name in OWN:
        words = (flags(config, init="kmeans"), more_restarts(config))
        change = " ".join(word for word in words if word) or slower(config)
        advice = f"Nothing but a restart moves them: train with {change}."
    else:
        advice = "Take a codebook with restarts: --quantizer vq-ema --restart-threshold 0.1."
    farthest, outermost = (float(d.max()) / max(scale, 1e-30) for d in (distance, radius))
    return Finding(
        "far-codes",
        lost_share_severity(len(far), len(codebook)),
        f"{codes_of(len(far), len(codebook))} lie outside of all latents: {listed(far)}; the "
        f"farthest is {farthest:.1f} times sqrt(tr C) from their mean, the farthest latent "
        f"{outermost:.1f} times.",
        advice,
    )


def participation_ratio(covariance: Tensor) -> float:
    """``(tr C)^2 / tr C^2``: D where all directions vary alike, 1 where one does.

    Args:
        covariance: (D, D).

    Example:
        >>> import torch
        >>> participation_ratio(torch.diag(torch.tensor([2.0, 2.0, 0.0])))
        2.0
    """
    squares = float(covariance.double().square().sum())
    return float(covariance.double().trace()) ** 2 / squares if squares > 0 else 0.0


def check_low_dimension(latents: Tensor, config: TrainConfig) -> Finding | None:
    """Latents that fill few of their dimensions.

    Args:
        latents: (M, D).
        config: The options of the training, for the advice.
    """
    dim = latents.shape[1]
    covariance, matrix = latent_covariance(latents.double()), "covariance"
    if config.model.shared_scale:
        # How much a channel varies is then the encoder's choice: whether it repeats others counts.
        scale = covariance.diagonal().clamp_min(1e-12).rsqrt()
        covariance, matrix = scale[:, None] * covariance * scale, "correlation"
    ratio = participation_ratio(covariance)
    one = ratio < ONE_DIRECTION
    if dim < 4 or not (one or ratio < LOW_DIMENSION * dim):
        return None
    told = ": one direction holds nearly all of their variance" if one else ""
    dims = max(8, 2 ** math.ceil(math.log2(max(1.0, 2 * ratio))))
    advice = f"Fewer would do: --codebook-dim {dims}."
    if dims >= dim:
        advice = (
            "If units of the encoder have died, a lower rate or a wider network helps: "
            f"{slower(config)} --hidden-channels {2 * config.model.hidden_channels}."
        )
    return Finding(
        "low-dimension",
        "warning" if one else "note",
        f"The latents fill {ratio:.1f} of D = {dim} dimensions (participation ratio of their "
        f"{matrix}){told}.",
        advice,
    )


def check_norm_statistics(mean: Tensor, variance: Tensor) -> Finding | None:
    """Running statistics of a normalisation that are not the data's.

    Args:
        mean: (C,), the mean of its output on the data.
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
        "Call model.calibrate(batches) on 16 batches of training images and save it again, as "
        "train.py does after each epoch; if the data has changed, give the one that it was trained "
        "on with --data-dir.",
    )
