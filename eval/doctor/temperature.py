"""Checks of a soft codebook's temperature: collapse, softness, a scale that nothing holds."""

from __future__ import annotations

import math

from softvq import Codebook, DDCLCodebook, DDCLEMCodebook
from training.config import TrainConfig

from .finding import Finding

# Above T_c collapse attracts; docs/theory.md. The separation is docs/doctor.md's measurement.
COLLAPSED_RATIO, COLLAPSED_SEPARATION = 1.0, 0.15
NEAR_RATIO, NEAR_SEPARATION = 0.75, 0.5
# Argmax error over soft error: 1.1 is 0.4 dB, 1.5 is 1.8 dB. V / L_q where no error tells: at 0.5
# a token is as far from its soft code as that is from the latent.
SOFT_ERROR_RATIO, SEVERE_ERROR_RATIO = 1.1, 1.5
SOFT_VARIANCE_SHARE = 0.5


def critical_factor(level: Codebook) -> float | None:
    """T_c over the largest variance of the latents; None where there is no temperature.

    Four, over the weight of V, where prototypes follow the gradient of L_q; two where they follow
    soft EM, which holds the assignment: docs/theory.md.

    Example:
        >>> critical_factor(DDCLCodebook(4, 8, variance_weight=2.0))
        2.0
    """
    if isinstance(level, DDCLEMCodebook):
        return 2.0
    return 4 / level.variance_weight if isinstance(level, DDCLCodebook) else None


def check_collapse(
    ratio: float | None, separation: float, config: TrainConfig, since: int | None = None
) -> Finding | None:
    """Prototypes that are one, or nearly, or that a temperature drives together.

    Args:
        ratio: T / T_c by the latents of the sample; None for a hard codebook.
        separation: See :func:`eval.doctor.geometry.separation`.
        config: Of the training, for the advice.
        since: Epoch since which the log has T at T_c or above, where it has.
    """
    hot, near_hot = (ratio is not None and ratio >= r for r in (COLLAPSED_RATIO, NEAR_RATIO))
    together, near = separation < COLLAPSED_SEPARATION, separation < NEAR_SEPARATION
    if not (near_hot or near):
        return None
    parts = []
    if ratio is not None:
        told = f"T is {ratio:.3g} of the critical temperature of these latents"
        if hot:
            told += ", above which collapse into one point attracts"
        if since is not None:
            told += f" (since epoch {since})"
        parts.append(told)
    parts.append(
        f"the prototypes are spread by {separation:.2g} of the latents' largest standard deviation"
    )
    evidence = "; ".join(parts) + "."
    severe = hot or together
    return Finding(
        "collapsed" if severe else "near-collapse",
        "severe" if severe else "warning",
        evidence[0].upper() + evidence[1:],
        _collapse_advice(config),
    )


def _collapse_advice(config: TrainConfig) -> str:
    pinned = "" if config.normalize_latents else " and --normalize-latents"
    if config.quantizer == "ddcl":
        return {
            "critical": "Stay below T_c: --temperature-start 0.02 --temperature-end 0.002",
            "constant": "Let T follow the latents: --temperature-mode codes --temperature-start 3",
            "codes": "The target of codes per token is out of reach: --temperature-start 3 "
            f"--temperature-end {1.05 if config.recipe == 'tokens' else 1.3}",
        }[config.temperature_mode] + f"{pinned}."
    if config.quantizer in ("vq", "vq-ema"):
        # Textbook prototypes start in one point, and their rate is too low to leave it soon.
        faster = " --epsilon 0.03" if config.quantizer == "vq" else ""
        return (
            "Start prototypes on the latents, --init kmeans --restart-threshold 0.1"
            f"{faster}{pinned}."
        )
    return f"Take a codebook that starts on the latents: --quantizer vq-ema{pinned}."


def check_too_soft(
    codes_per_token: float,
    variance_share: float,
    error_ratio: float,
    ended: bool,
    config: TrainConfig,
) -> Finding | None:
    """Tokens that say much less than the soft code, though the schedule has ended.

    Args:
        codes_per_token: On the sample.
        variance_share: V / L_q.
        error_ratio: MSE of the tokens' reconstruction over that of the soft one, of all levels.
        ended: Whether the temperature has reached the end of its schedule.
        config: Of the training, for the advice.
    """
    soft = error_ratio >= SOFT_ERROR_RATIO or variance_share >= SOFT_VARIANCE_SHARE
    if not ended or codes_per_token < 1.02 or not soft:
        return None
    loss = 10 * math.log10(max(error_ratio, 1e-9))
    values = {"codes": 1.05 if config.recipe == "tokens" else 1.3, "critical": 0.002}
    if config.temperature_mode == "constant":
        advice = "Cool down: --temperature-mode codes --temperature-end 1.05"
    else:
        value = values[config.temperature_mode]
        reached = config.temperatures[1] <= value
        value = (1 + (config.temperatures[1] - 1) / 2) if reached else value
        advice = f"Cool down further: --temperature-end {value:.3g}"
    return Finding(
        "too-soft",
        "severe" if error_ratio >= SEVERE_ERROR_RATIO else "warning",
        f"The schedule has ended at {codes_per_token:.2f} codes per token, V / L_q = "
        f"{variance_share:.2f}; the tokens' error is {error_ratio:.2f} times the soft one "
        f"({loss:.1f} dB).",
        f"{advice}, and judge by the argmax error.",
    )


def check_free_scale(ratio: float, scale: float, config: TrainConfig) -> Finding | None:
    """A temperature against latents whose scale nothing holds.

    An encoder lowers L_q by shrinking its latents, until T is above T_c. A temperature that
    follows them is safe from that; a constant one is not.

    Args:
        ratio: T / T_c by the latents of the sample.
        scale: RMS over channels of the latents' standard deviation; standardised ones have 1.
        config: Of the training.
    """
    if config.normalize_latents or config.quantizer != "ddcl":
        return None
    constant = config.temperature_mode == "constant"
    how = "T is constant and does not follow" if constant else "T follows, but slowly"
    mode = "" if not constant else " --temperature-mode codes --temperature-start 3"
    return Finding(
        "free-scale",
        "severe" if constant and ratio >= NEAR_RATIO else "warning",
        f"The latents are not normalised and have a standard deviation of {scale:.3g} a channel; "
        f"{how}, and stands at {ratio:.3g} of T_c.",
        f"Pin their scale: --normalize-latents{mode}.",
    )
