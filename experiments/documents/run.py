"""Documents clustered by a DDCL readout and by scikit-learn, over seeds, scored by classes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.clustering import clustering_scores, figure, markdown, pairing_table
from training.checkpoint import check_target, write_text

from .baselines import baselines, fit_baseline
from .cards import cards_of, page
from .heads import heads
from .readout import BALANCED, ON_TOKENS, READOUTS, FittedReadout, fit_readout
from .study import Options, Say, Study, over_seeds, prepare

SCORES = ("accuracy", "nmi", "ari", "purity")


def run(options: Options, out: Path, say: Say) -> dict[str, Any]:
    """Cluster a corpus, and write ``cluster-NAME.json``, ``.md`` and ``.html``.

    Every method is fitted on the texts of the training split; labels only score. Where there is a
    dev split, linear heads on the vectors are trained and compared as well.

    Args:
        options: What to cluster and how.
        out: The folder of the results.
        say: Called with a line of progress.

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

    study, described = prepare(options, lambda s: say(f"{minutes():5.1f} min  {s}"))
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
    write_text(path, json.dumps(result) + "\n")
    write_text(path.with_suffix(".md"), table(result))
    cards = {method: cards_of(fits[method][0], study) for method in (BALANCED, ON_TOKENS)}
    write_text(path.with_suffix(".html"), page(cards, result))
    return result


def cluster(study: Study) -> tuple[list[dict[str, Any]], dict[str, list[FittedReadout]]]:
    """Return rows of the table, readouts first, and the fitted readouts by name."""
    fits: dict[str, list[FittedReadout]] = {name: [] for name in READOUTS}
    train, known, rows = study.splits["train"], baselines(), []
    for name in [*READOUTS, *known]:
        start, found = time.perf_counter(), []
        for seed in range(study.seeds):
            if name in known:
                clusters = fit_baseline(*known[name], study, seed)
            else:
                fit = fit_readout(train, study.encoder, study.codebook_size, seed, READOUTS[name])
                fits[name].append(fit)
                clusters = fit.clusters
            found.append({s: clusters(part) for s, part in study.splits.items() if s != "dev"})
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


def table(result: Mapping[str, Any]) -> str:
    """Write the scores of the test split as Markdown, mean and standard deviation over seeds.

    Below stands the pairing of clusters and classes of the first seed, then the linear heads.
    """
    seeds, methods = result["seeds"], result["methods"]
    scores = [
        [row["method"], *(figure(row["test"][key]) for key in SCORES), f"{row['seconds']:.0f}"]
        for row in methods
    ]
    parts = [
        f"K = {result['codebook_size']} clusters, {len(result['classes'])} classes; test split, "
        f"{seeds} seed{'s' if seeds != 1 else ''}.",
        markdown(scores, ["method", "ACC", "NMI", "ARI", "purity", "seconds"]),
        pairing_table({row["method"]: row["test"]["mapping"][0] for row in methods}),
    ]
    if result["heads"]:
        rows = [
            [row["vectors"], str(row["features"]), figure(row["dev"]), figure(row["test"])]
            for row in result["heads"]
        ]
        parts.append(markdown(rows, ["linear head on", "values", "dev", "test"]))
    return "\n\n".join(parts) + "\n"
