"""Documents clustered by a DDCL readout and by scikit-learn, over seeds, scored by classes."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.clustering import clustering_scores
from training.checkpoint import check_target, write_text

from .baselines import baselines, clusters
from .cards import cards_of, write_cards
from .heads import heads
from .readout import BALANCED, ON_TOKENS, READOUTS, FittedReadout, fit_readout
from .report import SCORES, table, to_json
from .study import Options, Say, Study, over_seeds, prepare


def run(
    options: Options, out: Path, say: Say = lambda line: None, *, progress: bool = False
) -> dict[str, Any]:
    """Cluster a corpus, and write ``cluster-NAME.json``, ``.md`` and ``.html``.

    Every method is fitted on the texts of the training split; labels only score. Where there is a
    dev split, linear heads on the vectors are trained and compared as well.

    Args:
        options: What to cluster and how.
        out: The folder of the results.
        say: Called with a line of progress.
        progress: Whether to show progress bars.

    Returns:
        What the JSON holds.

    Raises:
        UserError: If a folder or file is missing, or there are fewer documents than clusters.
    """
    path = out / f"cluster-{options.name}.json"
    check_target(path, "-o")
    check_target(options.cache / "embeddings", "--cache")
    started, used = time.perf_counter(), time.process_time()

    def minutes() -> float:
        return (time.perf_counter() - started) / 60

    study, described = prepare(options, lambda s: say(f"{minutes():5.1f} min  {s}"), progress)
    described["embedding_minutes"] = round(minutes(), 2)
    rows, fits = cluster(study)
    residuals = [epoch["gap"] for found in fits.values() for fit in found for epoch in fit.epochs]
    result = described | {
        "methods": rows,
        "settings": {method: asdict(settings) for method, settings in READOUTS.items()},
        "identity": {"epochs": len(residuals), "largest_gap": max(residuals)},
        "epochs": {method: [epochs_of(one) for one in found] for method, found in fits.items()},
        "heads": heads(study) if "dev" in study.splits else [],
        "minutes": round(minutes(), 2),
        "cpu_minutes": round((time.process_time() - used) / 60, 2),
    }
    write_text(path, to_json(result))
    write_text(path.with_suffix(".md"), table(result))
    cards = {method: cards_of(fits[method][0], study) for method in (BALANCED, ON_TOKENS)}
    write_cards(path.with_suffix(".html"), cards, result)
    return result


def cluster(study: Study) -> tuple[list[dict[str, Any]], dict[str, list[FittedReadout]]]:
    """Return rows of the table, readouts first, and the fitted readouts by name."""
    fits: dict[str, list[FittedReadout]] = {name: [] for name in READOUTS}
    others = {split: part for split, part in study.splits.items() if split != "dev"}
    shared = study.encoder, study.codebook_size
    train, scored, known = study.splits["train"], list(others.values()), baselines()

    def clusters_by(name: str, seed: int) -> list[NDArray[np.int64]]:
        if name in known:
            return clusters(known[name], train, scored, *shared, seed)
        fits[name].append(fit := fit_readout(train, *shared, seed, READOUTS[name]))
        return [fit.read(part)[0].argmax(dim=1).numpy() for part in scored]

    rows = []
    for name in [*READOUTS, *known]:
        start = time.perf_counter()
        found = [dict(zip(others, clusters_by(name, s), strict=True)) for s in range(study.seeds)]
        rows.append(entry(study, name, found, time.perf_counter() - start))
    return rows, fits


def entry(
    study: Study, name: str, found: list[dict[str, NDArray[np.int64]]], seconds: float
) -> dict[str, Any]:
    """Score a method: for each split every seed's scores, their mean, spread and interval."""
    row: dict[str, Any] = {"method": name, "seconds": round(seconds, 1)}
    for split in found[0]:
        labels = study.data.splits[split].labels
        scores = [clustering_scores(labels, one[split]) for one in found]
        row[split] = {key: over_seeds([getattr(score, key) for score in scores]) for key in SCORES}
        row[split]["clusters"] = [len(score.clusters) for score in scores]
        row[split]["mapping"] = [
            {str(k): study.data.classes[v] for k, v in score.mapping.items()} for score in scores
        ]
    means = ", ".join(f"{key} {row['test'][key]['mean']:.3f}" for key in SCORES)
    study.say(f"{name}: {means}")
    return row


def epochs_of(fit: FittedReadout) -> dict[str, list[float]]:
    """Return every figure of a run's epochs in their order, to five digits."""
    return {key: [float(f"{one[key]:.5g}") for one in fit.epochs] for key in fit.epochs[0]}
