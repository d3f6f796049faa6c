"""LPIPS, the perceptual distance, as a loss and as a measure."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config.sections import OptimizerConfig
from .weights import WeightsError, fetch_weights, fill, read_weights

# By torchvision's names of the networks.
_TORCHVISION = {"squeeze": "squeezenet1_1", "alex": "alexnet", "vgg": "vgg16"}
NETS = tuple(_TORCHVISION)
# The smallest side on which no pooling of the network runs dry.
_SMALLEST = {"squeeze": 17, "alex": 31, "vgg": 16}
OPTION = "--lpips-weights"


def data_variance(images: Tensor) -> float:
    """Mean variance of the channels, the unit of a run's losses.

    A weight then means the same for all data.

    Args:
        images: uint8 (N, C, H, W).

    Returns:
        A number of at least 1e-6, since images of one flat colour have no variance.
    """
    # Counts of the 256 values: as floats the images would fill the memory.
    counts = torch.zeros(images.shape[1], 256, dtype=torch.float64)
    for part in images.split(1024):
        for own, channel in zip(counts, part.unbind(1), strict=True):
            own += torch.bincount(channel.flatten(), minlength=256)
    values = torch.arange(256, dtype=torch.float64) / 255
    total = counts.sum(dim=1, keepdim=True)  # (C, 1)
    offsets = values - (counts * values).sum(dim=1, keepdim=True) / total  # (C, 256)
    squares = (counts * offsets.square()).sum(dim=1)
    return max(float((squares / (total[:, 0] - 1).clamp_min(1)).mean()), 1e-6)


def perceptual_loss(options: OptimizerConfig, images: Tensor) -> PerceptualDistance | None:
    """LPIPS where a run wants it in its loss, else None.

    Args:
        options: The weight of LPIPS, its net, and the file of its weights.
        images: uint8 (N, C, H, W), at least one training image, on the device of training.

    Raises:
        WeightsError: If its weights cannot be had, or the images are too small for it.
    """
    if not options.perceptual_weight:
        return None
    weights = Path(options.lpips_weights) if options.lpips_weights else None
    distance = PerceptualDistance(options.lpips, weights).to(images.device)
    distance(*[images[:1].float() / 255] * 2)  # too small images are told now
    return distance


class PerceptualDistance(nn.Module):
    """LPIPS of image pairs: Zhang et al., 2018, https://arxiv.org/abs/1801.03924.

    By the ``lpips`` package, version 0.1 of its linear layers, which come with the package; the
    ImageNet features below them are torchvision's. Images in [0, 1] are scaled to [-1, 1], as the
    package wants them, grey ones repeated to three channels. The network is frozen and in eval
    mode; the distance has a gradient to both images.

    Args:
        net: ``"squeeze"``, ``"alex"`` or ``"vgg"``: values of different nets do not compare.
        weights: A file with torchvision's weights of that net, whole or of ``.features`` alone;
            downloaded by default.
        resize: Side to which images are scaled first (bilinear, antialiased); as they are by
            default. Values of different sizes do not compare either.

    Raises:
        WeightsError: If the weights cannot be had.
        ValueError: If the net is unknown.
    """

    def __init__(
        self, net: str = "squeeze", weights: Path | None = None, resize: int | None = None
    ) -> None:
        super().__init__()
        if net not in NETS:
            raise ValueError(f"net must be one of {', '.join(NETS)}, got {net!r}")
        self.net = net
        self.resize = resize
        self.network = _package(net)
        tower = self.network.net
        what = f"torchvision's weights of {_TORCHVISION[net]}"
        if weights is None:
            found = fetch_weights(lambda: _downloaded(net), OPTION, what)
        else:
            found = read_weights(weights, OPTION, what)
        fill(tower, _in_slices(tower, found), OPTION, weights or "torchvision's")
        self.requires_grad_(False)

    def train(self, mode: bool = True) -> PerceptualDistance:
        """Stays in eval mode."""
        return super().train(False)

    def forward(self, recon: Tensor, images: Tensor) -> Tensor:
        """LPIPS of each pair.

        Args:
            recon: (B, 3 or 1, H, W) in [0, 1].
            images: Likewise.

        Returns:
            (B,), not negative.

        Raises:
            WeightsError: If the images are too small for the net.
        """
        recon, images = (self._prepared(part) for part in (recon, images))
        if min(images.shape[2:]) < _SMALLEST[self.net]:
            raise WeightsError(
                f"LPIPS {self.net} needs images of at least {_SMALLEST[self.net]} pixels, got "
                f"{tuple(images.shape[2:])}: give --lpips-resize 64"
            )
        distance: Tensor = self.network(recon, images, normalize=True)  # (B, 1, 1, 1)
        return distance.flatten()

    def _prepared(self, images: Tensor) -> Tensor:
        images = images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images
        if self.resize is None:
            return images
        return F.interpolate(images, size=(self.resize,) * 2, mode="bilinear", antialias=True)

    @property
    def definition(self) -> str:
        """What it measures, in words."""
        size = "as they are" if self.resize is None else f"resized to {self.resize} (bilinear)"
        return (
            f"LPIPS v0.1, net {self.net}, images {size}, scaled to [-1, 1], mean over images; "
            "lower is better"
        )


def _package(net: str) -> Any:
    """The package's network, with trained linear layers on random features."""
    try:
        import lpips
    except ImportError as error:
        raise WeightsError('LPIPS needs the lpips package: pip install -e ".[train]"') from error
    with warnings.catch_warnings():
        # It calls torchvision and torch by names that both would rather forget.
        warnings.simplefilter("ignore")
        return lpips.LPIPS(net=net, pnet_rand=True, verbose=False)


def _downloaded(net: str) -> dict[str, Tensor]:
    from torchvision import models

    chosen: Any = models.get_model_weights(_TORCHVISION[net])
    found: dict[str, Tensor]
    found = chosen.IMAGENET1K_V1.get_state_dict(progress=False, check_hash=True)
    return found


def _in_slices(tower: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights by the names of the package, which cuts the features into slices.

    ``3.bias`` of torchvision's features is ``slice2.3.bias`` there; what is left of a whole
    classifier is left out, a name that is missing is for :func:`fill` to tell.
    """
    features = {name.removeprefix("features."): value for name, value in weights.items()}
    plain = {name: name.split(".", 1)[1] for name in tower.state_dict()}
    return {name: features[old] for name, old in plain.items() if old in features}
