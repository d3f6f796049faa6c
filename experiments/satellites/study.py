"""Orbital regimes found without labels: DDCL on a small encoder against k-means and mixtures."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.command import data_folder
from training.checkpoint import check_target, write_text
from training.errors import DatasetError

from .choice import Chosen, Fold, choose, entries
from .methods import CLUSTER_COUNTS, DDCL, KMEANS, ddcl_candidates, methods
from .network import Settings
from .orbits import FEATURES, Orbits, features, read_orbits
from .report import plot, table

FILE = "ucs_satellite_database.csv.xz"
TEST_SHARE = 0.25  # of all rows, the same for every seed
VALIDATION_SHARE = 1 / 3  # of the others


# Row numbers of ``train`` and ``validation``, drawn for each seed, and of ``test``, drawn once.
Split = dict[str, NDArray[np.int64]]


def run(
    path: Path | None,
    out: Path,
    *,
    codebook_size: int = 4,
    seeds: int = 5,
    candidates: Sequence[Settings] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Cluster orbits by every method, and write ``satellites.json``, ``.md`` and ``.png``.

    Methods are fitted on training rows without labels, their settings chosen by the best mean
    silhouette of standardised validation rows, and scored on test rows.

    Args:
        path: The UCS table or its folder; None takes the one among the shared data.
        out: The folder of the results.
        codebook_size: The number of clusters of all methods but the one that chooses its own.
        seeds: The number of repetitions of split and fit.
        candidates: The settings that DDCL may choose among; None takes ``ddcl_candidates()``.
        say: Called with a line of progress.

    Raises:
        UserError: If the file cannot be used or has too few objects.
    """
    check_target(out / "satellites.json", "-o")
    started, used = time.perf_counter(), time.process_time()
    orbits = read_orbits(file_of(path))
    splits = [split_of(orbits.labels, codebook_size, seed) for seed in range(seeds)]
    folds = [fold_of(orbits, split) for split in splits]
    chosen = {}
    for name, own in methods(candidates or ddcl_candidates()).items():
        chosen[name] = found = choose(own, folds, codebook_size)
        minutes = (time.perf_counter() - started) / 60
        say(f"{minutes:5.1f} min  {name}: {found.candidate or 'nothing to choose'}")
    result = {
        "data": orbits.description,
        "codebook_size": codebook_size,
        "rows": {part: len(classes) for part, classes in folds[0].classes.items()},
        **results(chosen, folds),
        "minutes": (time.perf_counter() - started) / 60,
        "cpu_minutes": (time.process_time() - used) / 60,
    }
    write_text(out / "satellites.json", json.dumps(result, indent=1) + "\n")
    write_text(out / "satellites.md", table(result) + "\n")
    panels: dict[str, NDArray[Any]] = {"class": folds[0].classes["test"]}
    for name in (DDCL, KMEANS):
        panels[f"{name}, clusters"] = chosen[name].fits[0].own(folds[0].rows["test"])
    plot(out / "satellites.png", orbits.elements[splits[0]["test"]], panels)
    return result


def file_of(path: Path | None) -> Path:
    """Return the file named, in the folder named, or among the shared data."""
    path = path or data_folder("satellites", None, "--data-dir")
    return path / FILE if path.is_dir() else path


def results(chosen: dict[str, Chosen], folds: Sequence[Fold]) -> dict[str, Any]:
    """Return the scores of all methods, and the epochs of the chosen candidate of DDCL."""
    history = [one.history for one in chosen[DDCL].fits]
    residuals = [epoch["residual"] for epochs in history for epoch in epochs]
    return {
        "seeds": len(folds),
        "features": list(FEATURES),
        "methods": [e for name, found in chosen.items() for e in entries(name, found, folds)],
        "identity": {"epochs": len(residuals), "largest_residual": max(residuals)},
        "history": history,
    }


def split_of(classes: NDArray[np.str_], codebook_size: int, seed: int) -> Split:
    """Return the row numbers of a seed, by classes in equal shares where each has enough rows.

    Raises:
        DatasetError: If a part would have no more rows than clusters, or all rows are of one class.
    """
    from sklearn.model_selection import train_test_split

    sizes, least = Counter(classes.tolist()), 8 * (max(codebook_size, CLUSTER_COUNTS[-1]) + 1)
    if len(classes) < least:
        raise DatasetError(
            f"{len(classes)} objects are too few for these clusters: give {least} or more"
        )
    if len(sizes) < 2:
        raise DatasetError(f"all {len(classes)} objects are of one class, {classes[0]}: give two")

    def parts(rows: NDArray[np.int64], share: float, state: int) -> list[NDArray[np.int64]]:
        own = classes[rows] if min(sizes.values()) >= 8 else None
        return train_test_split(rows, test_size=share, random_state=state, stratify=own)

    rest, test = parts(np.arange(len(classes)), TEST_SHARE, 0)
    train, validation = parts(rest, VALIDATION_SHARE, seed)
    return {"train": train, "validation": validation, "test": test}


def fold_of(orbits: Orbits, split: Split) -> Fold:
    """Return the rows and classes of each part.

    Rows are scaled by mean and deviation of the training rows; a constant column becomes 0.
    """
    table = features(orbits.elements)
    train = table[split["train"]]
    deviation = train.std(axis=0)
    scaled = (table - train.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    classes = {part: orbits.labels[rows] for part, rows in split.items()}
    return Fold({part: scaled[rows] for part, rows in split.items()}, classes)
