"""Latents and prototypes in the plane of the latents' two largest variances."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from softvq.functional import latent_covariance

from .layout import new_figure
from .sample import LevelSample, evenly

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LATENTS = 4_000
MAX_PROTOTYPES = 2_048


class PrincipalPlane(NamedTuple):
    """Principal components.

    Attributes:
        mean: (D,) float64.
        axes: (M, D) float64, orthonormal, of falling variance; the largest component of each is
            positive.
        shares: (M,) float64, of the whole variance.
    """

    mean: Tensor
    axes: Tensor
    shares: Tensor

    def project(self, vectors: Tensor) -> Tensor:
        """(N, D) to (N, M) float64."""
        return (vectors.double() - self.mean) @ self.axes.mT


def principal_plane(latents: Tensor, components: int = 2) -> PrincipalPlane:
    """Principal component analysis, without randomness.

    Args:
        latents: (N, D), N at least 1.
        components: M, at most D; fewer are returned where D is smaller.

    Example:
        >>> points = [[0.0, 3.0], [0.0, -3.0], [1.0, 0.0], [-1.0, 0.0]]
        >>> plane = principal_plane(torch.tensor(points))
        >>> plane.axes[0].tolist(), round(plane.shares[0].item(), 3)
        ([0.0, 1.0], 0.9)
    """
    latents = latents.double().cpu()
    variances, axes = torch.linalg.eigh(latent_covariance(latents))  # ascending
    variances, axes = variances.flip(0).clamp_min(0), axes.mT.flip(0)
    largest = axes.gather(1, axes.abs().argmax(dim=1, keepdim=True))
    axes = axes * torch.where(largest < 0, -1.0, 1.0)
    shares = variances / variances.sum().clamp_min(1e-300)
    return PrincipalPlane(latents.mean(dim=0), axes[:components], shares[:components])


def projection_figure(level: LevelSample) -> Figure:
    """Latents, the prototypes they choose, and those that none chooses, in one plane.

    Args:
        level: The tokens, their latents and prototypes.
    """
    plane = principal_plane(level.latents)
    shown = evenly(len(level.prototypes), MAX_PROTOTYPES)
    used = level.counts[shown] > 0
    points = {
        "latents": _in_plane(plane, level.latents[evenly(len(level.latents), MAX_LATENTS)]),
        "prototypes": _in_plane(plane, level.prototypes[shown][used]),
        "prototypes not chosen here": _in_plane(plane, level.prototypes[shown][~used]),
    }
    styles = (("tab:blue", ".", 4, 0.35), ("black", ".", 14, 1.0), ("tab:red", "x", 16, 1.0))
    figure = new_figure(4.2)
    axes = figure.add_subplot()
    for (name, own), (colour, marker, size, alpha) in zip(points.items(), styles, strict=True):
        if len(own):
            x, y = own.mT.numpy()
            axes.scatter(
                x, y, s=size, c=colour, marker=marker, alpha=alpha, linewidths=1,
                label=f"{name} ({len(own)})",
            )  # fmt: skip
    first, second = [*plane.shares.tolist(), 0.0][:2]
    axes.set_xlabel(f"first principal axis ({first:.0%} of the variance)")
    axes.set_ylabel(f"second principal axis ({second:.0%})")
    axes.set_title("Latents and prototypes", fontsize=10)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=9)
    return figure


def _in_plane(plane: PrincipalPlane, vectors: Tensor) -> Tensor:
    """(N, 2); latents of one dimension lie on a line."""
    flat = plane.project(vectors)
    return torch.nn.functional.pad(flat, (0, 2 - flat.shape[1]))
