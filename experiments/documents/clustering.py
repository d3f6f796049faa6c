"""How well clusters agree with classes: accuracy, mutual information, Rand index, purity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class ClusteringScores(NamedTuple):
    """Agreement of a clustering with classes that it did not know.

    Attributes:
        accuracy: Share of rows whose cluster is paired with their class, in [0, 1]. The pairing is
            one to one and the best there is (Hungarian method, Kuhn 1955); with more clusters than
            classes the rows of the clusters left over count as wrong, and with fewer those of the
            classes left over.
        nmi: Mutual information over the arithmetic mean of the two entropies, in [0, 1].
        ari: Adjusted Rand index (Hubert and Arabie 1985): 1 for equal partitions, 0 on average for
            random ones; may be negative.
        purity: Share of rows that are of the commonest class of their cluster, in [0, 1]: many
            clusters may stand for one class, so it grows with the number of clusters.
        mapping: The pairing behind ``accuracy``, cluster to class, without clusters left over.
    """

    accuracy: float
    nmi: float
    ari: float
    purity: float
    mapping: dict[Any, Any]


def clustering_scores(labels: ArrayLike, clusters: ArrayLike) -> ClusteringScores:
    """Scores of a clustering against classes.

    Args:
        labels: (N,) classes, integers or strings.
        clusters: (N,) clusters, integers or strings; their names do not matter.

    Raises:
        ValueError: If the two are not equally long vectors of at least one row.

    Example:
        >>> scores = clustering_scores(["a", "a", "a", "b"], [7, 7, 2, 2])
        >>> scores.accuracy, scores.purity, scores.mapping
        (0.75, 0.75, {2: 'b', 7: 'a'})
    """
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    table = contingency(labels, clusters)
    rows, columns = linear_sum_assignment(table.counts, maximize=True)
    paired = zip(rows.tolist(), columns.tolist(), strict=True)
    total = table.counts.sum()
    return ClusteringScores(
        accuracy=float(table.counts[rows, columns].sum() / total),
        nmi=float(normalized_mutual_info_score(labels, clusters)),
        ari=float(adjusted_rand_score(labels, clusters)),
        purity=float(table.counts.max(axis=0).sum() / total),
        mapping={
            cluster: label
            for cluster, label in sorted((table.clusters[c], table.classes[r]) for r, c in paired)
        },
    )


class Contingency(NamedTuple):
    """Counts of rows by class and cluster.

    Attributes:
        classes: Names of the rows, sorted.
        clusters: Names of the columns, sorted.
        counts: (classes, clusters) int64.
    """

    classes: list[Any]
    clusters: list[Any]
    counts: NDArray[np.int64]


def contingency(
    labels: ArrayLike, clusters: ArrayLike, classes: Sequence[Any] | None = None
) -> Contingency:
    """Counts of rows by class and cluster.

    Args:
        labels: (N,) classes.
        clusters: (N,) clusters.
        classes: Order of the classes; sorted by default.

    Raises:
        ValueError: If the two are not equally long vectors of at least one row, or ``classes``
            lacks a label.

    Example:
        >>> contingency(["a", "a", "b"], [1, 0, 0]).counts
        array([[1, 1],
               [1, 0]])
    """
    labels, clusters = np.asarray(labels), np.asarray(clusters)
    if labels.ndim != 1 or labels.shape != clusters.shape or not len(labels):
        raise ValueError(
            "labels and clusters must be vectors of the same length, at least 1, got shapes "
            f"{labels.shape} and {clusters.shape}"
        )
    names = np.unique(labels).tolist()
    order = names if classes is None else list(classes)
    if missing := sorted(set(names) - set(order)):
        raise ValueError(f"labels hold {missing}, which classes={order} lack")
    columns, places = np.unique(clusters, return_inverse=True)
    counts = np.zeros((len(order), len(columns)), dtype=np.int64)
    for row, name in enumerate(order):
        counts[row] = np.bincount(places[labels == name], minlength=len(columns))
    return Contingency(order, columns.tolist(), counts)
