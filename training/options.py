"""An option of a run: a dataclass field with what the command line says and checks about it."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import Field, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .errors import ForeignOptionError, UserError
from .quantizers import LATTICES, PEERS, QUANTIZERS, SOFT, read_quantizers

if TYPE_CHECKING:
    from .config import TrainConfig


def option(
    default: Any,
    help: str,  # noqa: A002
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] | None = None,
    only: tuple[str, ...] = QUANTIZERS,
    flat: str | None = None,
) -> Any:
    """Make a field that knows what the command line says and checks about it.

    Args:
        default: The value when nothing is given.
        help: What the option does, in a sentence.
        minimum: The least value allowed.
        maximum: The largest value allowed.
        above: A bound that the value must exceed.
        choices: The values allowed.
        only: The quantizers that the option is for.
        flat: The option's name outside its section, where that is not the field's name.
    """
    metadata = {
        "help": help,
        "minimum": minimum,
        "maximum": maximum,
        "above": above,
        "choices": choices,
        "only": only,
        "flat": flat,
    }
    return field(default=default, metadata=metadata)


def flat_name(spec: Field[Any]) -> str:
    """Name of a field on the command line, in config.json and in checkpoints."""
    return spec.metadata["flat"] or spec.name


def check_option(spec: Field[Any], value: Any) -> None:
    """Refuse a value outside a field's range or choices.

    Raises:
        UserError: With the option's name, the value, and what it must be.
    """
    rule, name = spec.metadata, flat_name(spec)
    if value is None:
        return
    _check_value(name, value, rule["choices"])
    low, high, above = rule["minimum"], rule["maximum"], rule["above"]
    if low is not None and not value >= low:
        raise UserError(f"{name} must be at least {low}, got {value}")
    if high is not None and not value <= high:
        raise UserError(f"{name} must be at most {high}, got {value}")
    if above is not None and not value > above:
        raise UserError(f"{name} must be more than {above}, got {value}")


def _check_value(name: str, value: Any, choices: tuple[str, ...] | None) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name} must be a finite number, got {value}")
    if choices and value not in choices:
        raise UserError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_quantizer_options(quantizer: str, options: dict[str, Any]) -> None:
    """Refuse options that are unknown, of another quantizer, or of a wrong type.

    The constructor checks the ranges.

    Raises:
        UserError: With the option's name, the value, and what it must be.
    """
    quantizers = read_quantizers()
    unknown = [n for n in sorted(options) if not any(n in q.options for q in quantizers.values())]
    if unknown:
        raise UserError(f"there are no options {', '.join(unknown)}: see train.py --help")
    for name, value in options.items():
        own = quantizers[quantizer].options.get(name)
        if own is None:
            raise _foreign(name, [n for n, q in quantizers.items() if name in q.options], quantizer)
        _check_value(name, value, own.choices)
        if not isinstance(value, (int, float) if own.kind is float else own.kind):
            raise UserError(f"{name} needs a value of type {own.kind.__name__}, got {value!r}")


def _foreign(name: str, only: Iterable[str], quantizer: str) -> ForeignOptionError:
    return ForeignOptionError(
        f"--{name.replace('_', '-')} is for {' and '.join(only)}, not for {quantizer}; leave it out"
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
    for spec in config.fields().values():
        only = spec.metadata["only"]
        if flat_name(spec) in given and config.quantizer.name not in only:
            raise _foreign(flat_name(spec), only, config.quantizer.name)


def check_together(config: TrainConfig) -> None:
    """Refuse values that do not go together.

    Args:
        config: Options each of which is in range.

    Raises:
        UserError: With the names, the values, and what to do.
    """
    model, quantizer = config.model, config.quantizer
    stride = 8 if model.architecture == "vqvae2" else 4
    if config.data.image_size % stride:
        raise UserError(
            f"image_size must be a multiple of {stride} for {model.architecture}, "
            f"got {config.data.image_size}"
        )
    if model.shared_scale and not model.normalize_latents:
        raise UserError(
            "shared_scale is of the normalisation that normalize_latents false switches off: give "
            "--shared-scale or --no-normalize-latents, not both"
        )
    if config.optimizer.lpips_weights and not config.optimizer.perceptual_weight:
        raise UserError("lpips_weights does nothing without perceptual_weight: give both")
    if quantizer.name in PEERS and find_spec("vector_quantize_pytorch") is None:
        raise UserError(
            f"the quantizer {quantizer.name} needs vector-quantize-pytorch: "
            'pip install -e ".[peers]"'
        )
    _check_levels(config)
    _check_temperatures(config)


def _check_temperatures(config: TrainConfig) -> None:
    quantizer = config.quantizer
    if quantizer.temperature_hold > quantizer.temperature_until:
        raise UserError(
            "temperature_hold must not exceed temperature_until, got "
            f"{quantizer.temperature_hold} and {quantizer.temperature_until}"
        )
    if quantizer.name not in SOFT:
        return
    start, end = config.temperatures
    if quantizer.temperature_mode != "codes":
        return
    if min(start, end) < 1:
        raise UserError(
            "codes per token cannot fall below 1: give temperature_start and temperature_end "
            f"of 1 or more, got {start} and {end}"
        )
    most = max(config.model.codebook_sizes)
    if max(start, end) > most:
        raise UserError(
            f"a token cannot have more codes than there are: codebook_size is "
            f"{most}, temperature_start and temperature_end {start} and {end}"
        )


def _check_levels(config: TrainConfig) -> None:
    """Refuse levels that do not fit together, or options that would do nothing."""
    model, quantizer = config.model, config.quantizer.name
    given = {"level_pool": model.level_pool, "level_sizes": model.level_sizes,
             "level_dropout": model.level_dropout or None}  # fmt: skip
    asked = [name for name, value in given.items() if value is not None]
    if model.level_count == 1 and asked:
        raise UserError(f"{', '.join(asked)}: for several levels only; give --levels, too")
    if model.level_count > 1 and quantizer in LATTICES:
        raise UserError(
            f"{quantizer} has one level only: of vector-quantize-pytorch's there are "
            "vqp-ema, vqp-rotation and simvq in levels"
        )
    if model.level_count > 1 and quantizer == "none":
        raise UserError("the quantizer none has no codebook, so no levels: leave levels out")
    two = model.levels in (None, 2) and model.level_pool is None
    if model.architecture == "vqvae2" and not two:
        raise UserError(
            "vqvae2 has two levels at an eighth and a quarter of the resolution: leave out "
            "levels and level_pool"
        )
    for name in ("level_pool", "level_sizes"):
        model.numbers(name)
