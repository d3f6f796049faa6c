"""Clusterings of document vectors by scikit-learn, to compare a readout with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from experiments.clustering import fitted

from .study import Study
from .vectors import Documents, LinearEncoder

INITIALISATIONS = 10  # The best by its own criterion is kept.
Vectors = Callable[[Documents, LinearEncoder], Tensor]
Model = Callable[[int, int], Any]


def fit_baseline(
    vectors: Vectors, model: Model, study: Study, seed: int
) -> Callable[[Documents], NDArray[np.int64]]:
    """Fit a baseline on the training split; return what gives documents their clusters, (N,)."""
    rows = vectors(study.splits["train"], study.encoder).numpy()
    done = fitted(model(study.codebook_size, seed), rows)
    return lambda documents: done.predict(vectors(documents, study.encoder).numpy())


def baselines() -> dict[str, tuple[Vectors, Model]]:
    """Return by name what each baseline clusters, (N, F), and a model of K and a seed.

    Example:
        >>> sum("k-means" in name for name in baselines())
        6
    """
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.mixture import GaussianMixture

    def kmeans(size: int, seed: int, kind: Any = KMeans) -> Any:
        return kind(size, n_init=INITIALISATIONS, random_state=seed)

    def mixture(size: int, seed: int) -> Any:
        # Coordinates have unit mean variance, so the floor of a variance is 1 % of it.
        options = {"covariance_type": "tied", "reg_covar": 1e-2, "n_init": 3}
        return GaussianMixture(size, **options, random_state=seed)

    def axes(documents: Documents, encoder: LinearEncoder) -> Tensor:
        return encoder(documents.mean)

    return {
        "k-means, CLS": (lambda d, _: d.cls, kmeans),
        "k-means, mean": (lambda d, _: d.mean, kmeans),
        "mini-batch k-means, mean": (lambda d, _: d.mean, partial(kmeans, kind=MiniBatchKMeans)),
        "spherical k-means, CLS": (lambda d, _: normalize(d.cls), kmeans),
        "spherical k-means, mean": (lambda d, _: normalize(d.mean), kmeans),
        "k-means, principal axes": (axes, kmeans),
        "Gaussian mixture, principal axes": (axes, mixture),
    }
