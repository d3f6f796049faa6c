"""A linear encoder for documents: unit vectors, their leading principal axes, unit variance.

Shapes: N documents with M tokens in all, D the transformer's hidden size, d axes kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.documents.embeddings import TokenEmbeddings, first_tokens, mean_tokens


class LinearEncoder(NamedTuple):
    """A frozen map of vectors onto d axes, fitted without labels.

    Attributes:
        center: float32 (D,), mean of the unit vectors that it was fitted on.
        axes: float32 (D, d), orthogonal, all of one length, chosen so that the mean variance of a
            fitted coordinate is 1.
    """

    center: Tensor
    axes: Tensor

    def __call__(self, vectors: np.ndarray | Tensor) -> Tensor:
        """Encode vectors: (N, D), float32 (N, d)."""
        return (unit(torch.as_tensor(vectors).float()) - self.center) @ self.axes


class Documents(NamedTuple):
    """What methods cluster: one split, embedded.

    Attributes:
        tokens: All its token vectors.
        cls: float32 (N, D), each document's vector at its first place.
        mean: float32 (N, D), each document's mean token.
    """

    tokens: TokenEmbeddings
    cls: np.ndarray
    mean: np.ndarray


def documents(tokens: TokenEmbeddings) -> Documents:
    """Gather what methods cluster.

    Example:
        >>> e = TokenEmbeddings(torch.eye(3).half(), torch.arange(3), torch.tensor([1, 2]))
        >>> documents(e).mean.tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]
    """
    return Documents(tokens, first_tokens(tokens), mean_tokens(tokens))


def unit(vectors: Tensor) -> Tensor:
    """Vectors (..., D) divided by their Euclidean length; zero stays zero.

    Example:
        >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    return torch.nn.functional.normalize(vectors, dim=-1)


def fit_encoder(vectors: np.ndarray, axes: int) -> LinearEncoder:
    """Principal components of unit vectors, scaled to unit mean variance.

    Args:
        vectors: (N, D) document vectors.
        axes: d; fewer are kept where N or D are smaller.

    Raises:
        ValueError: If there are fewer than two vectors, or all point the same way.

    Example:
        >>> vectors = np.random.default_rng(0).standard_normal((50, 8))
        >>> codes = fit_encoder(vectors, axes=4)(vectors)
        >>> tuple(codes.shape), round(codes.var(dim=0, correction=0).mean().item(), 4)
        ((50, 4), 1.0)
    """
    if len(vectors) < 2:
        raise ValueError(f"principal axes need at least two vectors, got {len(vectors)}")
    directions = unit(torch.as_tensor(vectors).float())
    center = directions.mean(dim=0)
    covariance = torch.cov((directions - center).double().mT, correction=0)  # (D, D)
    variances, vectors_ = torch.linalg.eigh(torch.atleast_2d(covariance))
    kept = min(axes, len(vectors) - 1, len(variances))
    scale = variances[-kept:].mean()
    if scale <= torch.finfo(torch.float32).eps:
        raise ValueError("all vectors point the same way: there are no axes to keep")
    # Largest first, and with a sign that does not depend on the machine.
    leading = vectors_[:, -kept:].flip(1)  # (D, d)
    leading = leading * leading.gather(0, leading.abs().argmax(dim=0)[None]).sign()
    return LinearEncoder(center, (leading / scale.sqrt()).float())
