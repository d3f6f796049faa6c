"""What the studies that cluster share: scores against classes, tables, the best k-means start."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from softvq import kmeans
from softvq.functional import squared_distances


class ClusteringScores(NamedTuple):
    """Agreement of a clustering with classes that it did not know.

    Attributes:
        accuracy: The share of rows whose cluster is paired with their class, in [0, 1]. The pairing
            is one to one and the best there is (Hungarian method, Kuhn 1955). With more clusters
            than classes, rows of the clusters left over count as wrong; with fewer clusters, so do
            rows of the classes left over.
        nmi: The mutual information over the arithmetic mean of the two entropies, in [0, 1].
        ari: The adjusted Rand index (Hubert and Arabie 1985): 1 for equal partitions, 0 on average
            for random ones. It may be negative.
        purity: The share of rows that are of the commonest class of their cluster, in [0, 1]. Many
            clusters may stand for one class, so purity grows with the number of clusters.
        balanced_accuracy: The mean over classes of the share of a class's rows that ``accuracy``
            counts as right, in [0, 1].
        mapping: The pairing behind ``accuracy``, cluster to class, without clusters left over.
        classes: The names of the classes, sorted.
        clusters: The names of the clusters, sorted.
        counts: The number of rows of each class in each cluster, int64 (classes, clusters).
    """

    accuracy: float
    nmi: float
    ari: float
    purity: float
    balanced_accuracy: float
    mapping: dict[Any, Any]
    classes: list[Any]
    clusters: list[Any]
    counts: NDArray[np.int64]


def clustering_scores(labels: ArrayLike, clusters: ArrayLike) -> ClusteringScores:
    """Score a clustering against classes.

    Args:
        labels: (N,) The classes, integers or strings.
        clusters: (N,) The clusters, integers or strings; their names do not matter.

    Raises:
        ValueError: If the two are not equally long vectors of at least one row.

    Example:
        >>> scores = clustering_scores(["a", "a", "a", "b"], [7, 7, 2, 2])
        >>> scores.accuracy, scores.purity, scores.mapping
        (0.75, 0.75, {2: 'b', 7: 'a'})
        >>> scores.counts.tolist()
        [[1, 2], [1, 0]]
    """
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
    from sklearn.metrics.cluster import contingency_matrix

    labels, clusters = np.asarray(labels), np.asarray(clusters)
    if labels.ndim != 1 or labels.shape != clusters.shape or not len(labels):
        raise ValueError(
            "labels and clusters must be vectors of the same length, at least 1, got shapes "
            f"{labels.shape} and {clusters.shape}"
        )
    counts = contingency_matrix(labels, clusters)  # (classes, clusters)
    classes, names = np.unique(labels).tolist(), np.unique(clusters).tolist()
    rows, columns = linear_sum_assignment(counts, maximize=True)
    right = counts[rows, columns]
    pairs = [(names[c], classes[r]) for r, c in zip(rows.tolist(), columns.tolist(), strict=True)]
    return ClusteringScores(
        accuracy=float(right.sum() / len(labels)),
        nmi=float(normalized_mutual_info_score(labels, clusters)),
        ari=float(adjusted_rand_score(labels, clusters)),
        purity=float(counts.max(axis=0).sum() / len(labels)),
        balanced_accuracy=float((right / counts.sum(axis=1)[rows]).sum() / len(classes)),
        mapping=dict(sorted(pairs)),
        classes=classes,
        clusters=names,
        counts=counts,
    )


def figure(values: Mapping[str, Any]) -> str:
    """Write a mean and its standard deviation, shares of one, with three digits.

    Args:
        values: Holds ``mean`` and ``sd``; the latter is None where there is one value only.

    Example:
        >>> figure({"mean": 0.5, "sd": 0.0123}), figure({"mean": 0.5, "sd": None})
        ('.500 ± .012', '.500')
    """
    parts = [value for value in (values["mean"], values["sd"]) if value is not None]
    return " ± ".join(f"{value:.3f}".replace("0.", ".", 1) for value in parts)


def markdown(rows: list[list[str]], heads: list[str]) -> str:
    """Write a table as Markdown, cells as they are given."""
    from tabulate import tabulate

    return tabulate(rows, heads, tablefmt="github", disable_numparse=True)


def pairing_table(mappings: Mapping[str, Mapping[str, str]]) -> str:
    """Say in a Markdown table which class each method's clusters are paired with.

    Args:
        mappings: For each method, cluster to class; a cluster without a class is left out.
    """
    rows = [[n, ", ".join(f"{k} {label}" for k, label in m.items())] for n, m in mappings.items()]
    return markdown(rows, ["method", "clusters and their classes, test rows of the first seed"])


def fitted(model: Any, rows: ArrayLike) -> Any:
    """Fit a model of scikit-learn; what did not converge, or lacks clusters, is no news.

    The best of several initialisations is kept, whether or not all of them converged.
    """
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(rows)


def best_start(latents: Tensor, codebook_size: int, seed: int, starts: int) -> int:
    """Return the seed whose k-means leaves the smallest squared error, of several seeds.

    Args:
        latents: (N, D) The vectors that prototypes will be placed on, at least K of them.
        codebook_size: The number of prototypes, K.
        seed: The seed of the run. Runs of different seeds try different starts.
        starts: How many initialisations of k-means to try, at least 1.

    Returns:
        A seed for :meth:`softvq.Codebook.initialize` on the same latents.
    """

    def error(start: int) -> float:
        centers = kmeans(latents, codebook_size, seed=start)
        return float(squared_distances(latents, centers).amin(dim=1).sum())

    return min(range(seed * starts, (seed + 1) * starts), key=error)
