"""Methods of clustering compared: settings chosen without labels, scores on held-out rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.compare.intervals import summary
from experiments.clustering import clustering_scores

from .methods import Candidate, Fit, Rows

SILHOUETTE_ROWS = 2000  # at most; its cost is quadratic
FIGURES = ("accuracy", "balanced_accuracy", "nmi", "ari", "purity")


class Fold(NamedTuple):
    """The standardised rows of a seed, and their classes, for train, validation and test."""

    rows: dict[str, Rows]
    classes: dict[str, NDArray[np.str_]]


class Chosen(NamedTuple):
    """A method at the candidate of the best mean silhouette.

    Attributes:
        candidate: The candidate's name.
        silhouettes: For each candidate its silhouettes on validation rows, one for each seed.
        fits: The fits of that candidate, one for each seed.
    """

    candidate: str
    silhouettes: dict[str, list[float]]
    fits: list[Fit]


def choose(
    candidates: Mapping[str, Candidate], folds: Sequence[Fold], codebook_size: int
) -> Chosen:
    """Fit every candidate on every seed, and keep that of the best mean silhouette."""
    fits: dict[str, list[Fit]] = {}
    silhouettes: dict[str, list[float]] = {}
    for name, fit in candidates.items():
        fits[name] = [fit(f.rows["train"], codebook_size, seed) for seed, f in enumerate(folds)]
        silhouettes[name] = [
            silhouette(fold.rows["validation"], one.own(fold.rows["validation"]))
            for one, fold in zip(fits[name], folds, strict=True)
        ]
    best = max(silhouettes, key=lambda name: summary(silhouettes[name]).mean)
    return Chosen(best, silhouettes, fits[best])


def silhouette(rows: Rows, clusters: NDArray[np.int64]) -> float:
    """Return the mean silhouette (Rousseeuw 1987) of at most ``SILHOUETTE_ROWS`` rows.

    One cluster has -1, the worst.

    Example:
        >>> rows = np.array([[0.0], [0.1], [9.0], [9.1]])
        >>> round(silhouette(rows, np.array([0, 0, 1, 1])), 2), silhouette(rows, np.zeros(4, int))
        (0.99, -1.0)
    """
    from sklearn.metrics import silhouette_score

    rows, clusters = rows[:SILHOUETTE_ROWS], clusters[:SILHOUETTE_ROWS]
    if not 1 < len(np.unique(clusters)) < len(rows):
        return -1.0
    return float(silhouette_score(rows, clusters))


def entries(name: str, found: Chosen, folds: Sequence[Fold]) -> list[dict[str, Any]]:
    """Return the results of a method, and of what is derived from its fits."""
    made = []
    for own in found.fits[0].assigns:
        runs: list[dict[str, Any]] = []
        for seed, (one, fold) in enumerate(zip(found.fits, folds, strict=True)):
            clusters = {part: one.assigns[own](rows) for part, rows in fold.rows.items()}
            apart = silhouette(fold.rows["validation"], clusters["validation"])
            scored = {p: scores(fold.classes[p], clusters[p]) for p in ("train", "test")}
            runs.append({"seed": seed, "silhouette": apart, **scored})
        tried = found.silhouettes if own == name else {}
        entry = {"name": own, "chosen": found.candidate, "candidates": tried, "runs": runs}
        made.append(entry | {"summary": summaries(runs)})
    return made


def scores(classes: NDArray[np.str_], clusters: NDArray[np.int64]) -> dict[str, Any]:
    """Return the figures of one clustering of one part, with its confusion matrix."""
    found = clustering_scores(classes, clusters)
    return {
        "sizes": dict(zip(found.clusters, found.counts.sum(axis=0).tolist(), strict=True)),
        **{figure: getattr(found, figure) for figure in FIGURES},
        "mapping": {str(cluster): label for cluster, label in found.mapping.items()},
        "classes": found.classes,
        "counts": found.counts.tolist(),
    }


def summaries(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean, standard deviation and interval of every figure over seeds."""
    figures = {"silhouette": [run["silhouette"] for run in runs]}
    for part in ("train", "test"):
        figures |= {f"{part}_{name}": [run[part][name] for run in runs] for name in FIGURES}
    return {name: summary(values)._asdict() for name, values in figures.items()}
