"""TrainConfig: every option of a run, with its default, range and help. Imports nothing heavy."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from .errors import UserError
from .options import OWN, QUANTIZERS, check_option, check_together, option

RECIPES = ("tokens", "paper")
DATASETS = ("auto", "cifar10", "patches", "folder")


@dataclass(frozen=True)
class TrainConfig:
    """Options of a run; each field is an option of ``train.py``.

    Raises:
        UserError: If a value is out of range, or two do not go together.

    Example:
        >>> TrainConfig(quantizer="vq", epochs=3).codebook_size
        512
    """

    quantizer: str = option("ddcl", "Codebook; none is the floor.", choices=QUANTIZERS)
    recipe: str = option(
        "tokens",
        "ddcl: prototypes by soft EM and a straight-through encoder, for the best tokens; or the "
        "paper's, differentiable in every part.",
        choices=RECIPES,
        only=("ddcl",),
    )
    dataset: str = option(
        "auto",
        "Images; auto is cifar10, or patches when it is not to be had.",
        choices=DATASETS,
    )
    data_dir: str | None = option(
        None, "Folder of the data; default $SOFTVQ_DATA, then data/. For folder: the images."
    )
    out: str | None = option(None, "Run folder; default runs/<quantizer>-<dataset>-<time>.")
    seed: int = option(0, "Seed of weights, order and augmentation.", minimum=0, maximum=2**32 - 1)
    epochs: int = option(20, "Epochs to train, unless steps are given.", minimum=1)
    steps: int | None = option(None, "Steps to train, instead of epochs.", minimum=1)
    batch_size: int = option(128, "Images per step.", minimum=1)
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
    limit_train: int | None = option(None, "Use only the first N training images.", minimum=1)
    limit_test: int | None = option(
        None, "Use only the first N images of validation and test.", minimum=1
    )
    image_size: int = option(32, "Side of a folder's images, a multiple of 4.", minimum=8)
    augment: bool = option(True, "Flip and shift the training images.")
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
        None, "Codebooks, each coding what those before left; default 1, vqvae2 has 2.", minimum=1
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
    init: str = option(
        "auto",
        "Where prototypes start: k-means of latents, or noise; auto is kmeans, for vq random.",
        choices=("auto", "kmeans", "random"),
        only=OWN,
    )
    commitment: float | None = option(
        None,
        "Weight of L_q (ddcl), or of the commitment term (vq, vq-ema); default 0.25, for ddcl's "
        "tokens 0.1.",
        minimum=0,
        only=OWN,
    )
    perceptual_weight: float = option(
        0.0, "Weight of LPIPS in the loss, beside the squared error.", minimum=0
    )
    lpips: str = option("squeeze", "Net of LPIPS.", choices=("squeeze", "alex", "vgg"))
    lpips_weights: str | None = option(
        None, "File of torchvision's weights of that net; downloaded by default."
    )
    usage_weight: float | None = option(
        None,
        "ddcl: weight of the KL divergence of usage from uniform; default 0, for paper 0.05.",
        minimum=0,
        only=("ddcl",),
    )
    balance: float | None = option(
        None,
        "ddcl's tokens: how much rarely used codes are favoured where prototypes learn; default "
        "0.3.",
        minimum=0,
        maximum=1,
        only=("ddcl",),
    )
    temperature_mode: str = option(
        "codes",
        "ddcl: what the schedule sets: T, T/T_c, or codes per token.",
        choices=("constant", "critical", "codes"),
        only=("ddcl",),
    )
    temperature_start: float | None = option(
        None,
        "ddcl: first value of the schedule; default 3 codes or 0.02 T_c; T has none.",
        above=0,
        only=("ddcl",),
    )
    temperature_end: float | None = option(
        None,
        "ddcl: last value of the schedule; default 1.05 codes (paper: 1.3), 0.002 T_c, or the "
        "first T.",
        above=0,
        only=("ddcl",),
    )
    temperature_hold: float = option(
        0.5,
        "ddcl: share of the training that holds the first value.",
        minimum=0,
        maximum=1,
        only=("ddcl",),
    )
    temperature_until: float = option(
        0.9,
        "ddcl: share of the training at which the last value is reached.",
        minimum=0,
        maximum=1,
        only=("ddcl",),
    )
    decay: float = option(
        0.99,
        "vq, vq-ema: decay of the moving averages.",
        minimum=0,
        maximum=0.999999,
        only=("vq", "vq-ema"),
    )
    restart_threshold: float | None = option(
        None,
        "Restart codes used below this share of the mean, 0 never; "
        "default 0.02, for vq-ema 0.1, for vq 0.",
        minimum=0,
        maximum=0.99,
        only=OWN,
    )
    precision: str = option("fp32", "Arithmetic of the network.", choices=("fp32", "bf16"))
    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps.")
    compile: bool = option(False, "Compile the model with torch.compile.")

    def __post_init__(self) -> None:
        for spec in fields(self):
            check_option(spec, getattr(self, spec.name))
        check_together(self)

    @property
    def level_count(self) -> int:
        """Levels, with their default filled in."""
        return self.levels or (2 if self.architecture == "vqvae2" else 1)

    @property
    def codebook_sizes(self) -> list[int]:
        """K of each level."""
        return self.numbers("level_sizes") or [self.codebook_size] * self.level_count

    def numbers(self, name: str) -> list[int] | None:
        """A list as 4,2,1.

        Raises:
            UserError: If it is not of a positive whole number for each level.
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

    @property
    def temperatures(self) -> tuple[float, float]:
        """First and last value of the schedule, with their defaults filled in.

        Raises:
            UserError: If a constant temperature was not given: it depends on the latents' scale.
        """
        most = max(self.codebook_sizes)
        codes = (min(3.0, most), min(1.05 if self.recipe == "tokens" else 1.3, most))
        defaults = {"codes": codes, "critical": (0.02, 0.002)}
        start, end = self.temperature_start, self.temperature_end
        if self.temperature_mode == "constant":
            if start is None:
                raise UserError(
                    "temperature_mode constant needs temperature_start, T in units of squared "
                    "distance; or choose codes or critical, which follow the latents"
                )
            return start, start if end is None else end
        first, last = defaults[self.temperature_mode]
        return first if start is None else start, last if end is None else end

    def to_json(self) -> str:
        """The fields as a JSON object."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @property
    def kmeans_init(self) -> bool:
        """Whether prototypes start from latents."""
        if self.init == "auto":
            return self.quantizer in ("ddcl", "vq-ema")
        return self.init == "kmeans"

    @property
    def loss_weights(self) -> tuple[float, float]:
        """Weights of L_q or commitment, and of the usage's divergence, with their defaults."""
        tokens = self.quantizer == "ddcl" and self.recipe == "tokens"
        defaults = (0.1, 0.0) if tokens else (0.25, 0.05)
        commitment = defaults[0] if self.commitment is None else self.commitment
        usage = defaults[1] if self.usage_weight is None else self.usage_weight
        return commitment, usage

    @property
    def usage_balance(self) -> float:
        """Balance of soft EM with its default filled in."""
        tokens = self.quantizer == "ddcl" and self.recipe == "tokens"
        return (0.3 if tokens else 0.0) if self.balance is None else self.balance

    @property
    def timescale_ratio(self) -> float:
        """Epsilon with its default filled in."""
        if self.epsilon is not None:
            return self.epsilon
        return 1.0 if self.quantizer == "vq" else 0.03

    @property
    def restarts_below(self) -> float:
        """The restart threshold with its default filled in."""
        if self.restart_threshold is not None:
            return self.restart_threshold
        return {"ddcl": 0.02, "vq-ema": 0.1}.get(self.quantizer, 0.0)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """A config from saved fields.

        Raises:
            UserError: If a name is unknown: the run is of another version.
        """
        unknown = sorted(set(values) - {spec.name for spec in fields(cls)})
        if unknown:
            raise UserError(
                f"the saved config has options this version does not know: {', '.join(unknown)}"
            )
        try:
            return cls(**values)
        except TypeError as error:
            raise UserError(f"the saved config is damaged: {error}") from error

    def model_config(self, total_steps: int) -> dict[str, Any]:
        """The dict that :func:`models.build_model` takes."""
        pools = None
        if self.level_count > 1 and self.architecture == "vqvae":
            pools = self.numbers("level_pool") or [1] * self.level_count
        soft = "ddcl-em" if self.recipe == "tokens" else "ddcl"
        commitment, usage_weight = self.loss_weights
        scheduled = total_steps if self.quantizer == "ddcl" else 0
        start, end = self.temperatures if scheduled else (1.0, 1.0)
        return {
            "architecture": self.architecture,
            "level_pools": pools,
            "level_sizes": self.numbers("level_sizes"),
            "level_dropout": self.level_dropout,
            "hidden_channels": self.hidden_channels,
            "residual_channels": self.residual_channels,
            "residual_blocks": self.residual_blocks,
            "normalize_latents": self.normalize_latents,
            "shared_scale": self.shared_scale,
            "quantizer": soft if self.quantizer == "ddcl" else self.quantizer,
            "codebook_size": self.codebook_size,
            "codebook_dim": self.codebook_dim,
            "commitment": commitment,
            "usage_weight": usage_weight,
            "balance": self.usage_balance,
            "temperature_mode": self.temperature_mode,
            "temperature_start": start,
            "temperature_end": end,
            "temperature_hold_steps": round(self.temperature_hold * scheduled),
            "temperature_steps": round(self.temperature_until * scheduled),
            "decay": self.decay,
            "restart_threshold": self.restarts_below,
            "seed": self.seed,
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
