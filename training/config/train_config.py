"""TrainConfig: every option of a run, in sections. Imports nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import UserError
from .checks import check_together
from .declaration import Option
from .migration import migrate_config
from .quantizers import QUANTIZERS, SOFT, read_quantizers
from .sections import (
    OPTIONS,
    SECTIONS,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    QuantizerConfig,
    RunConfig,
)

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "hidden_channels": 64,
        "residual_channels": 32,
        "epochs": 5,
        "limit_train": 20_000,
        "limit_test": 2_000,
    },
}

# Codes per token at which a schedule ends by default.
END_CODES = 1.05


@dataclass(frozen=True)
class TrainConfig:
    """Options of a run, in sections; their names on the command line and on disk are flat.

    Raises:
        UserError: If a value is out of range, or two do not go together.

    Example:
        >>> config = TrainConfig.from_options(quantizer="vq", commitment=0.5, epochs=3)
        >>> config.model.codebook_size, config.quantizer.settings["commitment"]
        (512, 0.5)
        >>> config.replace(lr=0.1).options()["lr"]
        0.1
    """

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    quantizer: QuantizerConfig = field(default_factory=QuantizerConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        check_together(self)

    @staticmethod
    def fields() -> dict[str, Option]:
        """The options of all sections by flat names, without the quantizers' own arguments."""
        return {option.name: option for own in OPTIONS.values() for option in own.values()}

    @classmethod
    def kinds(cls) -> dict[str, type]:
        """The type of each option by its flat name, with the arguments of all quantizers."""
        own = [option for q in read_quantizers().values() for option in q.options.values()]
        return {option.name: option.kind for option in [*cls.fields().values(), *own]}

    @classmethod
    def from_options(cls, **flat: Any) -> TrainConfig:
        """Build a config from flat names.

        Args:
            flat: Options by the names of the command line. What is none of a section's fields is
                an argument of the quantizer's constructor; None stands for its default there.

        Raises:
            UserError: If a name is unknown, or a value is refused.
        """
        given: dict[str, dict[str, Any]] = {
            section: {f: flat[o.name] for f, o in options.items() if o.name in flat}
            for section, options in OPTIONS.items()
        }
        fields = cls.fields()
        own = {n: v for n, v in flat.items() if n not in fields and v is not None}
        given["quantizer"]["options"] = own
        return cls(**{section: SECTIONS[section](**values) for section, values in given.items()})

    def options(self, *, defaults: bool = False) -> dict[str, Any]:
        """The options by flat names: every field, and the given arguments of the quantizer.

        Args:
            defaults: Whether to fill in the constructor's defaults for arguments not given.
        """
        sections = [(getattr(self, name), own) for name, own in OPTIONS.items()]
        flat = {o.name: getattr(section, f) for section, own in sections for f, o in own.items()}
        return flat | dict(self.quantizer.settings if defaults else self.quantizer.options)

    def replace(self, **flat: Any) -> TrainConfig:
        """A config with other options, by flat names; another quantizer drops what it lacks."""
        kept = self.options()
        if flat.get("quantizer") in QUANTIZERS:
            known = {*self.fields(), *read_quantizers()[flat["quantizer"]].options}
            kept = {name: value for name, value in kept.items() if name in known}
        return TrainConfig.from_options(**(kept | flat))

    def to_json(self) -> str:
        """The options as a flat JSON object."""
        return json.dumps(self.options(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """A config from saved options, also those of the last version.

        Raises:
            UserError: If a name is unknown: the run is of another version.
        """
        flat = migrate_config(values)
        unknown = sorted(set(flat) - set(cls.kinds()))
        if unknown:
            raise UserError(
                f"the saved config has options this version does not know: {', '.join(unknown)}"
            )
        return cls.from_options(**flat)

    @property
    def temperatures(self) -> tuple[float, float]:
        """First and last value of the schedule, with their defaults filled in.

        Raises:
            UserError: If a constant temperature was not given: it depends on the latents' scale.
        """
        quantizer, most = self.quantizer, max(self.model.codebook_sizes)
        start, end = quantizer.temperature_start, quantizer.temperature_end
        if quantizer.temperature_mode == "codes":
            first, last = min(3.0, most), min(END_CODES, most)
        elif quantizer.temperature_mode == "critical":
            first, last = 0.02, 0.002
        elif start is not None:
            first = last = start
        else:
            raise UserError(
                "temperature_mode constant needs temperature_start, T in units of squared "
                "distance; or choose codes or critical, which follow the latents"
            )
        return first if start is None else start, last if end is None else end

    @property
    def timescale_ratio(self) -> float:
        """Epsilon with its default filled in."""
        if self.optimizer.epsilon is not None:
            return self.optimizer.epsilon
        # Prototypes that the optimizer alone moves must outrun the encoder, as the paper says.
        return 0.03 if self.quantizer.settings.get("pull") == 0 else 1.0

    def model_config(self, total_steps: int) -> dict[str, Any]:
        """The dict that :func:`models.build_model` takes.

        Args:
            total_steps: Steps of the whole training, of which the schedule's are shares.
        """
        model, quantizer = self.model, self.quantizer
        pools = None
        if model.level_count > 1 and model.architecture == "vqvae":
            pools = model.numbers("level_pool") or [1] * model.level_count
        scheduled = total_steps if quantizer.name in SOFT else 0
        start, end = self.temperatures if scheduled else (1.0, 1.0)
        shape = {n: getattr(model, n) for n in OPTIONS["model"]}
        del shape["levels"], shape["level_pool"]
        return {
            **shape,
            "level_pools": pools,
            "level_sizes": model.numbers("level_sizes"),
            "quantizer": quantizer.name,
            **quantizer.settings,
            "temperature_mode": quantizer.temperature_mode,
            "temperature_start": start,
            "temperature_end": end,
            "temperature_hold_steps": round(quantizer.temperature_hold * scheduled),
            "temperature_steps": round(quantizer.temperature_until * scheduled),
            "seed": self.run.seed,
        }
