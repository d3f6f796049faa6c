"""Clusterings of document vectors to compare a readout with, all of scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.documents.vectors import Documents, LinearEncoder, unit

INITIALISATIONS = 10  # the best by its own criterion is kept


class Baseline(NamedTuple):
    """A clustering that does not look at prototypes of tokens.

    Attributes:
        vectors: What it clusters, of documents and the linear encoder: (N, F).
        model: Called with K and a seed; has ``fit`` and ``predict``.
    """

    vectors: Callable[[Documents, LinearEncoder], NDArray[np.float32]]
    model: Callable[[int, int], Any]

    def clusters(
        self,
        train: Documents,
        others: list[Documents],
        encoder: LinearEncoder,
        codebook_size: int,
        seed: int,
    ) -> list[NDArray[np.int64]]:
        """Fit on one split, cluster others: (N,) for each."""
        from sklearn.exceptions import ConvergenceWarning

        model = self.model(codebook_size, seed)
        with warnings.catch_warnings():
            # Of a single initialisation, or fewer distinct documents than clusters.
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(self.vectors(train, encoder))
        return [model.predict(self.vectors(split, encoder)) for split in others]


def baselines() -> dict[str, Baseline]:
    """All of them by name.

    Example:
        >>> sum("k-means" in name for name in baselines())
        6
    """
    return {
        "k-means, CLS": Baseline(_cls, _kmeans),
        "k-means, mean": Baseline(_mean, _kmeans),
        "mini-batch k-means, mean": Baseline(_mean, _minibatch),
        "spherical k-means, CLS": Baseline(_unit_cls, _kmeans),
        "spherical k-means, mean": Baseline(_unit_mean, _kmeans),
        "k-means, principal axes": Baseline(_axes, _kmeans),
        "Gaussian mixture, principal axes": Baseline(_axes, _mixture),
    }


def _cls(documents: Documents, encoder: LinearEncoder) -> NDArray[np.float32]:
    return documents.cls


def _mean(documents: Documents, encoder: LinearEncoder) -> NDArray[np.float32]:
    return documents.mean


def _unit_cls(documents: Documents, encoder: LinearEncoder) -> NDArray[np.float32]:
    return _unit(documents.cls)


def _unit_mean(documents: Documents, encoder: LinearEncoder) -> NDArray[np.float32]:
    return _unit(documents.mean)


def _axes(documents: Documents, encoder: LinearEncoder) -> NDArray[np.float32]:
    return encoder(documents.mean).numpy()


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    import torch

    return unit(torch.as_tensor(vectors)).numpy()


def _kmeans(codebook_size: int, seed: int) -> Any:
    from sklearn.cluster import KMeans

    return KMeans(codebook_size, n_init=INITIALISATIONS, random_state=seed)


def _minibatch(codebook_size: int, seed: int) -> Any:
    from sklearn.cluster import MiniBatchKMeans

    return MiniBatchKMeans(codebook_size, n_init=INITIALISATIONS, random_state=seed)


def _mixture(codebook_size: int, seed: int) -> Any:
    from sklearn.mixture import GaussianMixture

    # Coordinates have unit mean variance, so the floor of a variance is 1 % of it.
    return GaussianMixture(
        codebook_size, covariance_type="tied", reg_covar=1e-2, n_init=3, random_state=seed
    )
