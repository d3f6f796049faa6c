"""What all methods of a clustering of documents share, checked before anything is fitted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.documents.corpora import TextData
from experiments.documents.embeddings import embed
from experiments.documents.encoder import Encoder
from experiments.documents.readout import ReadoutSettings
from experiments.documents.vectors import Documents, LinearEncoder, documents, fit_encoder
from training.errors import DatasetError

Say = Callable[[str], None]


class Study(NamedTuple):
    """What all methods share.

    Attributes:
        data: Texts and labels.
        splits: The same, embedded.
        encoder: Linear, fitted on the training split.
        codebook_size: K of all methods.
        seeds: Repetitions.
        started: Of the clock, seconds.
        say: Called with a line of progress.
    """

    data: TextData
    splits: dict[str, Documents]
    encoder: LinearEncoder
    codebook_size: int
    seeds: int
    started: float
    say: Say


def clusters_of(data: TextData, codebook_size: int | None) -> int:
    """K: as given, else the number of classes.

    Raises:
        DatasetError: If there are no more distinct training documents than that, or a split has
            documents of a single class, which no clustering or head can be judged by.
    """
    size, count = codebook_size or len(data.classes), len(set(data.splits["train"].texts))
    if count <= size:
        raise DatasetError(
            f"{count} different training documents are too few for {size} clusters; raise --limit "
            "or lower --k"
        )
    for split, corpus in data.splits.items():
        if len(found := np.unique(corpus.labels)) < 2:
            names = ", ".join(data.classes[label] for label in found)
            raise DatasetError(
                f"all {len(corpus.texts)} documents of the {split} split are of one class "
                f"({names}); raise --limit"
            )
    return size


def prepare(
    data: TextData,
    encoder: Encoder,
    cache: Path,
    max_length: int,
    codebook_size: int,
    seeds: int,
    progress: bool,
    say: Say,
) -> Study:
    """Embed all splits, and fit the linear encoder on the training split.

    Raises:
        DatasetError: If the training documents are no more different vectors than clusters.
    """
    started = time.perf_counter()
    splits = {}
    for split, corpus in data.splits.items():
        title = f"{data.name} {split}" if progress else None
        tokens = embed(corpus.texts, encoder, cache, max_length=max_length, progress=title)
        splits[split] = documents(tokens)
    axes = axes_of(splits["train"].mean, codebook_size)
    return Study(data, splits, axes, codebook_size, seeds, started, say)


def axes_of(vectors: NDArray[np.float32], codebook_size: int) -> LinearEncoder:
    """The linear encoder of the training documents' mean tokens.

    Raises:
        DatasetError: If these are no more different vectors than clusters.
    """
    if (count := len(np.unique(vectors, axis=0))) <= codebook_size:
        raise DatasetError(
            f"the encoder makes only {count} different vectors of {len(vectors)} training "
            f"documents, too few for {codebook_size} clusters; give other documents, a longer "
            "--max-length or another --encoder"
        )
    try:
        return fit_encoder(vectors, ReadoutSettings().axes)
    except ValueError as error:
        raise DatasetError(f"the training documents cannot be told apart: {error}") from error


def description(study: Study) -> dict[str, Any]:
    """What was clustered."""
    corpora = study.data.splits
    return {
        "data": study.data.name,
        "classes": list(study.data.classes),
        "documents": {split: len(corpus.texts) for split, corpus in corpora.items()},
        "dropped_empty": {split: corpus.dropped for split, corpus in corpora.items()},
        "tokens": {split: len(part.tokens.ids) for split, part in study.splits.items()},
        "codebook_size": study.codebook_size,
        "seeds": study.seeds,
    }
