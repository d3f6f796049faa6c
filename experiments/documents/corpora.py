"""Text corpora with labels, read from local files: SST-2, 20 Newsgroups, IMDB."""

from __future__ import annotations

import json
import lzma
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from training.errors import DatasetError, UserError

# Lines that quote another article, or say that a quotation follows.
QUOTED = re.compile(r"^[>|]|^In article|^Quoted from|(writes|wrote|says|said):|writes in")


class Corpus(NamedTuple):
    """One split of a data set.

    Attributes:
        texts: The documents, none of them empty.
        labels: (N,) int64, index of each document's class.
        dropped: Documents that had no text, which were left out.
    """

    texts: list[str]
    labels: np.ndarray
    dropped: int


class TextData(NamedTuple):
    """A data set.

    Attributes:
        name: ``"sst2"``, ``"20news"`` or ``"imdb"``.
        classes: Names of the classes, by label.
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


class Source(NamedTuple):
    """Where a data set's documents stand: its files, and what reads one of them."""

    files: tuple[str, ...]
    read: Callable[[Path], Iterator[Document]]


def strip_header(text: str) -> str:
    r"""What follows the first blank line of a newsgroup article.

    Example:
        >>> strip_header("From: a@b\nSubject: c\n\nBody")
        'Body'
    """
    return text.partition("\n\n")[2]


def strip_quotes(text: str) -> str:
    r"""An article without its quoted lines, and without those that introduce a quotation.

    Example:
        >>> strip_quotes("Joe writes:\n> old\nnew")
        'new'
    """
    return "\n".join(line for line in text.split("\n") if not QUOTED.search(line))


def strip_footer(text: str) -> str:
    r"""An article without what follows its last blank or dashed line, mostly a signature.

    An article of one paragraph stays as it is.

    Example:
        >>> strip_footer("Body\n--\nJoe, Institute of Things")
        'Body'
    """
    lines = text.strip().split("\n")
    rules = [number for number, line in enumerate(lines) if not line.strip().strip("-")]
    return "\n".join(lines[: rules[-1]]) if rules and rules[-1] > 0 else text


def strip_article(text: str) -> str:
    r"""A newsgroup article without header, quotations and footer, in that order.

    Headers and signatures name the group or the author, and quotations repeat other documents:
    with them, a classifier or a clustering finds who wrote, not what about.

    Example:
        >>> strip_article("From: a\n\nJoe writes:\n> old\nnew\n\n--\nAnn").strip()
        'new'
    """
    return strip_footer(strip_quotes(strip_header(text)))


def line_ends(text: str) -> str:
    r"""An article whose lines end with newlines, though a copy of it has tabs there.

    The training part of a copy in circulation is one line for each article. Without its lines an
    article cannot be stripped. Its true tabs become line ends as well.

    Example:
        >>> line_ends("Subject: a\tLines: 1\t\tBody\n")
        'Subject: a\nLines: 1\n\nBody\n'
    """
    return text if "\n" in text.strip() else text.replace("\t", "\n")


def data_folder(name: str, given: Path | None, option: str) -> Path:
    """A folder of shared data: as given, else below ``$SOFTVQ_SHARED`` or ``../shared/data``.

    Args:
        name: Its name below the shared data.
        given: The folder that the user named, or None.
        option: The option that names it, for the message.

    Raises:
        UserError: If there is no such folder.
    """
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = given or Path(os.environ.get("SOFTVQ_SHARED") or beside) / name
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; name one with {option}")
    return folder


def load_text(name: str, folder: Path | None = None, limit: int | None = None) -> TextData:
    """Read a data set.

    Documents come in an order drawn once and for all, so that a limit takes all classes alike
    and a larger one only adds documents.

    Args:
        name: ``"sst2"``, ``"20news"`` or ``"imdb"``.
        folder: Of the files; see :func:`data_folder`.
        limit: Use only the first N documents of each split.

    Raises:
        UserError: If the folder is missing, or the name unknown.
        DatasetError: If a file is missing or damaged.
    """
    if name not in SOURCES:
        raise UserError(f"unknown data set {name!r}; choose from {', '.join(SOURCES)}")
    folder = data_folder("text", folder, "--data-dir")
    documents = [d for file in SOURCES[name].files for d in _read(name, folder / file)]
    classes = tuple(sorted({document.label for document in documents}))
    splits = {
        split: _corpus([d for d in documents if d.split == split], classes, limit)
        for split in ("train", "dev", "test")
        if any(document.split == split for document in documents)
    }
    return TextData(name, classes, splits)


def _read(name: str, path: Path) -> list[Document]:
    if not path.is_file():
        raise DatasetError(
            f"{path} is missing; name the folder that holds it with --data-dir FOLDER"
        )
    try:
        return list(SOURCES[name].read(path))
    except (lzma.LZMAError, EOFError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"{path} cannot be read as {name} ({type(error).__name__}: {error!s:.120}); "
            "fetch it again"
        ) from error


def _corpus(documents: list[Document], classes: tuple[str, ...], limit: int | None) -> Corpus:
    kept = [document for document in documents if document.text.strip()]
    order = np.random.default_rng(0).permutation(len(kept))[:limit]
    labels = np.array([classes.index(kept[i].label) for i in order], dtype=np.int64)
    return Corpus([kept[i].text for i in order], labels, len(documents) - len(kept))


def _read_sst2(path: Path) -> Iterator[Document]:
    """Lines ``text<TAB>label``; the file's name ends with the split."""
    split = path.stem.rpartition("_")[2]
    # Not splitlines(): a sentence may hold other characters that count as line ends.
    for line in path.read_text(encoding="utf-8").rstrip("\n").split("\n"):
        text, label = line.split("\t")
        yield Document(split, {"0": "negative", "1": "positive"}[label], text)


def _read_20news(path: Path) -> Iterator[Document]:
    for row in _json_lines(path):
        yield Document(row["split"], row["group"], strip_article(line_ends(row["text"])))


def _read_imdb(path: Path) -> Iterator[Document]:
    for row in _json_lines(path):
        label = {0: "negative", 1: "positive"}[row["label"]]
        # The reviews keep the line breaks of the web page that they come from.
        yield Document(row["split"], label, row["text"].replace("<br />", " "))


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


SOURCES = {
    "sst2": Source(("sst2_sent_train.tsv", "sst2_sent_dev.tsv", "sst2_sent_test.tsv"), _read_sst2),
    "20news": Source(("20news_bydate.jsonl.xz",), _read_20news),
    "imdb": Source(("imdb_10k.jsonl.xz",), _read_imdb),
}
