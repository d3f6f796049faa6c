"""Orbital regimes found without labels: DDCL on a small encoder against k-means and mixtures."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from experiments.satellites.choice import Split, choose, entries
from experiments.satellites.methods import CLUSTER_COUNTS, DDCL, Fit, Rows, ddcl_candidates, methods
from experiments.satellites.network import LARGEST_RESIDUAL, Settings
from experiments.satellites.orbits import FEATURES, Orbits, features, read_orbits, regimes
from training.checkpoint import check_target
from training.errors import DatasetError, UserError

FILE = "ucs_satellite_database.csv.xz"
TEST_SHARE = 0.25  # of all rows, the same for every seed
VALIDATION_SHARE = 1 / 3  # of the others


def run(
    path: Path | None,
    out: Path,
    *,
    labels: Literal["auto", "rule", "none"] = "auto",
    codebook_size: int = 4,
    seeds: int = 5,
    candidates: Sequence[Settings] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Cluster orbits by every method, and write ``satellites.json``, ``.md`` and ``.png``.

    Every method is fitted on training rows without labels. Where it has candidate settings, the
    best mean silhouette of validation rows, in the space of the standardised features, chooses;
    labels choose nothing. Scores are those of test rows, which are the same for every seed.

    Args:
        path: A file that :func:`experiments.satellites.orbits.read_orbits` reads; by default the
            UCS table among the shared data.
        out: Folder of the results.
        labels: ``"auto"`` takes the file's own classes or, where it has none, those of
            :func:`experiments.satellites.orbits.regimes`; ``"rule"`` always the latter;
            ``"none"`` scores nothing.
        codebook_size: K of all methods but one, that chooses its own.
        seeds: Repetitions, of split and fit.
        candidates: Settings that DDCL may choose among, by default
            :func:`experiments.satellites.methods.ddcl_candidates`.
        say: Called with a line of progress.

    Returns:
        What is written to ``satellites.json``; :func:`experiments.satellites.report.table` shows
        it.

    Raises:
        UserError: If the file cannot be used, or has too few objects.
    """
    from experiments.satellites.report import picture_of, unscored, write

    check_target(out / "satellites.json", "-o")
    started, used = time.perf_counter(), time.process_time()
    orbits = read_orbits(file_of(path))
    classes = classes_of(orbits, labels)
    table = features(orbits.elements)
    splits = [split_of(classes, len(table), codebook_size, seed) for seed in range(seeds)]
    scaled = [standardized(table, split) for split in splits]
    chosen = {}
    for name, own in methods(candidates or ddcl_candidates()).items():
        chosen[name] = choose(own, scaled, splits, codebook_size)
        minutes = (time.perf_counter() - started) / 60
        say(f"{minutes:5.1f} min  {name}: {chosen[name].candidate or 'nothing to choose'}")
    first = splits[0]
    result: dict[str, Any] = {
        "data": description(orbits, classes, labels),
        "codebook_size": codebook_size,
        "seeds": seeds,
        "rows": {part: len(rows) for part, rows in first._asdict().items()},
        "features": list(FEATURES),
        "methods": [
            entry
            for name, found in chosen.items()
            for entry in entries(name, found, scaled, splits, classes)
        ],
        "identity": identity(chosen[DDCL].fits),
        "history": [[epoch._asdict() for epoch in one.history] for one in chosen[DDCL].fits],
        "minutes": (time.perf_counter() - started) / 60,
        "cpu_minutes": (time.process_time() - used) / 60,
    }
    if reason := unscored(result):
        say(reason)
    write(result, out, picture_of(orbits, classes, chosen, scaled[0], first))
    return result


def file_of(path: Path | None) -> Path:
    """The file named, in the folder named, or among the shared data."""
    if path is None:
        from experiments.documents.corpora import data_folder

        path = data_folder("satellites", None, "--data-dir")
    return path / FILE if path.is_dir() else path


def classes_of(orbits: Orbits, labels: str) -> NDArray[np.str_] | None:
    """Classes to score by: the file's own, those of the rule, or none."""
    if labels not in ("auto", "rule", "none"):
        raise UserError(f"labels must be auto, rule or none, got {labels!r}")
    if labels == "none":
        return None
    if labels == "rule" or orbits.labels is None:
        return regimes(orbits.elements)
    return orbits.labels


def split_of(classes: NDArray[np.str_] | None, count: int, codebook_size: int, seed: int) -> Split:
    """Row numbers of a seed, by classes in equal shares where each has enough rows.

    Raises:
        DatasetError: If a part would have no more rows than clusters.
    """
    from sklearn.model_selection import train_test_split

    least = 8 * (max(codebook_size, CLUSTER_COUNTS[-1]) + 1)
    if count < least:
        raise DatasetError(f"{count} objects are too few for these clusters: give {least} or more")
    enough = classes is not None and min(Counter(classes.tolist()).values()) >= 8

    def parts(rows: NDArray[np.int64], share: float, state: int) -> list[NDArray[np.int64]]:
        own = classes[rows] if classes is not None and enough else None
        return train_test_split(rows, test_size=share, random_state=state, stratify=own)

    rest, test = parts(np.arange(count), TEST_SHARE, 0)
    train, validation = parts(rest, VALIDATION_SHARE, seed)
    return Split(train, validation, test)


def standardized(table: Rows, split: Split) -> Rows:
    """All rows by mean and standard deviation of the training rows; a constant column is 0."""
    train = table[split.train]
    deviation = train.std(axis=0)
    return (table - train.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)


def identity(fits: Sequence[Fit]) -> dict[str, Any]:
    """How far L_q was from L_OLS + V in the epochs of the chosen candidate."""
    residuals = [epoch.residual for one in fits for epoch in one.history]
    return {
        "epochs": len(residuals),
        "largest_residual": max(residuals),
        "tolerance": LARGEST_RESIDUAL,
    }


def description(orbits: Orbits, classes: NDArray[np.str_] | None, labels: str) -> dict[str, Any]:
    """What the rows and classes are."""
    own = orbits.labels if labels == "auto" else None
    named = "none" if classes is None else "rule" if own is None else "column"
    agreement = None
    if orbits.labels is not None:
        agreement = float(np.mean(orbits.labels == regimes(orbits.elements)))
    return {
        "source": orbits.source,
        "objects": orbits.rows,
        "used": len(orbits.names),
        "dropped": orbits.dropped,
        "filled": orbits.filled,
        "labels": named,
        "classes": {} if classes is None else dict(Counter(classes.tolist()).most_common()),
        "rule_agreement": agreement,
    }
