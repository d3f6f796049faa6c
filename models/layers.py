"""Convolutional encoder and decoder: two stride-2 stages, residual blocks.

B, C, H, W: images; D, h, w: latents, h = H / 4 and w = W / 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

STRIDE = 4


class ResidualBlock(nn.Module):
    """ReLU, 3x3, ReLU, 1x1, plus the input; van den Oord et al., 2017, section 4.1.

    Args:
        channels: Number of channels of input and output.
        hidden_channels: Number of channels between the two convolutions.
    """

    def __init__(self, channels: int, hidden_channels: int) -> None:
        super().__init__()
        # Not in place: the block's input is also its shortcut.
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, hidden_channels, 3, padding=1, bias=False),
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden_channels, channels, 1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, h, w) to the same."""
        return x + self.layers(x)


@dataclass(frozen=True)
class NetworkShape:
    """Sizes that all networks of a model share.

    Args:
        hidden_channels: Width of the network; stages at the images' end have half of it.
        residual_channels: Width inside a residual block.
        residual_blocks: Number of residual blocks.
    """

    hidden_channels: int
    residual_channels: int
    residual_blocks: int

    def tail(self) -> list[nn.Module]:
        """Residual blocks and the ReLU that ends them, (B, hidden_channels, h, w) to the same."""
        sizes = self.hidden_channels, self.residual_channels
        return [*(ResidualBlock(*sizes) for _ in range(self.residual_blocks)), _relu()]


class Network(nn.Sequential):
    """Base of the networks: layers one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) to what the network says."""
        for layer in self:
            x = layer(x)
        return x


class ConvEncoder(Network):
    """Images (B, C, H, W) to latents (B, D, H/4, W/4).

    Args:
        in_channels: C.
        dim: D, channels of the latents.
        shape: Sizes of the network; the first stage has half of its width.

    Example:
        >>> import torch
        >>> tuple(ConvEncoder(3, 8, NetworkShape(16, 8, 1))(torch.zeros(2, 3, 32, 32)).shape)
        (2, 8, 8, 8)
    """

    def __init__(self, in_channels: int, dim: int, shape: NetworkShape) -> None:
        width = shape.hidden_channels
        super().__init__(
            _halving(in_channels, width // 2),  # H/2
            _relu(),
            _halving(width // 2, width),  # H/4
            _relu(),
            nn.Conv2d(width, width, 3, padding=1),
            *shape.tail(),
            nn.Conv2d(width, dim, 1),  # (B, D, H/4, W/4)
        )


class ConvDecoder(Network):
    """Latents (B, D, h, w) to images (B, C, 4h, 4w), not clamped.

    Args:
        out_channels: C.
        dim: D, channels of the latents.
        shape: Sizes of the network; the last stage has half of its width.

    Example:
        >>> import torch
        >>> tuple(ConvDecoder(3, 8, NetworkShape(16, 8, 1))(torch.zeros(2, 8, 8, 8)).shape)
        (2, 3, 32, 32)
    """

    def __init__(self, out_channels: int, dim: int, shape: NetworkShape) -> None:
        width = shape.hidden_channels
        super().__init__(
            nn.Conv2d(dim, width, 3, padding=1),
            *shape.tail(),
            _doubling(width, width // 2),
            _relu(),
            _doubling(width // 2, out_channels),
        )


class HalvingEncoder(Network):
    """Features (B, C, h, w) to latents of half the resolution (B, D, h/2, w/2).

    Args:
        in_channels: C.
        dim: D, channels of the latents.
        shape: Sizes of the network.
    """

    def __init__(self, in_channels: int, dim: int, shape: NetworkShape) -> None:
        width = shape.hidden_channels
        super().__init__(
            nn.ReLU(),  # not in place: the features go elsewhere, too
            _halving(in_channels, width),  # h/2
            *shape.tail(),
            nn.Conv2d(width, dim, 1),  # (B, D, h/2, w/2)
        )


class DoublingDecoder(Network):
    """Codes (B, D, h, w) to features of twice the resolution (B, C, 2h, 2w).

    Args:
        out_channels: C.
        dim: D, channels of the codes.
        shape: Sizes of the network.
    """

    def __init__(self, out_channels: int, dim: int, shape: NetworkShape) -> None:
        width = shape.hidden_channels
        super().__init__(
            nn.Conv2d(dim, width, 3, padding=1), *shape.tail(), _doubling(width, out_channels)
        )


def _relu() -> nn.Module:
    return nn.ReLU(inplace=True)


def _halving(channels: int, out_channels: int) -> nn.Module:
    return nn.Conv2d(channels, out_channels, 4, stride=2, padding=1)


def _doubling(channels: int, out_channels: int) -> nn.Module:
    return nn.ConvTranspose2d(channels, out_channels, 4, stride=2, padding=1)
