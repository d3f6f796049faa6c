"""Text corpora with labels, read from local files: SST-2, 20 Newsgroups, IMDB."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.command import data_folder
from training.errors import DatasetError, UserError

FILES = {
    "sst2": ("sst2_sent_train.tsv", "sst2_sent_dev.tsv", "sst2_sent_test.tsv"),
    "20news": ("20news_bydate.jsonl.xz",),
    "imdb": ("imdb_10k.jsonl.xz",),
}


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


class Document(NamedTuple):
    """A document as its file has it."""

    split: str
    label: str
    text: str


def load_text(name: str, folder: Path | None = None, limit: int | None = None) -> TextData:
    """Read a data set.

    Documents come in an order drawn once and for all, so that a limit takes all classes alike
    and a larger one only adds documents.

    Args:
        name: ``"sst2"``, ``"20news"`` or ``"imdb"``.
        folder: The folder of the files; by default ``text`` in the shared data.
        limit: The number of documents to use of each split; None uses all.

    Raises:
        UserError: If the folder is missing, or the name unknown.
        DatasetError: If a file is missing or damaged.
    """
    if name not in FILES:
        raise UserError(f"unknown data set {name!r}; choose from {', '.join(FILES)}")
    folder = data_folder("text", folder, "--data-dir")
    documents = [document for file in FILES[name] for document in _read(name, folder / file)]
    classes = tuple(sorted({document.label for document in documents}))
    splits = {}
    for split in ("train", "dev", "test"):
        own = [document for document in documents if document.split == split]
        if not own:
            continue
        kept = [document for document in own if document.text.strip()]
        order = np.random.default_rng(0).permutation(len(kept))[:limit]
        labels = np.array([classes.index(kept[i].label) for i in order], dtype=np.int64)
        splits[split] = Corpus([kept[i].text for i in order], labels, len(own) - len(kept))
    return TextData(name, classes, splits)


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


def _read(name: str, path: Path) -> list[Document]:
    if not path.is_file():
        raise DatasetError(
            f"{path} is missing; name the folder that holds it with --data-dir FOLDER"
        )
    try:
        return list(_sentences(path) if name == "sst2" else _rows(path, name))
    except (lzma.LZMAError, EOFError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"{path} cannot be read as {name} ({type(error).__name__}: {error!s:.120}); "
            "fetch it again"
        ) from error


def _sentences(path: Path) -> Iterator[Document]:
    """Read lines ``text<TAB>label``; the file's name ends with the split."""
    # Not splitlines(): a sentence may hold other characters that count as line ends.
    for line in path.read_text(encoding="utf-8").rstrip("\n").split("\n"):
        text, label = line.split("\t")
        yield Document(path.stem.rpartition("_")[2], _SENTIMENTS[int(label)], text)


def _rows(path: Path, name: str) -> Iterator[Document]:
    """Read a JSON object from each line."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            text = row["text"]
            if name == "20news":
                yield Document(row["split"], row["group"], strip_article(text))
            else:  # The reviews keep the line breaks of the web page that they come from.
                label = _SENTIMENTS[row["label"]]
                yield Document(row["split"], label, text.replace("<br />", " "))


_SENTIMENTS = {0: "negative", 1: "positive"}
