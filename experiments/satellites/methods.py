"""Ways to cluster a table, each with the candidate settings that it may choose among."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.satellites.network import INITIALISATIONS, Epoch, Settings, fit

Rows = NDArray[np.float64]
# Clusters of (N, F) rows, whether they were fitted or not.
Assign = Callable[[Rows], NDArray[np.int64]]

CLUSTER_COUNTS = range(2, 9)  # that k-means may choose among where K is not given

DDCL = "DDCL"
HOT = "DDCL, prototypes not placed anew"
ON_DDCL = "k-means on DDCL's latents"
ON_RECONSTRUCTION = "k-means on latents of reconstruction alone"
KMEANS = "k-means"
KMEANS_ANY = "k-means, K by silhouette"
MIXTURE = "Gaussian mixture"
TRIVIAL = "all in one cluster"


class Fit(NamedTuple):
    """What came of fitting a candidate.

    Attributes:
        assigns: By name, the candidate itself first, then what is derived from the same fit.
        history: Epochs with a codebook.
        latents: Of rows, where there are any.
    """

    assigns: dict[str, Assign]
    history: Sequence[Epoch] = ()
    latents: Callable[[Rows], Rows] | None = None


class Candidate(NamedTuple):
    """Settings of a method.

    Attributes:
        name: In words.
        fit: Called with training rows, K and a seed.
    """

    name: str
    fit: Callable[[Rows, int, int], Fit]


def ddcl_candidates() -> list[Settings]:
    """The settings that DDCL chooses among."""
    return [
        Settings(dim=dim, standardized=standardized, prototypes=prototypes)
        for prototypes in ("em", "gradient")
        for dim, standardized in ((2, False), (2, True), (3, False))
    ]


def methods(settings: Sequence[Settings]) -> dict[str, list[Candidate]]:
    """Every method with its candidates.

    Args:
        settings: Candidates of DDCL; those of reconstruction alone are the different networks
            among them.

    Example:
        >>> {name: len(found) for name, found in methods(ddcl_candidates()).items()}[DDCL]
        6
    """
    networks = {(one.dim, one.standardized): one for one in reversed(settings)}
    return {
        DDCL: [Candidate(one.name(), partial(fit_ddcl, settings=one)) for one in settings],
        ON_RECONSTRUCTION: [
            Candidate(one.name().rsplit(",", 1)[0], partial(fit_reconstruction, settings=one))
            for one in reversed(networks.values())
        ],
        KMEANS: [
            Candidate("standardised", partial(fit_kmeans, whiten=False)),
            Candidate("whitened", partial(fit_kmeans, whiten=True)),
        ],
        MIXTURE: [
            Candidate(kind, partial(fit_mixture, covariance=kind))
            for kind in ("full", "tied", "diag", "spherical")
        ],
        KMEANS_ANY: [
            Candidate(f"K = {count}", partial(fit_kmeans_of, count=count))
            for count in CLUSTER_COUNTS
        ],
        TRIVIAL: [Candidate("", fit_trivial)],
    }


def fit_ddcl(x: Rows, codebook_size: int, seed: int, settings: Settings) -> Fit:
    """DDCL; its prototypes before they were placed anew; k-means on its latents."""
    fitted = fit(as_tensor(x), codebook_size, settings, seed)
    network, hot = fitted.network, fitted.hot
    assert hot is not None

    def latents(rows: Rows) -> Rows:
        return network.latents(as_tensor(rows)).double().numpy()

    means = fit_kmeans(latents(x), codebook_size, seed).assigns[KMEANS]
    return Fit(
        assigns={
            DDCL: lambda rows: network.clusters(as_tensor(rows)).numpy(),
            HOT: lambda rows: hot.clusters(as_tensor(rows)).numpy(),
            ON_DDCL: lambda rows: means(latents(rows)),
        },
        history=fitted.history,
        latents=latents,
    )


def fit_reconstruction(x: Rows, codebook_size: int, seed: int, settings: Settings) -> Fit:
    """K-means on the latents of the same autoencoder without a codebook, trained as long."""
    network = fit(as_tensor(x), codebook_size, settings, seed, use_codebook=False).network

    def latents(rows: Rows) -> Rows:
        return network.latents(as_tensor(rows)).double().numpy()

    means = fit_kmeans(latents(x), codebook_size, seed).assigns[KMEANS]
    return Fit({ON_RECONSTRUCTION: lambda rows: means(latents(rows))}, latents=latents)


def fit_kmeans(x: Rows, codebook_size: int, seed: int, whiten: bool = False) -> Fit:
    """K-means, the best of several initialisations by inertia."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline

    means = KMeans(codebook_size, n_init=INITIALISATIONS, random_state=seed)
    model: Any = make_pipeline(PCA(whiten=True), means) if whiten else means
    model.fit(x)
    return Fit({KMEANS: lambda rows: model.predict(rows)})


def fit_kmeans_of(x: Rows, codebook_size: int, seed: int, count: int) -> Fit:
    """K-means with a K of its own."""
    return Fit({KMEANS_ANY: fit_kmeans(x, count, seed).assigns[KMEANS]})


def fit_mixture(x: Rows, codebook_size: int, seed: int, covariance: str) -> Fit:
    """Gaussian mixture by EM, the best of several initialisations by likelihood."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    model = GaussianMixture(
        codebook_size, covariance_type=covariance, n_init=INITIALISATIONS, random_state=seed
    )
    with warnings.catch_warnings():
        # Of any initialisation; the best is kept whether or not it is the one.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x)
    return Fit({MIXTURE: lambda rows: model.predict(rows)})


def fit_trivial(x: Rows, codebook_size: int, seed: int) -> Fit:
    """One cluster: what imbalance alone makes of the scores."""
    return Fit({TRIVIAL: lambda rows: np.zeros(len(rows), dtype=np.int64)})


def as_tensor(rows: Rows) -> torch.Tensor:
    """Rows as float32."""
    return torch.as_tensor(rows, dtype=torch.float32)
