"""Checks of a soft codebook's temperature: collapse, softness, a scale that nothing holds."""

from __future__ import annotations

import math

from softvq import Codebook
from training.config import TrainConfig

from .advice import (
    END_RATIO,
    FLOOR_RATIO,
    colder,
    either,
    end_codes,
    follow_latents,
    longer,
    lower_codes,
    schedule,
    slower,
    start_on_latents,
)
from .finding import Finding

# Above T_c collapse attracts; docs/theory.md. The separation is docs/doctor.md's measurement.
COLLAPSED_RATIO, COLLAPSED_SEPARATION = 1.0, 0.15
NEAR_RATIO, NEAR_SEPARATION = 0.75, 0.5
# Argmax error over soft error: 1.1 is 0.4 dB, 1.5 is 1.8 dB. V / L_q where no error tells: at 0.5
# a token is as far from its soft code as that is from the latent.
SOFT_ERROR_RATIO, SEVERE_ERROR_RATIO = 1.1, 1.5
SOFT_VARIANCE_SHARE = 0.5
# Log of codes per token over that of its target: healthy runs end at 0.97 to 1.04 (docs/doctor.md).
MISSED, LEAST_ENTROPY = 1.5, 0.01


def critical_factor(level: Codebook) -> float | None:
    """T_c over the largest variance of the latents; None where there is no temperature.

    Four, over the weight of V, where prototypes follow the gradient of L_q; two where they follow
    soft EM, which holds the assignment: docs/theory.md.

    Example:
        >>> from softvq import DDCLCodebook
        >>> critical_factor(DDCLCodebook(4, 8, variance_weight=2.0))
        2.0
    """
    return getattr(level, "critical_factor", None)


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
        collapse_advice(config),
    )


def collapse_advice(config: TrainConfig) -> str:
    """What keeps prototypes apart, by what drove them together."""
    pinned = "" if config.normalize_latents else " and --normalize-latents"
    if config.quantizer == "ddcl":
        begin = "" if config.kmeans_init else " --init kmeans"
        told, flags = {
            "critical": ("Stay below T_c", colder),
            "constant": ("Let T follow the latents", follow_latents),
            "codes": ("The target of codes per token is out of reach", colder),
        }[config.temperature_mode]
        return f"{told}: {flags(config)}{begin}{pinned}."
    if config.quantizer in ("vq", "vq-ema"):
        flags_of_start = start_on_latents(config)
        if flags_of_start:
            return f"Start prototypes on the latents, {' '.join(flags_of_start)}{pinned}."
        return f"Let the latents move less: {slower(config)}{pinned}."
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
    loss = 10 * math.log10(max(error_ratio, 1e-9))
    fired = []
    if error_ratio >= SOFT_ERROR_RATIO:
        fired.append(
            f"the tokens' error is {error_ratio:.2f} times the soft one, {loss:.1f} dB "
            f"(limit {SOFT_ERROR_RATIO:g})"
        )
    if variance_share >= SOFT_VARIANCE_SHARE:
        fired.append(f"V / L_q is {variance_share:.2f} (limit {SOFT_VARIANCE_SHARE:g})")
    if not ended or codes_per_token < 1.02 or not fired:
        return None
    missed = target_missed(codes_per_token, config)
    target = f", its target of {config.temperatures[1]:.4g} not met" if missed else ""
    return Finding(
        "too-soft",
        "severe" if error_ratio >= SEVERE_ERROR_RATIO else "warning",
        f"The schedule has ended at {codes_per_token:.2f} codes per token{target}: "
        f"{' and '.join(fired)}.",
        f"{_late_advice(config) if missed else _softness_advice(config)}, and judge by the argmax "
        "error.",
    )


def target_missed(codes_per_token: float, config: TrainConfig) -> bool:
    """Whether the feedback has not reached the last target of codes per token.

    Example:
        >>> target_missed(3.08, TrainConfig()), target_missed(1.06, TrainConfig())
        (True, False)
    """
    if config.temperature_mode != "codes":
        return False
    # A target of one code is met at none above; the feedback itself works in entropies.
    wanted = max(math.log(config.temperatures[1]), LEAST_ENTROPY)
    return math.log(codes_per_token) > MISSED * wanted


def _late_advice(config: TrainConfig) -> str:
    """For a target that was not met in time."""
    hold, until = config.temperature_hold / 2, 0.75 * config.temperature_until
    earlier = f"--temperature-hold {hold:.3g} --temperature-until {max(hold, until):.3g}"
    return "Give the temperature time to follow: " + either(
        f"more steps, {longer(config)}",
        f"an earlier end, {earlier}" if config.temperature_until > 0 else None,
    )


def _softness_advice(config: TrainConfig) -> str:
    """For a schedule that ended where it should, and that is too soft."""
    start, end = config.temperatures
    if config.temperature_mode == "codes":
        end = lower_codes(end, end_codes(config))
        return f"Cool down further: {schedule('codes', max(start, end), end, config)}"
    if config.temperature_mode == "critical" and end > FLOOR_RATIO:
        end = END_RATIO if end > END_RATIO else end / 2
        return f"Cool down further: {schedule('critical', max(start, end), end, config)}"
    if config.temperature_mode == "critical":
        return (
            "T / T_c cannot mean less than this; steer what is to be had, the codes per token: "
            f"{follow_latents(config)}"
        )
    return f"Cool down: {follow_latents(config)}"


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
    mode = f" {follow_latents(config)}" if constant else ""
    return Finding(
        "free-scale",
        "severe" if constant and ratio >= NEAR_RATIO else "warning",
        f"The latents are not normalised and have a standard deviation of {scale:.3g} a channel; "
        f"{how}, and stands at {ratio:.3g} of T_c.",
        f"Pin their scale: --normalize-latents{mode}.",
    )
