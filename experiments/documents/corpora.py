"""Text corpora with labels, read from local files: SST-2, 20 Newsgroups, IMDB."""

from __future__ import annotations

import csv
import lzma
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.command import data_folder
from training.errors import DatasetError

FILES = {
    "sst2": ("sst2_sent_train.tsv", "sst2_sent_dev.tsv", "sst2_sent_test.tsv"),
    "20news": ("20news_bydate.jsonl.xz",),
    "imdb": ("imdb_10k.jsonl.xz",),
}
SENTIMENTS = {0: "negative", 1: "positive"}
# A sentence may hold quotation marks, and words that pandas takes for a missing value.
VERBATIM: dict[str, Any] = {"quoting": csv.QUOTE_NONE, "keep_default_na": False}


class Corpus(NamedTuple):
    """One split of a data set.

    Attributes:
        texts: The documents, none of them empty.
        labels: The index of each document's class, int64 (N,).
        dropped: The number of documents that had no text and were left out.
    """

    texts: list[str]
    labels: np.ndarray
    dropped: int


class TextData(NamedTuple):
    """A data set.

    Attributes:
        name: ``"sst2"``, ``"20news"`` or ``"imdb"``.
        classes: The names of the classes, by label.
        splits: ``"train"`` and ``"test"``; SST-2 also has ``"dev"``.
    """

    name: str
    classes: tuple[str, ...]
    splits: dict[str, Corpus]


def load_text(name: str, folder: Path | None = None, limit: int | None = None) -> TextData:
    """Read a data set.

    Documents come in an order drawn once and for all, so that a limit takes all classes alike
    and a larger one only adds documents.

    Args:
        name: ``"sst2"``, ``"20news"`` or ``"imdb"``.
        folder: The folder of the files; by default ``text`` in the shared data.
        limit: The number of documents to use of each split; None uses all.

    Raises:
        UserError: If the folder is missing.
        DatasetError: If a file is missing or damaged.
    """
    folder = data_folder("text", folder, "--data-dir")
    documents = pd.concat([_read(name, folder / file) for file in FILES[name]])
    classes, documents["label"] = np.unique(documents["label"], return_inverse=True)
    splits = {}
    for split in ("train", "dev", "test"):
        own = documents[documents["split"] == split]
        if own.empty:
            continue
        kept = own[own["text"].str.strip() != ""]
        order = np.random.default_rng(0).permutation(len(kept))[:limit]
        texts, labels = (kept[key].to_numpy()[order] for key in ("text", "label"))
        splits[split] = Corpus(texts.tolist(), labels, len(own) - len(kept))
    return TextData(name, tuple(classes.tolist()), splits)


def strip_article(text: str) -> str:
    r"""Remove header, quotations and footer of a newsgroup article, as scikit-learn does.

    With them, a classifier or a clustering finds who wrote, not what about. The training articles
    of a copy in circulation have tabs in place of their line ends, so that nothing could be
    stripped; these become line ends again, true tabs among them.

    Example:
        >>> strip_article("From: a\n\nJoe writes:\n> old\nnew\n\n--\nAnn").strip()
        'new'
        >>> strip_article("Subject: a\tLines: 1\t\tBody\n")
        'Body\n'
    """
    from sklearn.datasets import _twenty_newsgroups as sklearn

    lines = text if "\n" in text.strip() else text.replace("\t", "\n")
    body = sklearn.strip_newsgroup_quoting(sklearn.strip_newsgroup_header(lines))
    return sklearn.strip_newsgroup_footer(body)


def _read(name: str, path: Path) -> pd.DataFrame:
    """Read a file into columns ``split``, ``label`` and ``text``."""
    if not path.is_file():
        raise DatasetError(
            f"{path} is missing; name the folder that holds it with --data-dir FOLDER"
        )
    try:
        if name == "sst2":
            found = pd.read_csv(path, sep="\t", names=["text", "label"], **VERBATIM)
            found["split"] = path.stem.rpartition("_")[2]
        else:
            found = pd.read_json(path, lines=True, dtype=False)
        if name == "20news":
            return found.assign(label=found["group"], text=found["text"].map(strip_article))
        # The reviews keep the line breaks of the web page that they come from.
        texts = found["text"].str.replace("<br />", " ")
        return found.assign(label=[SENTIMENTS[int(n)] for n in found["label"]], text=texts)
    except (lzma.LZMAError, EOFError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"{path} cannot be read as {name} ({type(error).__name__}: {error!s:.120}); "
            "fetch it again"
        ) from error
