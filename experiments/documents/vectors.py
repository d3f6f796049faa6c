"""A linear encoder for documents: unit vectors, their leading principal axes, unit variance.

Shapes: N documents with M tokens in all, D the transformer's hidden size, d axes kept.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from training.errors import DatasetError

from .embeddings import TokenEmbeddings


class LinearEncoder(NamedTuple):
    """A frozen map of vectors onto d axes, fitted without labels.

    Attributes:
        center: The mean of the unit vectors that it was fitted on, float32 (D,).
        axes: Orthogonal axes of one length, float32 (D, d). That length gives the coordinates of
            the fitted vectors a mean variance of 1.
    """

    center: Tensor
    axes: Tensor

    def __call__(self, vectors: Tensor) -> Tensor:
        """Encode vectors (N, D) as float32 (N, d)."""
        return (normalize(vectors.float()) - self.center) @ self.axes


class Documents(NamedTuple):
    """What methods cluster: one split, embedded.

    Attributes:
        tokens: The vectors of all tokens.
        cls: The vector at each document's first place, BERT's CLS token, float32 (N, D).
        mean: The mean of each document's token vectors, float32 (N, D).
    """

    tokens: TokenEmbeddings
    cls: Tensor
    mean: Tensor


def documents(tokens: TokenEmbeddings) -> Documents:
    """Gather what methods cluster.

    Example:
        >>> e = TokenEmbeddings(torch.eye(3).half(), torch.arange(3), torch.tensor([1, 2]))
        >>> documents(e).cls.tolist(), documents(e).mean[1].tolist()
        ([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [0.0, 0.5, 0.5])
    """
    parts = tokens.tokens.split(tokens.lengths.tolist())
    cls = tokens.tokens[tokens.offsets[:-1]].float()
    return Documents(tokens, cls, torch.stack([part.float().mean(dim=0) for part in parts]))


def fit_encoder(vectors: Tensor, axes: int) -> LinearEncoder:
    """Fit principal components of unit vectors, scaled to unit mean variance.

    Args:
        vectors: (N, D) The document vectors, at least two.
        axes: The number of axes to keep, d. Fewer are kept where N or D are smaller.

    Raises:
        DatasetError: If all vectors point the same way.

    Example:
        >>> vectors = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
        >>> codes = fit_encoder(vectors, axes=4)(vectors)
        >>> tuple(codes.shape), round(codes.var(dim=0, correction=0).mean().item(), 4)
        ((50, 4), 1.0)
    """
    directions = normalize(vectors.float())
    center = directions.mean(dim=0)
    covariance = torch.cov((directions - center).double().mT, correction=0)  # (D, D)
    variances, vectors_ = torch.linalg.eigh(torch.atleast_2d(covariance))
    kept = min(axes, len(vectors) - 1, len(variances))
    scale = variances[-kept:].mean()
    if scale <= torch.finfo(torch.float32).eps:
        raise DatasetError(
            "the training documents cannot be told apart: all vectors point the same way"
        )
    # Largest first, and with a sign that does not depend on the machine.
    leading = vectors_[:, -kept:].flip(1)  # (D, d)
    leading = leading * leading.gather(0, leading.abs().argmax(dim=0)[None]).sign()
    return LinearEncoder(center, (leading / scale.sqrt()).float())
