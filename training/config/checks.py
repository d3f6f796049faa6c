"""Which options go together, and which do nothing."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..errors import ForeignOptionError, UserError
from .declaration import flag_of
from .quantizers import LATTICES, SOFT, owners, read_quantizers

if TYPE_CHECKING:
    from .train_config import TrainConfig


def check_quantizer_options(quantizer: str, options: dict[str, Any]) -> None:
    """Refuse options that are unknown, of another quantizer, or of a wrong type.

    The constructor checks the ranges.

    Raises:
        UserError: With the option's name, the value, and what it must be.
    """
    unknown = [name for name in sorted(options) if not owners(name)]
    if unknown:
        raise UserError(f"there are no options {', '.join(unknown)}: see train.py --help")
    for name, value in options.items():
        if quantizer not in owners(name):
            raise _foreign(name, owners(name), quantizer)
        read_quantizers()[quantizer].options[name].check(value)


def _foreign(name: str, only: Iterable[str], quantizer: str) -> ForeignOptionError:
    return ForeignOptionError(
        f"{flag_of(name)} is for {' and '.join(only)}, not for {quantizer}; leave it out"
    )


def check_given(config: TrainConfig, given: Container[str]) -> None:
    """Refuse options that would do nothing.

    Args:
        config: The options of the run.
        given: The options that somebody chose, by their flat names.

    Raises:
        UserError: If one is not for the quantizer, or without what it belongs to.
    """
    if "lpips" in given and not config.optimizer.perceptual_weight:
        raise UserError("--lpips does nothing without --perceptual-weight: give both")
    for name, option in config.fields().items():
        if name in given and option.only and config.quantizer.name not in option.only:
            raise _foreign(name, option.only, config.quantizer.name)


def check_together(config: TrainConfig) -> None:
    """Refuse values that do not go together.

    Args:
        config: Options each of which is in range.

    Raises:
        UserError: With the names, the values, and what to do.
    """
    for conflicts in (_model_conflicts, _level_conflicts, _temperature_conflicts):
        for conflict in conflicts(config):
            raise UserError(conflict)


def _model_conflicts(config: TrainConfig) -> Iterator[str]:
    model, size = config.model, config.data.image_size
    stride = 8 if model.architecture == "vqvae2" else 4
    if size % stride:
        yield f"image_size must be a multiple of {stride} for {model.architecture}, got {size}"
    if model.shared_scale and not model.normalize_latents:
        yield (
            "shared_scale is of the normalisation that normalize_latents false switches off: give "
            "--shared-scale or --no-normalize-latents, not both"
        )
    if config.optimizer.lpips_weights and not config.optimizer.perceptual_weight:
        yield "lpips_weights does nothing without perceptual_weight: give both"


def _level_conflicts(config: TrainConfig) -> Iterator[str]:
    """Levels that do not fit together, or options that would do nothing."""
    model, quantizer = config.model, config.quantizer.name
    asked = [name for name in ("level_pool", "level_sizes") if getattr(model, name) is not None]
    asked += ["level_dropout"] if model.level_dropout else []
    if model.level_count == 1 and asked:
        yield f"{', '.join(asked)}: for several levels only; give --levels, too"
    if model.level_count > 1 and quantizer in LATTICES:
        yield (
            f"{quantizer} has one level only: of other libraries' quantizers all but fsq and lfq "
            "have levels"
        )
    if model.level_count > 1 and quantizer == "none":
        yield "the quantizer none has no codebook, so no levels: leave levels out"
    two = model.levels in (None, 2) and model.level_pool is None
    if model.architecture == "vqvae2" and not two:
        yield (
            "vqvae2 has two levels at an eighth and a quarter of the resolution: leave out "
            "levels and level_pool"
        )
    for name in ("level_pool", "level_sizes"):
        model.numbers(name)


def _temperature_conflicts(config: TrainConfig) -> Iterator[str]:
    hold, until = config.quantizer.temperature_hold, config.quantizer.temperature_until
    if hold > until:
        yield f"temperature_hold must not exceed temperature_until, got {hold} and {until}"
    if config.quantizer.name not in SOFT:
        return
    start, end = config.temperatures
    most = max(config.model.codebook_sizes)
    in_codes = config.quantizer.temperature_mode == "codes"
    if in_codes and min(start, end) < 1:
        yield (
            "codes per token cannot fall below 1: give temperature_start and temperature_end "
            f"of 1 or more, got {start} and {end}"
        )
    if in_codes and max(start, end) > most:
        yield (
            f"a token cannot have more codes than there are: codebook_size is {most}, "
            f"temperature_start and temperature_end {start} and {end}"
        )
