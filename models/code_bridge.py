"""CodeBridge: the projector that the quantizer ``vqp-bridge`` sends its codes through."""

from __future__ import annotations

from torch import Tensor, nn


class CodeBridge(nn.Module):
    """Codes that learn together: compressed in groups, attended to, and recovered.

    After VQBridge of FVQ (Chang et al., ICLR 2026, https://arxiv.org/abs/2509.10140): a few
    attention layers between the stored codes and those that quantise, so that each code's gradient
    moves all of them. The last layer starts at zero and its result is added to the stored codes,
    so that a start by k-means stands.

    Args:
        dim: D, the size of a code.
        codebook_size: K, the number of codes.
        width: The size of a group's vector between the layers.
        layers: The number of attention layers.

    Example:
        >>> import torch
        >>> codes = torch.randn(1, 12, 4)
        >>> torch.equal(CodeBridge(4, 12)(codes), codes)  # before it has learned
        True
    """

    def __init__(self, dim: int, codebook_size: int, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.group = max(g for g in (1, 2, 4) if codebook_size % g == 0)
        self.compress = nn.Linear(self.group * dim, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.process = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.recover = nn.Linear(width, self.group * dim)
        nn.init.zeros_(self.recover.weight)
        nn.init.zeros_(self.recover.bias)

    def forward(self, codes: Tensor) -> Tensor:
        """Project codes of (1, K, D)."""
        groups = codes.reshape(1, -1, self.compress.in_features)  # (1, K / group, group * D)
        return codes + self.recover(self.process(self.compress(groups))).view_as(codes)
