"""TrainConfig: every option of a run, with its default, range and help. Imports nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from .errors import UserError
from .migration import migrate_config
from .options import check_option, check_quantizer_options, check_together, flat_name, option
from .quantizers import KINDS, OWN, QUANTIZERS, SOFT, read_quantizers

DATASETS = ("auto", "cifar10", "patches", "folder")


class _Section:
    """A group of options, each checked by itself."""

    def __post_init__(self) -> None:
        for spec in fields(self):  # type: ignore[arg-type]
            if spec.metadata:
                check_option(spec, getattr(self, spec.name))


@dataclass(frozen=True)
class DataConfig(_Section):
    """The images of a run."""

    dataset: str = option(
        "auto",
        "Images; auto takes CIFAR-10 if it is available, otherwise patches.",
        choices=DATASETS,
    )
    data_dir: str | None = option(
        None, "Folder of the data; default $SOFTVQ_DATA, then data/. For folder: the images."
    )
    limit_train: int | None = option(None, "Use only the first N training images.", minimum=1)
    limit_test: int | None = option(
        None, "Use only the first N images of validation and test.", minimum=1
    )
    image_size: int = option(32, "Side of a folder's images, a multiple of 4.", minimum=8)
    augment: bool = option(True, "Flip and shift the training images.")


@dataclass(frozen=True)
class ModelConfig(_Section):
    """The network, and the sizes of its codebooks."""

    architecture: str = option(
        "vqvae",
        "One codebook or a stack of them; or VQ-VAE-2, a top level and one conditioned on it.",
        choices=("vqvae", "vqvae2"),
    )
    hidden_channels: int = option(128, "Width of the network.", minimum=2)
    residual_channels: int = option(64, "Width inside a residual block.", minimum=1)
    residual_blocks: int = option(2, "Residual blocks in encoder and decoder.", minimum=0)
    codebook_size: int = option(512, "K, number of codes.", minimum=1)
    codebook_dim: int = option(64, "D, channels of the latents.", minimum=1)
    levels: int | None = option(
        None,
        "Number of codebooks, each coding what those before left; default 1, vqvae2 has 2.",
        minimum=1,
    )
    level_pool: str | None = option(
        None, "Pooling factors of the levels, as 4,2,1; default all 1: residual quantisation."
    )
    level_sizes: str | None = option(
        None, "K of each level, as 64,256,512; default codebook_size for all."
    )
    level_dropout: float = option(
        0.0,
        "Share of images that train with the first levels only, so that prefixes are good.",
        minimum=0,
        maximum=0.99,
        only=OWN,
    )
    normalize_latents: bool = option(True, "Standardise the latents, channel by channel.")
    shared_scale: bool = option(
        False, "Divide all channels of the latents by one standard deviation, not each by its own."
    )

    @property
    def level_count(self) -> int:
        """Number of levels, with the default filled in."""
        return self.levels or (2 if self.architecture == "vqvae2" else 1)

    @property
    def codebook_sizes(self) -> list[int]:
        """K of each level."""
        return self.numbers("level_sizes") or [self.codebook_size] * self.level_count

    def numbers(self, name: str) -> list[int] | None:
        """Read a list such as 4,2,1.

        Args:
            name: The field that holds it: ``level_pool`` or ``level_sizes``.

        Raises:
            UserError: If it does not have a positive whole number for each level.
        """
        text = getattr(self, name)
        if text is None:
            return None
        parts = str(text).split(",")
        numbers = [int(part) for part in parts if part.strip().isdecimal()]
        if len(numbers) != len(parts) or len(parts) != self.level_count or min(numbers) < 1:
            raise UserError(
                f"{name} must be {self.level_count} positive whole numbers with commas between, "
                f"coarse level first, got {text!r}"
            )
        return numbers


@dataclass(frozen=True)
class QuantizerConfig(_Section):
    """The codebook: its class, the arguments given to it, its temperatures and its start.

    Example:
        >>> QuantizerConfig("vq", {"commitment": 0.5}).settings["commitment"]
        0.5
    """

    name: str = option(
        "ddcl-em", "Codebook; none is the floor.", choices=QUANTIZERS, flat="quantizer"
    )
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    temperature_mode: str = option(
        "codes",
        "What the schedule sets: T, T/T_c, or codes per token.",
        choices=("constant", "critical", "codes"),
        only=SOFT,
    )
    temperature_start: float | None = option(
        None,
        "First value of the schedule; default 3 codes or 0.02 T_c; T has none.",
        above=0,
        only=SOFT,
    )
    temperature_end: float | None = option(
        None,
        "Last value of the schedule; default 1.05 codes (ddcl: 1.3), 0.002 T_c, or the first T.",
        above=0,
        only=SOFT,
    )
    temperature_hold: float = option(
        0.5,
        "Share of the training that holds the first value.",
        minimum=0,
        maximum=1,
        only=SOFT,
    )
    temperature_until: float = option(
        0.9,
        "Share of the training at which the last value is reached.",
        minimum=0,
        maximum=1,
        only=SOFT,
    )
    init: str = option(
        "auto",
        "Where prototypes start: k-means of latents, or noise; auto is kmeans, for vq random.",
        choices=("auto", "kmeans", "random"),
        only=OWN,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_quantizer_options(self.name, dict(self.options))

    @property
    def settings(self) -> dict[str, Any]:
        """The constructor's arguments with its own defaults filled in."""
        own = read_quantizers()[self.name].options
        return {name: own[name].default for name in own} | dict(self.options)

    @property
    def kmeans_init(self) -> bool:
        """Whether prototypes start from latents."""
        # The textbook baseline gets none of the remedies.
        auto = self.name in OWN and self.name != "vq"
        return auto if self.init == "auto" else self.init == "kmeans"


@dataclass(frozen=True)
class OptimizerConfig(_Section):
    """The length of the training, its learning rates and its loss."""

    lr: float = option(2e-3, "Learning rate of encoder and decoder (Adam).", above=0)
    lr_schedule: str = option(
        "cosine",
        "Learning rates over the training: falling to zero as a half cosine, or constant.",
        choices=("cosine", "constant"),
    )
    epsilon: float | None = option(
        None,
        "Ratio of the encoder's to the prototypes' learning rate; default 0.03, for vq 1.",
        above=0,
        only=("ddcl", "vq"),
    )
    batch_size: int = option(128, "Images per step.", minimum=1)
    epochs: int = option(20, "Epochs to train, unless steps are given.", minimum=1)
    steps: int | None = option(None, "Steps to train, instead of epochs.", minimum=1)
    perceptual_weight: float = option(
        0.0, "Weight of LPIPS in the loss, beside the squared error.", minimum=0
    )
    lpips: str = option("squeeze", "Net of LPIPS.", choices=("squeeze", "alex", "vgg"))
    lpips_weights: str | None = option(
        None, "File of torchvision's weights of that net; downloaded by default."
    )


@dataclass(frozen=True)
class RunConfig(_Section):
    """Where and how a run takes place."""

    out: str | None = option(None, "Run folder; default runs/<quantizer>-<dataset>-<time>.")
    seed: int = option(0, "Seed of weights, order and augmentation.", minimum=0, maximum=2**32 - 1)
    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps.")
    precision: str = option("fp32", "Arithmetic of the network.", choices=("fp32", "bf16"))
    compile: bool = option(False, "Compile the model with torch.compile.")


SECTIONS: dict[str, type[Any]] = {
    "data": DataConfig,
    "model": ModelConfig,
    "quantizer": QuantizerConfig,
    "optimizer": OptimizerConfig,
    "run": RunConfig,
}


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
    def fields() -> dict[str, Field[Any]]:
        """The fields of all sections by their flat names, without the quantizer's own options."""
        sections = [fields(section) for section in SECTIONS.values()]
        return {flat_name(spec): spec for specs in sections for spec in specs if spec.metadata}

    @classmethod
    def kinds(cls) -> dict[str, type]:
        """The type of each option by its flat name, with those of all quantizers."""
        kinds = {n: KINDS[str(s.type).removesuffix(" | None")] for n, s in cls.fields().items()}
        return kinds | {n: o.kind for q in read_quantizers().values() for n, o in q.options.items()}

    @classmethod
    def from_options(cls, **flat: Any) -> TrainConfig:
        """Build a config from flat names.

        Args:
            flat: Options by the names of the command line. What is none of a section's fields is
                an argument of the quantizer's constructor; None stands for its default there.

        Raises:
            UserError: If a name is unknown, or a value is refused.
        """
        own = {n: v for n, v in flat.items() if n not in cls.fields() and v is not None}
        sections = {}
        for name, section in SECTIONS.items():
            specs = {flat_name(spec): spec for spec in fields(section) if spec.metadata}
            given = {spec.name: flat[flat_n] for flat_n, spec in specs.items() if flat_n in flat}
            sections[name] = section(**given, **({"options": own} if name == "quantizer" else {}))
        return cls(**sections)

    def options(self, *, defaults: bool = False) -> dict[str, Any]:
        """The options by flat names: every field, and the given arguments of the quantizer.

        Args:
            defaults: Whether to fill in the constructor's defaults for arguments not given.
        """
        flat = {}
        for name, section in SECTIONS.items():
            own = getattr(self, name)
            flat |= {flat_name(s): getattr(own, s.name) for s in fields(section) if s.metadata}
        return flat | dict(self.quantizer.settings if defaults else self.quantizer.options)

    def replace(self, **flat: Any) -> TrainConfig:
        """A config with other options, by flat names; another quantizer drops what it lacks."""
        kept = self.options()
        if "quantizer" in flat and flat["quantizer"] in QUANTIZERS:
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
        try:
            return cls.from_options(**flat)
        except TypeError as error:
            raise UserError(f"the saved config is damaged: {error}") from error

    @property
    def temperatures(self) -> tuple[float, float]:
        """First and last value of the schedule, with their defaults filled in.

        Raises:
            UserError: If a constant temperature was not given: it depends on the latents' scale.
        """
        quantizer, most = self.quantizer, max(self.model.codebook_sizes)
        start, end = quantizer.temperature_start, quantizer.temperature_end
        if quantizer.temperature_mode == "constant":
            if start is None:
                raise UserError(
                    "temperature_mode constant needs temperature_start, T in units of squared "
                    "distance; or choose codes or critical, which follow the latents"
                )
            return start, start if end is None else end
        last_codes = 1.3 if quantizer.name == "ddcl" else 1.05
        codes = (min(3.0, most), min(last_codes, most))
        first, last = {"codes": codes, "critical": (0.02, 0.002)}[quantizer.temperature_mode]
        return first if start is None else start, last if end is None else end

    @property
    def timescale_ratio(self) -> float:
        """Epsilon with its default filled in."""
        if self.optimizer.epsilon is not None:
            return self.optimizer.epsilon
        return 1.0 if self.quantizer.name == "vq" else 0.03

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
        copied = (
            "architecture", "level_dropout", "hidden_channels", "residual_channels",
            "residual_blocks", "normalize_latents", "shared_scale", "codebook_size",
            "codebook_dim",
        )  # fmt: skip
        return {
            **{name: getattr(model, name) for name in copied},
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


PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "hidden_channels": 64,
        "residual_channels": 32,
        "epochs": 5,
        "limit_train": 20_000,
        "limit_test": 2_000,
    },
}
