"""The sections of a config: every option of a run, with its type, default, range and help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from ..errors import UserError
from .checks import check_quantizer_options
from .declaration import Choices, Flat, For, Range, options_of
from .quantizers import OWN, QUANTIZERS, SOFT, read_quantizers

DATASETS = ("auto", "cifar10", "patches", "folder")
MODES = ("constant", "critical", "codes")
Count = Annotated[int, Range(1)]
Positive = Annotated[float, Range(above=0)]
Weight = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]


class _Section:
    """A group of options, each checked by itself."""

    def __post_init__(self) -> None:
        for name, option in options_of(type(self)).items():
            value = getattr(self, name)
            if value is not None:
                option.check(value)


@dataclass(frozen=True)
class DataConfig(_Section):
    """The images of a run.

    Args:
        dataset: Images; auto takes CIFAR-10 if it is available, otherwise patches.
        data_dir: Folder of the data; default $SOFTVQ_DATA, then data/. For folder: the images.
        limit_train: Use only the first N training images.
        limit_test: Use only the first N images of validation and test.
        image_size: Side of a folder's images, a multiple of 4.
        augment: Flip and shift the training images.
    """

    dataset: Annotated[str, Choices(DATASETS)] = "auto"
    data_dir: str | None = None
    limit_train: Count | None = None
    limit_test: Count | None = None
    image_size: Annotated[int, Range(8)] = 32
    augment: bool = True


@dataclass(frozen=True)
class ModelConfig(_Section):
    """The network, and the sizes of its codebooks.

    Args:
        architecture: One codebook or a stack of them; or VQ-VAE-2, a top level and one conditioned
            on it.
        hidden_channels: Width of the network.
        residual_channels: Width inside a residual block.
        residual_blocks: Residual blocks in encoder and decoder.
        codebook_size: K, number of codes.
        codebook_dim: D, channels of the latents.
        levels: Number of codebooks, each coding what those before left; default 1, vqvae2 has 2.
        level_pool: Pooling factors of the levels, as 4,2,1; default all 1: residual quantisation.
        level_sizes: K of each level, as 64,256,512; default codebook_size for all.
        level_dropout: Share of images that train with the first levels only, so that prefixes are
            good.
        normalize_latents: Standardise the latents, channel by channel.
        shared_scale: Divide all channels of the latents by one standard deviation, not each by its
            own.
    """

    architecture: Annotated[str, Choices(("vqvae", "vqvae2"))] = "vqvae"
    hidden_channels: Annotated[int, Range(2)] = 128
    residual_channels: Count = 64
    residual_blocks: Annotated[int, Range(0)] = 2
    codebook_size: Count = 512
    codebook_dim: Count = 64
    levels: Count | None = None
    level_pool: str | None = None
    level_sizes: str | None = None
    level_dropout: Annotated[float, Range(0, 0.99), For(OWN)] = 0.0
    normalize_latents: bool = True
    shared_scale: bool = False

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

    Args:
        name: Codebook; none is the floor.
        options: The arguments of the codebook's constructor that were given.
        temperature_mode: What the schedule sets: T, T/T_c, or codes per token.
        temperature_start: First value of the schedule; default 3 codes or 0.02 T_c; T has none.
        temperature_end: Last value of the schedule; default 1.05 codes (ddcl: 1.3), 0.002 T_c, or
            the first T.
        temperature_hold: Share of the training that holds the first value.
        temperature_until: Share of the training at which the last value is reached.
        init: Where prototypes start: k-means of latents, or noise; auto is kmeans, for vq random.

    Example:
        >>> QuantizerConfig("vq", {"commitment": 0.5}).settings["commitment"]
        0.5
    """

    name: Annotated[str, Choices(QUANTIZERS), Flat("quantizer")] = "ddcl-em"
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    temperature_mode: Annotated[str, Choices(MODES), For(SOFT)] = "codes"
    temperature_start: Annotated[Positive | None, For(SOFT)] = None
    temperature_end: Annotated[Positive | None, For(SOFT)] = None
    temperature_hold: Annotated[Share, For(SOFT)] = 0.5
    temperature_until: Annotated[Share, For(SOFT)] = 0.9
    init: Annotated[str, Choices(("auto", "kmeans", "random")), For(OWN)] = "auto"

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
    """The length of the training, its learning rates and its loss.

    Args:
        lr: Learning rate of encoder and decoder (Adam).
        lr_schedule: Learning rates over the training: falling to zero as a half cosine, or
            constant.
        epsilon: Ratio of the encoder's to the prototypes' learning rate; default 0.03, for vq 1.
        batch_size: Images per step.
        epochs: Epochs to train, unless steps are given.
        steps: Steps to train, instead of epochs.
        perceptual_weight: Weight of LPIPS in the loss, beside the squared error.
        lpips: Net of LPIPS.
        lpips_weights: File of torchvision's weights of that net; downloaded by default.
    """

    lr: Positive = 2e-3
    lr_schedule: Annotated[str, Choices(("cosine", "constant"))] = "cosine"
    epsilon: Annotated[Positive | None, For(("ddcl", "vq"))] = None
    batch_size: Count = 128
    epochs: Count = 20
    steps: Count | None = None
    perceptual_weight: Weight = 0.0
    lpips: Annotated[str, Choices(("squeeze", "alex", "vgg"))] = "squeeze"
    lpips_weights: str | None = None


@dataclass(frozen=True)
class RunConfig(_Section):
    """Where and how a run takes place.

    Args:
        out: Run folder; default runs/<quantizer>-<dataset>-<time>.
        seed: Seed of weights, order and augmentation.
        device: auto, cpu, cuda, cuda:N or mps.
        precision: Arithmetic of the network.
        compile: Compile the model with torch.compile.
    """

    out: str | None = None
    seed: Annotated[int, Range(0, 2**32 - 1)] = 0
    device: str = "auto"
    precision: Annotated[str, Choices(("fp32", "bf16"))] = "fp32"
    compile: bool = False


SECTIONS: dict[str, type[Any]] = {
    "data": DataConfig,
    "model": ModelConfig,
    "quantizer": QuantizerConfig,
    "optimizer": OptimizerConfig,
    "run": RunConfig,
}
# By section and field.
OPTIONS = {name: options_of(section) for name, section in SECTIONS.items()}
