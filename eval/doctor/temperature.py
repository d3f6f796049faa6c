"""Checks of collapse, which too high a temperature brings, and of a code that stays too soft."""

from __future__ import annotations

import math

from softvq.diagnosis import COLLAPSED_RATIO, COLLAPSED_SPREAD, SOFT_VARIANCE_SHARE
from training.config import TrainConfig
from training.config.quantizers import OWN, SOFT
from training.config.train_config import END_CODES

from .advice import (
    END_RATIO,
    colder,
    either,
    flags,
    follow_latents,
    longer,
    lower,
    schedule,
    slower,
    start_on_latents,
)
from .finding import Finding

# Near the collapse that softvq.diagnosis tells; docs/theory.md, docs/doctor.md.
NEAR_RATIO, NEAR_SPREAD = 0.75, 0.5
# Below it a lower T / T_c changes no token.
FLOOR_RATIO = 1e-4
# Argmax error over soft error: 1.1 is 0.4 dB, 1.5 is 1.8 dB. V / L_q tells where no error does.
SOFT_ERROR_RATIO, SEVERE_ERROR_RATIO = 1.1, 1.5
# Log of codes per token over that of its target: healthy runs end at 0.97 to 1.04 (docs/doctor.md).
MISSED, LEAST_ENTROPY = 1.5, 0.01


def check_collapse(ratio: float | None, spread: float, config: TrainConfig) -> Finding | None:
    """Prototypes that are one, or nearly, or that a temperature drives together.

    Args:
        ratio: T / T_c by the latents of the sample; None for a hard codebook.
        spread: See :func:`softvq.geometry.relative_spread`.
        config: The options of the training, for the advice.
    """
    hot, near_hot = (ratio is not None and ratio >= r for r in (COLLAPSED_RATIO, NEAR_RATIO))
    if not (near_hot or spread < NEAR_SPREAD):
        return None
    told = f"the prototypes are spread by {spread:.2g} of the latents' largest standard deviation."
    if ratio is not None:
        why = ", above which collapse into one point attracts" if hot else ""
        told = f"T is {ratio:.3g} of the critical temperature of these latents{why}; {told}"
    severe = hot or spread < COLLAPSED_SPREAD
    return Finding(
        "collapsed" if severe else "near-collapse",
        "severe" if severe else "warning",
        told[0].upper() + told[1:],
        collapse_advice(config),
    )


def collapse_advice(config: TrainConfig) -> str:
    """What keeps prototypes apart, by what drove them together."""
    pinned = "" if config.model.normalize_latents else " and --normalize-latents"
    if config.quantizer.name in SOFT:
        told, change = {
            "critical": ("Stay below T_c", colder),
            "constant": ("Let T follow the latents", follow_latents),
            "codes": ("The target of codes per token is out of reach", colder),
        }[config.quantizer.temperature_mode]
        begin = flags(config, init="kmeans")
        return f"{told}: {change(config)}{begin and f' {begin}'}{pinned}."
    if config.quantizer.name not in OWN:
        return f"Take a codebook that starts on the latents: --quantizer vq-ema{pinned}."
    if start := start_on_latents(config):
        return f"Start prototypes on the latents, {start}{pinned}."
    return f"Let the latents move less: {slower(config)}{pinned}."


def check_too_soft(
    codes_per_token: float,
    variance_share: float,
    error_ratio: float,
    ended: bool,
    config: TrainConfig,
) -> Finding | None:
    """Tokens that say much less than the soft code, though the schedule has ended.

    Args:
        codes_per_token: Codes per token on the sample.
        variance_share: V / L_q.
        error_ratio: MSE of the tokens' reconstruction over that of the soft one, of all levels.
        ended: Whether the temperature has reached the end of its schedule.
        config: The options of the training, for the advice.
    """
    fired = []
    if error_ratio >= SOFT_ERROR_RATIO:
        fired.append(
            f"the tokens' error is {error_ratio:.2f} times the soft one, "
            f"{10 * math.log10(error_ratio):.1f} dB (limit {SOFT_ERROR_RATIO:g})"
        )
    if variance_share >= SOFT_VARIANCE_SHARE:
        fired.append(f"V / L_q is {variance_share:.2f} (limit {SOFT_VARIANCE_SHARE:g})")
    if not ended or codes_per_token < 1.02 or not fired:
        return None
    missed = target_missed(codes_per_token, config)
    target = f", its target of {config.temperatures[1]:.4g} not met" if missed else ""
    advice = _late_advice(config) if missed else _softness_advice(config)
    return Finding(
        "too-soft",
        "severe" if error_ratio >= SEVERE_ERROR_RATIO else "warning",
        f"The schedule has ended at {codes_per_token:.2f} codes per token{target}: "
        f"{' and '.join(fired)}.",
        f"{advice}, and judge by the argmax error.",
    )


def target_missed(codes_per_token: float, config: TrainConfig) -> bool:
    """Whether the feedback has not reached the last target of codes per token.

    Example:
        >>> target_missed(3.08, TrainConfig()), target_missed(1.06, TrainConfig())
        (True, False)
    """
    if config.quantizer.temperature_mode != "codes":
        return False
    # A target of one code is met at none above; the feedback itself works in entropies.
    wanted = max(math.log(config.temperatures[1]), LEAST_ENTROPY)
    return math.log(codes_per_token) > MISSED * wanted


def _late_advice(config: TrainConfig) -> str:
    """For a target that was not met in time."""
    own = config.quantizer
    hold, until = own.temperature_hold / 2, 0.75 * own.temperature_until
    earlier = f"--temperature-hold {hold:.3g} --temperature-until {max(hold, until):.3g}"
    end = f"an earlier end, {earlier}" if own.temperature_until > 0 else None
    begin = "give the temperature time to follow: "
    return either(f"more steps, {longer(config)}", end, begin=begin).rstrip(".")


def _softness_advice(config: TrainConfig) -> str:
    """For a schedule that ended where it should, and that is too soft."""
    start, end = config.temperatures
    mode = config.quantizer.temperature_mode
    if mode == "constant":
        return f"Cool down: {follow_latents(config)}"
    if mode == "critical" and end <= FLOOR_RATIO:
        return (
            "T / T_c cannot mean less than this; steer what is to be had, the codes per token: "
            f"{follow_latents(config)}"
        )
    end = lower(end, END_CODES, 1.0) if mode == "codes" else lower(end, END_RATIO)
    return f"Cool down further: {schedule(mode, max(start, end), end, config)}"
