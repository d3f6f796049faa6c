"""What a document consists of: its tokens' assignments to prototypes, and their means.

Pure functions of a codebook and documents (B, T, D), B of them with T tokens each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..codebooks.interface import vectors_last
from ..codebooks.soft import SoftCodebook
from ..functional import assignment, compute_dtype

# A prototype whose total assignment in a document is below this counts as unused there.
_NO_MASS = 1e-12


def assignments(codebook: SoftCodebook, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """Assignment of every token of every document to every prototype.

    Args:
        codebook: Its prototypes and temperature.
        tokens: (B, T, D).
        mask: bool (B, T), False for padding, or None.

    Returns:
        (B, T, K), float32 or better; rows sum to one, or are zero for padding.

    Example:
        >>> from softvq import DDCLCodebook
        >>> q = assignments(DDCLCodebook(4, 8), torch.randn(2, 5, 4))
        >>> tuple(q.shape), round(q.sum().item(), 4)
        ((2, 5, 8), 10.0)
    """
    checked_documents(tokens, mask, codebook.dim)
    dtype = compute_dtype(tokens, codebook.codebook)
    # Half-precision softmax over squared distances loses the nearest prototypes.
    with torch.autocast(tokens.device.type, enabled=False):
        z = _real(tokens, mask).to(dtype)
        prototypes, temperature = codebook.codebook.to(dtype), codebook.temperature.to(dtype)
        q = assignment(z.flatten(0, 1), prototypes, temperature)
        q = q.unflatten(0, tokens.shape[:2])  # (B, T, K)
    return q if mask is None else torch.where(mask[..., None], q, 0.0)


def proportions(codebook: SoftCodebook, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """Share of each prototype in each document: the mean assignment of its tokens.

    Args:
        codebook: Its prototypes and temperature.
        tokens: (B, T, D).
        mask: bool (B, T), False for padding, or None.

    Returns:
        (B, K), not negative, rows sum to one, or to zero where all is padding.

    Example:
        >>> from softvq import DDCLCodebook
        >>> parts = proportions(DDCLCodebook(4, 8), torch.randn(2, 5, 4))
        >>> tuple(parts.shape), round(parts.sum().item(), 4)
        ((2, 8), 2.0)
    """
    return shares(codebook, tokens, mask)[0]


def shares(
    codebook: SoftCodebook, tokens: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Proportions, and each document's own mean at every prototype.

    Args:
        codebook: Its prototypes and temperature.
        tokens: (B, T, D).
        mask: bool (B, T), False for padding, or None.

    Returns:
        (B, K) as :func:`proportions`, and (B, K, D), zero where a prototype has no token: less than
        1e-12 of one.

    Example:
        >>> from softvq import DDCLCodebook
        >>> parts, means = shares(DDCLCodebook(4, 8), torch.randn(2, 5, 4))
        >>> tuple(parts.shape), tuple(means.shape)
        ((2, 8), (2, 8, 4))
    """
    q = assignments(codebook, tokens, mask)
    with torch.autocast(tokens.device.type, enabled=False):
        z = _real(tokens, mask).to(q.dtype)
        mass = q.sum(dim=1)  # (B, K)
        # Weights first, so that the mean of little mass lies among the tokens like any other; a
        # prototype without a token has a mean of zero, not of rounding over rounding.
        weights = q / mass.clamp_min(_NO_MASS)[:, None]  # (B, T, K)
        weights = torch.where((mass > _NO_MASS)[:, None], weights, 0.0)
        means = torch.einsum("btk,btd->bkd", weights, z)
        return mass / mass.sum(dim=1, keepdim=True).clamp_min(1e-6), means


def mean_token(tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean of each document's tokens.

    Args:
        tokens: (B, T, D).
        mask: bool (B, T), False for padding, or None.

    Returns:
        (B, D), zero for a document of padding only.

    Example:
        >>> mean_token(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]]))
        tensor([[2.]])
    """
    if mask is None:
        return tokens.mean(dim=1)
    counts = mask.sum(dim=1, keepdim=True).clamp_min(1).to(tokens.dtype)  # (B, 1)
    return _real(tokens, mask).sum(dim=1) / counts


def checked_documents(tokens: Tensor, mask: Tensor | None, dim: int) -> None:
    """Refuse what is not a batch of documents.

    Args:
        tokens: (B, T, D), T at least 1.
        mask: bool (B, T), or None.
        dim: D.

    Raises:
        ValueError: If a shape does not fit.
        TypeError: If a dtype does not fit.
    """
    if tokens.dim() != 3 or tokens.shape[1] < 1:
        raise ValueError(
            "documents must be (B, T, D) with at least one token each, got shape "
            f"{tuple(tokens.shape)}; give a single document a batch axis, tokens[None]"
        )
    vectors_last(tokens, mask, dim, channel_first=False)


def _real(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Tokens, zero where there is padding."""
    return tokens if mask is None else torch.where(mask[..., None], tokens, 0.0)
