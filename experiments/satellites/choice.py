"""Methods of clustering compared: settings chosen without labels, scores on held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.compare.intervals import summary
from experiments.documents.clustering import clustering_scores, contingency
from experiments.satellites.methods import Candidate, Fit, Rows

SILHOUETTE_ROWS = 2000  # at most; its cost is quadratic
FIGURES = ("accuracy", "balanced_accuracy", "nmi", "ari", "purity")


class Split(NamedTuple):
    """Row numbers: ``test`` is drawn once, ``validation`` and ``train`` for each seed."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]


class Chosen(NamedTuple):
    """A method at the candidate of the best mean silhouette.

    Attributes:
        candidate: Its name.
        silhouettes: Candidate to its silhouettes on validation rows, one for each seed.
        fits: Of that candidate, one for each seed.
    """

    candidate: str
    silhouettes: dict[str, list[float]]
    fits: list[Fit]


def choose(
    candidates: Sequence[Candidate],
    scaled: Sequence[Rows],
    splits: Sequence[Split],
    codebook_size: int,
) -> Chosen:
    """Fit every candidate on every seed, and keep that of the best mean silhouette."""
    fits: dict[str, list[Fit]] = {}
    silhouettes: dict[str, list[float]] = {}
    for candidate in candidates:
        fits[candidate.name] = [
            candidate.fit(rows[split.train], codebook_size, seed)
            for seed, (rows, split) in enumerate(zip(scaled, splits, strict=True))
        ]
        silhouettes[candidate.name] = [
            silhouette(rows[split.validation], first_assign(one)(rows[split.validation]))
            for one, rows, split in zip(fits[candidate.name], scaled, splits, strict=True)
        ]
    best = max(silhouettes, key=lambda name: summary(silhouettes[name]).mean)
    return Chosen(best, silhouettes, fits[best])


def first_assign(one: Fit) -> Callable[[Rows], NDArray[np.int64]]:
    """Of the candidate itself, not of what is derived from it."""
    return next(iter(one.assigns.values()))


def silhouette(rows: Rows, clusters: NDArray[np.int64]) -> float:
    """Mean silhouette of at most ``SILHOUETTE_ROWS`` rows; -1, the worst, of one cluster.

    Rousseeuw 1987.

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


def entries(
    name: str,
    found: Chosen,
    scaled: Sequence[Rows],
    splits: Sequence[Split],
    classes: NDArray[np.str_] | None,
) -> list[dict[str, Any]]:
    """Results of a method, and of what is derived from its fits."""
    made = []
    for own in found.fits[0].assigns:
        runs = []
        for seed, (one, rows, split) in enumerate(zip(found.fits, scaled, splits, strict=True)):
            assign = one.assigns[own]
            run: dict[str, Any] = {
                "seed": seed,
                "silhouette": silhouette(rows[split.validation], assign(rows[split.validation])),
            }
            for part in ("train", "test"):
                members = getattr(split, part)
                clusters = assign(rows[members])
                run[part] = scores(None if classes is None else classes[members], clusters)
            runs.append(run)
        made.append(
            {
                "name": own,
                "chosen": found.candidate,
                "candidates": found.silhouettes if own == name else {},
                "runs": runs,
                "summary": summaries(runs, classes is not None),
            }
        )
    return made


def scores(classes: NDArray[np.str_] | None, clusters: NDArray[np.int64]) -> dict[str, Any]:
    """Figures of one clustering of one part, with its confusion matrix.

    Against a single class every figure is None: one cluster would be perfect, and purity always 1.
    """
    sizes = {int(k): int((clusters == k).sum()) for k in np.unique(clusters)}
    if classes is None:
        return {"sizes": sizes}
    table = contingency(classes, clusters)
    if len(table.classes) < 2:
        unscored = {"classes": table.classes, "counts": table.counts.tolist(), "mapping": {}}
        return {"sizes": sizes, **dict.fromkeys(FIGURES), **unscored}
    found = clustering_scores(classes, clusters)
    pairs = {label: cluster for cluster, label in found.mapping.items()}
    recalls = [
        row[table.clusters.index(pairs[label])] / row.sum() if label in pairs else 0.0
        for label, row in zip(table.classes, table.counts, strict=True)
    ]
    return {
        "sizes": sizes,
        "accuracy": found.accuracy,
        "balanced_accuracy": float(np.mean(recalls)),
        "nmi": found.nmi,
        "ari": found.ari,
        "purity": found.purity,
        "mapping": {str(cluster): label for cluster, label in found.mapping.items()},
        "classes": table.classes,
        "counts": table.counts.tolist(),
    }


def summaries(runs: Sequence[dict[str, Any]], scored: bool) -> dict[str, Any]:
    """Mean, standard deviation and interval of every figure over seeds; None where a seed's is."""
    made: dict[str, Any] = {"silhouette": summary([run["silhouette"] for run in runs])._asdict()}
    for part in ("train", "test") if scored else ():
        for figure in FIGURES:
            values = [run[part][figure] for run in runs]
            scorable = None not in values
            made[f"{part}_{figure}"] = summary(values)._asdict() if scorable else None
    return made
