"""The sections of a config: every option of a run, with its type, default, range and help."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import UserError
from .checks import check_quantizer_options
from .declaration import option, options_of
from .quantizers import OWN, QUANTIZERS, SOFT, read_quantizers

DATASETS = ("auto", "cifar10", "patches", "folder")
MODES = ("constant", "critical", "codes")


class _Section:
    """A group of options, each checked by itself."""

    def __post_init__(self) -> None:
        for name, own in options_of(type(self)).items():
            value = getattr(self, name)
            if value is not None:
                own.check(value)
            if own.path and value is not None:  # shells leave --out=~/runs as it is
                object.__setattr__(self, name, os.path.expanduser(value))


@dataclass(frozen=True)
class DataConfig(_Section):
    """The images of a run.

    Args:
        dataset: Images; auto takes CIFAR-10 if it is available, otherwise patches.
        data_dir: Folder of the data; default $SOFTVQ_DATA, then data/. For folder: the images.
        limit_train: Use only the first N training images.
        limit_test: Use only the first N images of validation and test.
        image_size: Side of a folder's images, a multiple of 4.
        skip_bad: Leave out files of a folder that cannot be read, and list them.
        augment: Flip and shift the training images.
    """

    dataset: str = option("auto", choices=DATASETS)
    data_dir: str | None = option(None, path=True)
    limit_train: int | None = option(None, minimum=1)
    limit_test: int | None = option(None, minimum=1)
    image_size: int = option(32, minimum=8)
    skip_bad: bool = False
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

    architecture: str = option("vqvae", choices=("vqvae", "vqvae2"))
    hidden_channels: int = option(128, minimum=2)
    residual_channels: int = option(64, minimum=1)
    residual_blocks: int = option(2, minimum=0)
    codebook_size: int = option(512, minimum=1)
    codebook_dim: int = option(64, minimum=1)
    levels: int | None = option(None, minimum=1)
    level_pool: str | None = None
    level_sizes: str | None = None
    level_dropout: float = option(0.0, minimum=0, maximum=0.99, only=OWN)
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
        temperature_end: Last value of the schedule; default 1.05 codes, 0.002 T_c, or
            the first T.
        temperature_hold: Share of the training that holds the first value.
        temperature_until: Share of the training at which the last value is reached.
        init: Where prototypes start: k-means of latents, or noise; auto is kmeans, for vq random.

    Example:
        >>> QuantizerConfig("vq", {"commitment": 0.5}).settings["commitment"]
        0.5
    """

    name: str = option("ddcl-em", name="quantizer", choices=QUANTIZERS)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    temperature_mode: str = option("codes", choices=MODES, only=SOFT)
    temperature_start: float | None = option(None, above=0, only=SOFT)
    temperature_end: float | None = option(None, above=0, only=SOFT)
    temperature_hold: float = option(0.5, minimum=0, maximum=1, only=SOFT)
    temperature_until: float = option(0.9, minimum=0, maximum=1, only=SOFT)
    init: str = option("auto", choices=("auto", "kmeans", "random"), only=OWN)

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
        epsilon: Ratio of the encoder's to the prototypes' learning rate; default 1, with pull 0
            0.03.
        batch_size: Images per step.
        epochs: Epochs to train, unless steps are given.
        steps: Steps to train, instead of epochs.
        perceptual_weight: Weight of LPIPS in the loss, beside the squared error.
        lpips: Net of LPIPS.
        lpips_weights: File of torchvision's weights of that net; downloaded by default.
    """

    lr: float = option(2e-3, above=0)
    lr_schedule: str = option("cosine", choices=("cosine", "constant"))
    epsilon: float | None = option(None, above=0, only=("ddcl", "vq"))
    batch_size: int = option(128, minimum=1)
    epochs: int = option(20, minimum=1)
    steps: int | None = option(None, minimum=1)
    perceptual_weight: float = option(0.0, minimum=0)
    lpips: str = option("squeeze", choices=("squeeze", "alex", "vgg"))
    lpips_weights: str | None = option(None, path=True)


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

    out: str | None = option(None, path=True)
    seed: int = option(0, minimum=0, maximum=2**32 - 1)
    device: str = "auto"
    precision: str = option("fp32", choices=("fp32", "bf16"))
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
