"""Convolutional encoder and decoder: two stride-2 stages, residual blocks.

B, C, H, W: images; D, h, w: latents, h = H / 4 and w = W / 4.
"""

from __future__ import annotations

from torch import Tensor, nn

STRIDE = 4


class ResidualBlock(nn.Module):
    """ReLU, 3x3, ReLU, 1x1, plus the input; van den Oord et al., 2017, section 4.1.

    Args:
        channels: Of input and output.
        hidden_channels: Between the two convolutions.
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


def residual_tail(channels: int, hidden_channels: int, count: int) -> list[nn.Module]:
    """Residual blocks and the ReLU that ends them, (B, channels, h, w) to the same.

    Args:
        channels: Of input and output.
        hidden_channels: Width inside a block.
        count: Number of blocks.
    """
    blocks = [ResidualBlock(channels, hidden_channels) for _ in range(count)]
    return [*blocks, nn.ReLU(inplace=True)]


class ConvEncoder(nn.Sequential):
    """Images (B, C, H, W) to latents (B, D, H/4, W/4).

    Args:
        in_channels: C.
        dim: D, channels of the latents.
        hidden_channels: Width of the network; the first stage has half of it.
        residual_channels: Width inside a residual block.
        residual_blocks: Number of blocks.

    Example:
        >>> import torch
        >>> tuple(ConvEncoder(3, 8, 16, 8, 1)(torch.zeros(2, 3, 32, 32)).shape)
        (2, 8, 8, 8)
    """

    def __init__(
        self,
        in_channels: int,
        dim: int,
        hidden_channels: int,
        residual_channels: int,
        residual_blocks: int,
    ) -> None:
        super().__init__(
            nn.Conv2d(in_channels, hidden_channels // 2, 4, stride=2, padding=1),  # H/2
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden_channels // 2, hidden_channels, 4, stride=2, padding=1),  # H/4
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden_channels, hidden_channels, 3, padding=1),
            *residual_tail(hidden_channels, residual_channels, residual_blocks),
            nn.Conv2d(hidden_channels, dim, 1),  # (B, D, H/4, W/4)
        )


class ConvDecoder(nn.Sequential):
    """Latents (B, D, h, w) to images (B, C, 4h, 4w), not clamped.

    Args:
        out_channels: C.
        dim: D, channels of the latents.
        hidden_channels: Width of the network; the last stage has half of it.
        residual_channels: Width inside a residual block.
        residual_blocks: Number of blocks.

    Example:
        >>> import torch
        >>> tuple(ConvDecoder(3, 8, 16, 8, 1)(torch.zeros(2, 8, 8, 8)).shape)
        (2, 3, 32, 32)
    """

    def __init__(
        self,
        out_channels: int,
        dim: int,
        hidden_channels: int,
        residual_channels: int,
        residual_blocks: int,
    ) -> None:
        super().__init__(
            nn.Conv2d(dim, hidden_channels, 3, padding=1),
            *residual_tail(hidden_channels, residual_channels, residual_blocks),
            nn.ConvTranspose2d(hidden_channels, hidden_channels // 2, 4, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(hidden_channels // 2, out_channels, 4, stride=2, padding=1),
        )


class HalvingEncoder(nn.Sequential):
    """Features (B, C, h, w) to latents of half the resolution (B, D, h/2, w/2).

    Args:
        in_channels: C.
        dim: D, channels of the latents.
        hidden_channels: Width of the network.
        residual_channels: Width inside a residual block.
        residual_blocks: Number of blocks.
    """

    def __init__(
        self,
        in_channels: int,
        dim: int,
        hidden_channels: int,
        residual_channels: int,
        residual_blocks: int,
    ) -> None:
        super().__init__(
            nn.ReLU(),  # not in place: the features go elsewhere, too
            nn.Conv2d(in_channels, hidden_channels, 4, stride=2, padding=1),  # h/2
            *residual_tail(hidden_channels, residual_channels, residual_blocks),
            nn.Conv2d(hidden_channels, dim, 1),  # (B, D, h/2, w/2)
        )


class DoublingDecoder(nn.Sequential):
    """Codes (B, D, h, w) to features of twice the resolution (B, C, 2h, 2w).

    Args:
        out_channels: C.
        dim: D, channels of the codes.
        hidden_channels: Width of the network.
        residual_channels: Width inside a residual block.
        residual_blocks: Number of blocks.
    """

    def __init__(
        self,
        out_channels: int,
        dim: int,
        hidden_channels: int,
        residual_channels: int,
        residual_blocks: int,
    ) -> None:
        super().__init__(
            nn.Conv2d(dim, hidden_channels, 3, padding=1),
            *residual_tail(hidden_channels, residual_channels, residual_blocks),
            nn.ConvTranspose2d(hidden_channels, out_channels, 4, stride=2, padding=1),
        )
