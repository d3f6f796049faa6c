"""What all methods of a clustering of documents share, checked before anything is fitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from eval.compare.intervals import summary
from experiments.command import data_folder
from training.errors import DatasetError

from .corpora import TextData, load_text
from .embeddings import embed
from .encoder import load_encoder
from .readout import ReadoutSettings
from .vectors import Documents, LinearEncoder, documents, fit_encoder

Say = Callable[[str], None]
ENCODER = "minilm_l6_v2_fp16"


@dataclass(frozen=True)
class Options:
    """What ``python -m experiments.documents`` can be asked.

    Attributes:
        name: The corpus, a name of :func:`experiments.documents.corpora.load_text`.
        cache: The folder of the token embeddings.
        data_dir: The folder of the corpus's files.
        encoder: The Hugging Face folder of the frozen encoder.
        codebook_size: The number of clusters; None takes the number of classes.
        seeds: The number of repetitions of every fit.
        limit: The number of documents to use of each split; None uses all.
        max_length: The number of tokens to keep of a document.
    """

    name: str
    cache: Path
    data_dir: Path | None = None
    encoder: Path | None = None
    codebook_size: int | None = None
    seeds: int = 5
    limit: int | None = None
    max_length: int = 128


class Study(NamedTuple):
    """What all methods share.

    Attributes:
        data: The texts and labels.
        splits: The same, embedded.
        tokenizer: The tokenizer of the transformer.
        encoder: The linear encoder, fitted on the training split.
        codebook_size: The number of clusters of all methods, K.
        seeds: The number of repetitions.
        say: Called with a line of progress.
    """

    data: TextData
    splits: dict[str, Documents]
    tokenizer: Any
    encoder: LinearEncoder
    codebook_size: int
    seeds: int
    say: Say


def prepare(options: Options, say: Say) -> tuple[Study, dict[str, Any]]:
    """Read and embed all splits, fit the linear encoder, and say what was done.

    Raises:
        UserError: If a folder or file is missing, or there are fewer documents than clusters.
    """
    folder = data_folder(ENCODER, options.encoder, "--encoder")
    data = load_text(options.name, options.data_dir, options.limit)
    size, frozen = clusters_of(data, options.codebook_size), load_encoder(folder)
    splits = {}
    for split, corpus in data.splits.items():
        length, title = options.max_length, f"{data.name} {split}"
        tokens = embed(corpus.texts, frozen, options.cache, max_length=length, title=title)
        splits[split] = documents(tokens)
    axes = axes_of(splits["train"].mean, size)
    return Study(data, splits, frozen.tokenizer, axes, size, options.seeds, say), {
        "data": data.name,
        "classes": list(data.classes),
        "documents": {split: len(corpus.texts) for split, corpus in data.splits.items()},
        "dropped_empty": {split: corpus.dropped for split, corpus in data.splits.items()},
        "tokens": {split: len(part.tokens.ids) for split, part in splits.items()},
        "codebook_size": size,
        "encoder": folder.name,
        **{name: getattr(options, name) for name in ("seeds", "limit", "max_length")},
    }


def clusters_of(data: TextData, codebook_size: int | None) -> int:
    """Return K: as given, else the number of classes.

    Raises:
        DatasetError: If there are no more distinct training documents than that, or a split has
            documents of a single class, by which no clustering or head can be judged.
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


def axes_of(vectors: Tensor, codebook_size: int) -> LinearEncoder:
    """Fit the linear encoder to the training documents' mean tokens.

    Raises:
        DatasetError: If these are no more different vectors than clusters, or point the same way.
    """
    if (count := len(vectors.unique(dim=0))) <= codebook_size:
        raise DatasetError(
            f"the encoder makes only {count} different vectors of {len(vectors)} training "
            f"documents, too few for {codebook_size} clusters; give other documents, a longer "
            "--max-length or another --encoder"
        )
    return fit_encoder(vectors, ReadoutSettings().axes)


def over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """Return a figure's values over seeds with their mean, spread and 95 % interval."""
    return {"values": list(values), **summary(values)._asdict()}
