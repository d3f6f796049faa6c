"""ResNet-56 for CIFAR-10, as feature extractor: He et al., 2016, section 4.2."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional as F

from training.weights import fill, read_weights

OPTION = "--resnet56-weights"
FEATURES = 64
SIDE = 32
# Of ImageNet: what the public weights were trained with.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut without parameters (option A).

    Args:
        inputs: Channels in.
        channels: Channels out.
        stride: 1 or 2.
    """

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride = stride
        self.added = channels - inputs

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C', H / stride, W / stride)."""
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        half = self.added // 2
        return F.relu(out + F.pad(shortcut, (0, 0, 0, 0, half, self.added - half)))


class CIFARResNet(nn.Module):
    """ResNet of 6 n + 2 layers; ``forward`` returns the pooled features before the classifier.

    Args:
        depth: Layers, 6 n + 2.

    Example:
        >>> import torch
        >>> tuple(CIFARResNet(20).eval()(torch.rand(2, 3, 32, 32)).shape)
        (2, 64)
    """

    def __init__(self, depth: int = 56) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        blocks = (depth - 2) // 6
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks, stride=2)
        self.layer3 = _stage(32, FEATURES, blocks, stride=2)
        self.linear = nn.Linear(FEATURES, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Features.

        Args:
            images: (B, 3, 32, 32) in [0, 1].

        Returns:
            (B, 64).
        """
        shape = (1, 3, 1, 1)
        mean, std = (images.new_tensor(values).view(shape) for values in (_MEAN, _STD))
        x = F.relu(self.bn1(self.conv1((images - mean) / std)))
        features: Tensor = self.layer3(self.layer2(self.layer1(x))).mean(dim=(2, 3))  # (B, 64)
        return features


def load_resnet56(weights: Path) -> CIFARResNet:
    """The extractor of ``rfd_resnet56``, in eval mode.

    Args:
        weights: A state dict, its keys with or without ``module.``.

    Raises:
        WeightsError: If there is no such file, or it is of another network.
    """
    network = CIFARResNet(56).eval().requires_grad_(False)
    state = read_weights(weights, OPTION, "weights of a CIFAR-10 ResNet-56 with option A shortcuts")
    fill(network, state, OPTION, weights)
    return network


def _stage(inputs: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(inputs, channels, stride)
    return nn.Sequential(first, *(BasicBlock(channels, channels, 1) for _ in range(blocks - 1)))
