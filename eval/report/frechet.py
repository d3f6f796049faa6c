"""Fréchet distances between images and their reconstructions, in streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.resnet import BasicBlock

from training.weights import WeightsError, fetch_weights, fill, read_weights

INCEPTION_OPTION, RESNET_OPTION = "--inception-weights", "--resnet56-weights"
FEATURES, SIDE = 64, 32
# The mean and deviation of ImageNet, which the public weights were trained with.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Passed(nn.Identity):
    """Stands for an extractor where features come in ready, so that they are computed once.

    Args:
        num_features: D, which torchmetrics asks for.
    """

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features


class FrechetDistance:
    """Fréchet distance of features of N originals and N reconstructions, each kind of them.

    ``|m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2))``, by torchmetrics, float64; memory does not grow
    with N. At small N the distance is too large, by about c / N: :meth:`compute` gives that of
    every second pair beside it, and what it is larger by is about the bias that is left. Pairs
    share their sampling noise, so this is far less than between two sets of different images.

    Args:
        extractor: Takes images (B, C, H, W) in [0, 1] to features (B, D).
        num_features: D, the number of features.

    Example:
        >>> distance = FrechetDistance(lambda images: images.flatten(1), 4)
        >>> images = torch.rand(64, 1, 2, 2)
        >>> distance.update(images, {"argmax": images})
        >>> figures = distance.compute()
        >>> sorted(figures), abs(round(figures["argmax"], 5))
        (['argmax', 'argmax_half'], 0.0)
    """

    def __init__(self, extractor: Callable[[Tensor], Tensor], num_features: int) -> None:
        self.extractor = extractor
        self.num_features = num_features
        self._against: dict[str, Any] = {}
        self._seen = 0

    @torch.no_grad()
    def update(self, images: Tensor, recons: Mapping[str, Tensor]) -> None:
        """Count a batch.

        Args:
            images: (B, C, H, W) in [0, 1].
            recons: Their reconstructions, by name; the same names in every batch.
        """
        from torchmetrics.image.fid import FrechetInceptionDistance

        own = self.extractor(images)  # (B, D)
        even = (torch.arange(len(own), device=own.device) + self._seen) % 2 == 0
        self._seen += len(own)
        for name, recon in recons.items():
            features = self.extractor(recon)  # (B, D)
            for key, kept in ((name, slice(None)), (f"{name}_half", even)):
                if key not in self._against:
                    fresh = FrechetInceptionDistance(feature=Passed(self.num_features))
                    self._against[key] = fresh.to(own.device)
                metric = self._against[key]
                metric.update(own[kept], real=True)
                metric.update(features[kept], real=False)

    def compute(self) -> dict[str, float]:
        """The distance of each kind of reconstruction, and of every second pair, ``<name>_half``.

        Raises:
            WeightsError: If there were fewer than four images: a half needs two.
        """
        if self._seen < 4:
            raise WeightsError(f"a Fréchet distance needs at least 4 images, got {self._seen}")
        return {name: float(metric.compute()) for name, metric in self._against.items()}


class CIFARResNet(nn.Module):
    """ResNet of 6 n + 2 layers for CIFAR-10, without its classifier: He et al., 2016, section 4.2.

    Args:
        depth: Number of layers, 6 n + 2.

    Example:
        >>> tuple(CIFARResNet(20).eval()(torch.rand(2, 3, 32, 32)).shape)
        (2, 64)
    """

    def __init__(self, depth: int = 56) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        blocks = (depth - 2) // 6
        self.layer1 = _stage(16, 16, blocks)
        self.layer2 = _stage(16, 32, blocks)
        self.layer3 = _stage(32, FEATURES, blocks)
        self.linear = nn.Linear(FEATURES, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Pooled features (B, 64) of images (B, 3, 32, 32) in [0, 1]."""
        mean, std = (images.new_tensor(values).view(1, 3, 1, 1) for values in (_MEAN, _STD))
        x = F.relu(self.bn1(self.conv1((images - mean) / std)))
        features: Tensor = self.layer3(self.layer2(self.layer1(x))).mean(dim=(2, 3))  # (B, 64)
        return features


class _Shortcut(nn.Module):
    """Every second pixel, and zeros for the added channels: the paper's option A."""

    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[1] // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, half, half))


def _stage(inputs: int, channels: int, blocks: int) -> nn.Sequential:
    first = BasicBlock(inputs, channels)
    if inputs < channels:
        first = BasicBlock(inputs, channels, stride=2, downsample=_Shortcut())
    return nn.Sequential(first, *(BasicBlock(channels, channels) for _ in range(blocks - 1)))


def load_resnet56(weights: Path) -> CIFARResNet:
    """The extractor of ``rfd_resnet56``, in eval mode.

    Args:
        weights: A state dict, its keys with or without ``module.``.

    Raises:
        WeightsError: If there is no such file, or it is of another network.
    """
    network = CIFARResNet(56).eval().requires_grad_(False)
    what = "weights of a CIFAR-10 ResNet-56 with option A shortcuts"
    fill(network, read_weights(weights, RESNET_OPTION, what), RESNET_OPTION, weights)
    return network


def resnet56_distance(weights: Path, device: torch.device) -> FrechetDistance:
    """``rfd_resnet56``: on the 64 features of a CIFAR-10 classifier; it is no FID.

    Args:
        weights: As in :func:`load_resnet56`.
        device: The device of the images.

    Raises:
        WeightsError: As there, or, when it is updated, for images that are not 3 x 32 x 32.
    """
    # Channels last takes three quarters of the time on the CPU.
    network = load_resnet56(weights).to(device).to(memory_format=torch.channels_last)

    def extract(images: Tensor) -> Tensor:
        if images.shape[1:] != (3, SIDE, SIDE):
            raise WeightsError(
                f"rfd_resnet56 is of images of 3 x {SIDE} x {SIDE}, got "
                f"{' x '.join(map(str, images.shape[1:]))}: leave --resnet56-weights out"
            )
        features: Tensor = network(images)
        return features

    return FrechetDistance(extract, FEATURES)


def inception_distance(weights: Path | None, device: torch.device) -> FrechetDistance:
    """rFID: on the 2,048 features of the InceptionV3 that FID is defined by.

    Images are rounded to 8 bits and resized as in the original TensorFlow code, by torch-fidelity.

    Args:
        weights: A file of torch-fidelity's ``weights-inception-2015-12-05``; downloaded by default.
        device: The device of the images.

    Raises:
        WeightsError: If they cannot be had.
    """
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    what = "the InceptionV3 weights of FID, weights-inception-2015-12-05-6726825d.pth,"
    if weights is not None:
        read_weights(weights, INCEPTION_OPTION, what)  # as plain tensors, which the package is not
    path = None if weights is None else str(weights)

    def make() -> nn.Module:
        return FeatureExtractorInceptionV3(
            "inception-v3-compat", ["2048"], feature_extractor_weights_path=path
        )

    try:
        network = fetch_weights(make, INCEPTION_OPTION, what).to(device)
    except WeightsError as error:
        if weights is None:
            raise
        raise WeightsError(
            f"{INCEPTION_OPTION} {weights} is of another network; it should hold {what} of "
            "torch-fidelity"
        ) from error

    def extract(images: Tensor) -> Tensor:
        images = images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images
        pixels = images.mul(255).round().clamp(0, 255).to(torch.uint8)
        features: Tensor = network(pixels)[0]
        return features

    return FrechetDistance(extract, 2048)
