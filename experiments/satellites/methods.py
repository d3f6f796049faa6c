"""Ways to cluster a table, each with the candidate settings that it may choose among."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.clustering import fitted

from .network import INITIALISATIONS, ClusterNetwork, Settings, fit

Rows = NDArray[np.float64]
Assign = Callable[[Rows], NDArray[np.int64]]  # Clusters of (N, F) rows, fitted or not.

CLUSTER_COUNTS = range(2, 9)  # K that k-means may choose among where it is free to

DDCL = "DDCL"
HOT = "DDCL, prototypes not placed anew"
ON_DDCL = "k-means on DDCL's latents"
ON_RECONSTRUCTION = "k-means on latents of reconstruction alone"
KMEANS = "k-means"
KMEANS_ANY = "k-means, K by silhouette"
MIXTURE = "Gaussian mixture"
TRIVIAL = "all in one cluster"


class Fit(NamedTuple):
    """A candidate after fitting.

    Attributes:
        assigns: Ways to assign rows by name: the candidate's own first, then what is derived from
            the same fit.
        history: The epochs with a codebook.
    """

    assigns: dict[str, Assign]
    history: Sequence[dict[str, Any]] = ()

    def own(self, rows: Rows) -> NDArray[np.int64]:
        """Assign rows in the candidate's own way."""
        return next(iter(self.assigns.values()))(rows)


# Fits training rows, given K and a seed.
Candidate = Callable[[Rows, int, int], Fit]


def ddcl_candidates() -> list[Settings]:
    """Return the settings that DDCL chooses among."""
    return [
        Settings(dim=dim, standardized=standardized, prototypes=prototypes)
        for prototypes in ("em", "gradient")
        for dim, standardized in ((2, False), (2, True), (3, False))
    ]


def methods(settings: Sequence[Settings]) -> dict[str, dict[str, Candidate]]:
    """Return every method with its candidates by name.

    Args:
        settings: The candidates of DDCL. Those of reconstruction alone are the different networks
            among them.

    Example:
        >>> {name: len(found) for name, found in methods(ddcl_candidates()).items()}[DDCL]
        6
    """
    kinds, kmeans_any = ("full", "tied", "diag", "spherical"), partial(fit_kmeans, name=KMEANS_ANY)
    # Without a codebook, how prototypes learn makes no difference.
    alone = {one.name().rsplit(",", 1)[0]: one for one in settings}
    return {
        DDCL: {one.name(): partial(fit_ddcl, settings=one) for one in settings},
        ON_RECONSTRUCTION: {
            n: partial(fit_reconstruction, settings=one) for n, one in alone.items()
        },
        KMEANS: {"standardised": fit_kmeans, "whitened": partial(fit_kmeans, whiten=True)},
        MIXTURE: {kind: partial(fit_mixture, covariance=kind) for kind in kinds},
        KMEANS_ANY: {f"K = {n}": partial(kmeans_any, count=n) for n in CLUSTER_COUNTS},
        TRIVIAL: {"": fit_trivial},
    }


def fit_ddcl(x: Rows, codebook_size: int, seed: int, settings: Settings) -> Fit:
    """Fit DDCL, and k-means on its latents; keep its prototypes before they were placed anew."""
    network, hot, history = fit(as_tensor(x), codebook_size, settings, seed)
    assigns: dict[str, Assign] = {
        DDCL: lambda rows: network.clusters(as_tensor(rows)).numpy(),
        HOT: lambda rows: hot.clusters(as_tensor(rows)).numpy(),
        ON_DDCL: kmeans_on_latents(x, network, codebook_size, seed),
    }
    return Fit(assigns, history)


def fit_reconstruction(x: Rows, codebook_size: int, seed: int, settings: Settings) -> Fit:
    """Fit k-means on latents of the same autoencoder without a codebook, trained as long."""
    network = fit(as_tensor(x), codebook_size, settings, seed, use_codebook=False).network
    return Fit({ON_RECONSTRUCTION: kmeans_on_latents(x, network, codebook_size, seed)})


def kmeans_on_latents(x: Rows, network: ClusterNetwork, codebook_size: int, seed: int) -> Assign:
    """Return an assignment of rows by k-means on their latents."""

    def latents(rows: Rows) -> Rows:
        return network.latents(as_tensor(rows)).double().numpy()

    means = fit_kmeans(latents(x), codebook_size, seed)
    return lambda rows: means.own(latents(rows))


def fit_kmeans(
    x: Rows,
    codebook_size: int,
    seed: int,
    *,
    whiten: bool = False,
    name: str = KMEANS,
    count: int | None = None,
) -> Fit:
    """Fit k-means, the best of several initialisations by inertia; ``count`` is a K of its own."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline

    model: Any = KMeans(count or codebook_size, n_init=INITIALISATIONS, random_state=seed)
    if whiten:
        model = make_pipeline(PCA(whiten=True), model)
    return Fit({name: model.fit(x).predict})


def fit_mixture(x: Rows, codebook_size: int, seed: int, covariance: str) -> Fit:
    """Fit a Gaussian mixture by EM, the best of several initialisations by likelihood."""
    from sklearn.mixture import GaussianMixture

    options = {"covariance_type": covariance, "n_init": INITIALISATIONS, "random_state": seed}
    return Fit({MIXTURE: fitted(GaussianMixture(codebook_size, **options), x).predict})


def fit_trivial(x: Rows, codebook_size: int, seed: int) -> Fit:
    """Put all rows in one cluster: what imbalance alone makes of the scores."""
    return Fit({TRIVIAL: lambda rows: np.zeros(len(rows), dtype=np.int64)})


def as_tensor(rows: Rows) -> torch.Tensor:
    """Return rows as float32."""
    return torch.as_tensor(rows, dtype=torch.float32)
