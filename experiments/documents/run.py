"""Documents clustered by a DDCL readout and by scikit-learn, over seeds, scored by classes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.compare.intervals import summary
from experiments.documents.baselines import baselines
from experiments.documents.cards import Section, cards_of, write_cards
from experiments.documents.classify import linear_head
from experiments.documents.clustering import clustering_scores
from experiments.documents.corpora import data_folder, load_text
from experiments.documents.encoder import load_encoder
from experiments.documents.readout import FittedReadout, ReadoutEpoch, ReadoutSettings, fit_readout
from experiments.documents.report import SCORES, table, to_json
from experiments.documents.study import Say, Study, clusters_of, description, prepare
from training.checkpoint import check_target, write_text

ON_DOCUMENTS = "DDCL codebook, mean"
ON_TOKENS = "DDCL readout, tokens"
BALANCED = "DDCL codebook, mean, usage term"
# Chosen by the training split of 20 Newsgroups; docs/clustering.md says what was tried.
READOUTS = {
    BALANCED: ReadoutSettings(usage_weight=0.3),
    ON_DOCUMENTS: ReadoutSettings(),
    ON_TOKENS: ReadoutSettings(unit="token", starts=3),
}
HEAD_SIZES = (16, 64, 256)  # prototypes of the readouts under a linear head
ENCODER = "minilm_l6_v2_fp16"


def run(
    name: str,
    out: Path,
    *,
    data_dir: Path | None = None,
    encoder: Path | None = None,
    cache: Path,
    codebook_size: int | None = None,
    seeds: int = 5,
    limit: int | None = None,
    max_length: int = 128,
    progress: bool = False,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Cluster a data set, and write ``cluster-NAME.json``, ``.md`` and ``.html``.

    Every method is fitted on the texts of the training split; labels only score. Where there is a
    dev split, linear heads on the vectors are trained and compared as well.

    Args:
        name: Of :func:`experiments.documents.corpora.load_text`.
        out: Folder of the results.
        data_dir: Folder of the data's files.
        encoder: Hugging Face folder of the frozen encoder.
        cache: Folder of the token embeddings.
        codebook_size: K; by default the number of classes.
        seeds: Repetitions of every fit.
        limit: Use only so many documents of each split.
        max_length: Tokens kept of a document.
        progress: Whether to show progress bars.
        say: Called with a line of progress.

    Returns:
        What the JSON holds.

    Raises:
        UserError: If a folder or file is missing, or there are fewer documents than clusters.
    """
    check_target(out / f"cluster-{name}.json", "-o")
    check_target(cache / "embeddings", "--cache")
    started, used = time.perf_counter(), time.process_time()
    folder = data_folder(ENCODER, encoder, "--encoder")
    data = load_text(name, data_dir, limit)
    size = clusters_of(data, codebook_size)
    frozen = load_encoder(folder)
    study = prepare(data, frozen, cache, max_length, size, seeds, progress, say)
    study = study._replace(started=started)
    embedded = time.perf_counter()
    rows, fits = cluster(study)
    result = description(study) | {
        "limit": limit,
        "encoder": folder.name,
        "max_length": max_length,
        "methods": rows,
        "settings": {method: asdict(settings) for method, settings in READOUTS.items()},
        "identity": identity(fits),
        "epochs": {method: [epochs_of(one) for one in found] for method, found in fits.items()},
        "heads": heads(study) if "dev" in data.splits else [],
        "head_sizes_skipped": head_sizes(study)[1] if "dev" in data.splits else [],
        "embedding_minutes": round((embedded - started) / 60, 2),
        "minutes": round((time.perf_counter() - started) / 60, 2),
        "cpu_minutes": round((time.process_time() - used) / 60, 2),
    }
    sections = []
    for method in (BALANCED, ON_TOKENS):
        cards = cards_of(fits[method][0], study.splits["train"], data, frozen.tokenizer)
        sections.append(Section(method, READOUTS[method].unit, cards))
    write_text(out / f"cluster-{name}.json", to_json(result))
    write_text(out / f"cluster-{name}.md", table(result))
    write_cards(out / f"cluster-{name}.html", sections, result)
    return result


def cluster(study: Study) -> tuple[list[dict[str, Any]], dict[str, list[FittedReadout]]]:
    """Rows of the table, readouts first, and the fitted readouts by name, one for each seed."""
    rows: list[dict[str, Any]] = []
    fits: dict[str, list[FittedReadout]] = {}
    train, scored = study.splits["train"], [s for s in study.splits if s != "dev"]
    others = [study.splits[split] for split in scored]
    for name, settings in READOUTS.items():
        start, found = time.perf_counter(), []
        fits[name] = []
        for seed in range(study.seeds):
            fit = fit_readout(train, study.encoder, study.codebook_size, seed, settings)
            fits[name].append(fit)
            found.append([fit.proportions(split).argmax(dim=1).numpy() for split in others])
        rows.append(entry(study, name, scored, found, start))
    for name, baseline in baselines().items():
        start = time.perf_counter()
        found = [
            baseline.clusters(train, others, study.encoder, study.codebook_size, seed)
            for seed in range(study.seeds)
        ]
        rows.append(entry(study, name, scored, found, start))
    return rows, fits


def entry(
    study: Study,
    name: str,
    splits: list[str],
    found: list[list[NDArray[np.int64]]],
    start: float,
) -> dict[str, Any]:
    """Scores of a method: for each split every seed's, their mean, spread and interval."""
    row: dict[str, Any] = {"method": name, "seconds": round(time.perf_counter() - start, 1)}
    for number, split in enumerate(splits):
        labels = study.data.splits[split].labels
        scores = [clustering_scores(labels, clusters[number]) for clusters in found]
        row[split] = {
            key: summary_of([float(getattr(score, key)) for score in scores]) for key in SCORES
        }
        row[split]["clusters"] = [len(np.unique(clusters[number])) for clusters in found]
        row[split]["mapping"] = [
            {str(k): study.data.classes[v] for k, v in score.mapping.items()} for score in scores
        ]
    means = [f"{key} {row['test'][key]['mean']:.3f}" for key in SCORES]
    minutes = (time.perf_counter() - study.started) / 60
    study.say(f"{minutes:5.1f} min  {name}: {', '.join(means)}")
    return row


def summary_of(values: list[float]) -> dict[str, Any]:
    """A figure over seeds, as JSON."""
    found = summary(values)
    return {"values": values, "mean": found.mean, "sd": found.sd, "interval": found.interval}


def identity(fits: Mapping[str, list[FittedReadout]]) -> dict[str, Any]:
    """How far L_q was from L_OLS + V in all epochs of all runs."""
    gaps = [epoch.gap for found in fits.values() for fit in found for epoch in fit.epochs]
    return {"epochs": len(gaps), "largest_gap": max(gaps)}


def epochs_of(fit: FittedReadout) -> dict[str, list[float]]:
    """A run's epochs, to five digits: every figure's values in their order."""
    return {
        key: [float(f"{getattr(epoch, key):.5g}") for epoch in fit.epochs]
        for key in ReadoutEpoch._fields
    }


def heads(study: Study) -> list[dict[str, Any]]:
    """Linear heads on the vectors of readouts over tokens, on CLS and on the mean token."""
    labels = {split: corpus.labels for split, corpus in study.data.splits.items()}
    rows = [
        head(study, name, labels, [{s: getattr(d, key) for s, d in study.splits.items()}])
        for name, key in (("CLS", "cls"), ("mean", "mean"))
    ]
    axes = {s: study.encoder(d.mean).numpy() for s, d in study.splits.items()}
    rows.append(head(study, "mean, principal axes", labels, [axes]))
    settings = replace(READOUTS[ON_TOKENS], starts=1)
    for size in head_sizes(study)[0]:
        fits = [
            fit_readout(study.splits["train"], study.encoder, size, seed, settings)
            for seed in range(study.seeds)
        ]
        for key in ("proportions", "pooled"):
            vectors = [
                {s: getattr(fit, key)(d).numpy() for s, d in study.splits.items()} for fit in fits
            ]
            rows.append(head(study, f"DDCL {key}, K = {size}", labels, vectors))
    return rows


def head_sizes(study: Study) -> tuple[list[int], list[int]]:
    """Numbers of prototypes under linear heads: those to fit, and those above the tokens.

    A readout starts from k-means, which needs as many training tokens as prototypes.
    """
    tokens = len(study.splits["train"].tokens.ids)
    sizes = sorted(HEAD_SIZES)
    return [size for size in sizes if size <= tokens], [size for size in sizes if size > tokens]


def head(
    study: Study,
    name: str,
    labels: dict[str, NDArray[np.int64]],
    vectors: list[dict[str, NDArray[np.float32]]],
) -> dict[str, Any]:
    """Accuracies of a linear head, for each of the fits that made its vectors."""
    scores = [linear_head(one, labels) for one in vectors]
    row: dict[str, Any] = {
        "vectors": name,
        "features": scores[0].features,
        "strength": [score.strength for score in scores],
        "dev": summary_of([score.dev for score in scores]),
        "test": summary_of([score.test for score in scores]),
    }
    minutes = (time.perf_counter() - study.started) / 60
    study.say(f"{minutes:5.1f} min  head on {name}: {row['test']['mean']:.3f}")
    return row
