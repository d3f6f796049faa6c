"""What each prototype stands for, as a page: its share, its documents, its words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from eval.report.html import filled
from experiments.documents.corpora import TextData
from experiments.documents.readout import FittedReadout, encode_tokens
from experiments.documents.vectors import Documents
from softvq import assignments
from training.checkpoint import write_text

TEMPLATE = Path(__file__).with_name("cards.html.jinja")
DOCUMENTS, WORDS, DOCUMENT_WORDS = 5, 15, 6
EXCERPT = 280  # characters
# Occurrences at the mean share of a prototype that every word is given beside its own.
PRIOR = 10.0


class TopDocument(NamedTuple):
    """A document of a card.

    Attributes:
        share: Of the prototype in it.
        label: Its class.
        words: Its words that are assigned to the prototype most, there and everywhere.
        excerpt: How it begins.
    """

    share: float
    label: str
    words: list[str]
    excerpt: str


class Card(NamedTuple):
    """A prototype.

    Attributes:
        prototype: Its index.
        share: Mean of its shares in all documents; those of all prototypes sum to one.
        size: Documents in which its share is the largest.
        label: Commonest class of these, None where there are none.
        agreement: Share of these that are of that class.
        words: The words that are assigned to it most, wherever they stand, and how much.
        documents: Those with the largest share, the nearest of equal ones first.
    """

    prototype: int
    share: float
    size: int
    label: str | None
    agreement: float
    words: list[tuple[str, float]]
    documents: list[TopDocument]


class Section(NamedTuple):
    """Cards of a method.

    Attributes:
        method: Its name.
        unit: What its prototypes were fitted on, ``"document"`` or ``"token"``.
        cards: Of all its prototypes.
    """

    method: str
    unit: str
    cards: list[Card]


def cards_of(
    fit: FittedReadout, documents: Documents, data: TextData, tokenizer: Any
) -> list[Card]:
    """Cards of all prototypes, by the training split, the largest share first.

    Args:
        fit: A fitted readout.
        documents: The training split, embedded.
        data: Its texts and classes.
        tokenizer: Of the encoder: gives vocabulary indices their words.
    """
    shares = fit.proportions(documents)  # (N, K)
    clusters = shares.argmax(dim=1)
    means = word_means(fit, documents)
    words = top_words(means, documents.tokens.ids, tokenizer)
    distances = torch.cdist(fit.encoder(documents.mean), fit.readout.codebook.codebook.detach())
    corpus = data.splits["train"]

    def document(row: int, k: int) -> TopDocument:
        return TopDocument(
            share=float(shares[row, k]),
            label=data.classes[int(corpus.labels[row])],
            words=document_words(fit, documents, tokenizer, means, row, k),
            excerpt=excerpt(corpus.texts[row]),
        )

    cards = []
    for k in shares.mean(dim=0).argsort(descending=True, stable=True).tolist():
        own = corpus.labels[(clusters == k).numpy()]
        counts = np.bincount(own, minlength=len(data.classes))
        nearest = np.lexsort((distances[:, k].numpy(), -shares[:, k].numpy().round(3)))
        cards.append(
            Card(
                prototype=k,
                share=float(shares[:, k].mean()),
                size=len(own),
                label=data.classes[int(counts.argmax())] if len(own) else None,
                agreement=float(counts.max() / max(len(own), 1)),
                words=words[k],
                documents=[document(row, k) for row in nearest[:DOCUMENTS].tolist()],
            )
        )
    return cards


def word_means(fit: FittedReadout, documents: Documents) -> Tensor:
    """Mean assignment of every vocabulary entry, wherever it stands, to every prototype: (V, K).

    Few occurrences say little: means are drawn to those of all tokens.
    """
    tokens, ids = encode_tokens(documents.tokens, fit.encoder), documents.tokens.ids.long()
    size = int(ids.max()) + 1
    codebook = fit.readout.codebook
    sums = torch.zeros(size, codebook.codebook_size)
    with torch.no_grad():
        for piece, own in zip(tokens.split(16384), ids.split(16384), strict=True):
            sums.index_add_(0, own, assignments(codebook, piece[None]).squeeze(0))
    counts = ids.bincount(minlength=size)[:, None]  # (V, 1)
    prior = sums.sum(dim=0) / counts.sum()  # (K,)
    return (sums + PRIOR * prior) / (counts + PRIOR)


def top_words(means: Tensor, ids: Tensor, tokenizer: Any) -> list[list[tuple[str, float]]]:
    """For each prototype the words of a text with the largest mean assignment, and that mean.

    Args:
        means: (V, K), of :func:`word_means`.
        ids: (M,), the text's vocabulary entries.
        tokenizer: Gives them their words.
    """
    shown = {i: word for i in ids.unique().tolist() if (word := shown_word(tokenizer, i))}
    rows, words = torch.tensor(list(shown), dtype=torch.int64), list(shown.values())
    return [ranked(means[rows, k], words) for k in range(means.shape[1])]


def ranked(values: Tensor, words: list[str]) -> list[tuple[str, float]]:
    """The words with the largest values."""
    order = values.argsort(descending=True, stable=True)[:WORDS].tolist()
    return [(words[i], float(values[i])) for i in order]


def document_words(
    fit: FittedReadout,
    documents: Documents,
    tokenizer: Any,
    means: Tensor,
    row: int,
    prototype: int,
) -> list[str]:
    """The words of a document that are assigned to a prototype most, there and everywhere.

    Args:
        fit: A fitted readout.
        documents: Embedded.
        tokenizer: Of the encoder.
        means: (V, K), of :func:`word_means`. In a document that is about one thing every token is,
            so that its own assignments do not tell the telling words from the others.
        row: Which document.
        prototype: Which prototype.
    """
    start, end = documents.tokens.offsets[row : row + 2].tolist()
    ids = documents.tokens.ids[start:end].tolist()
    words = [shown_word(tokenizer, i) or "" for i in ids]
    latents = fit.encoder(documents.tokens.tokens[start:end])
    shares = fit.readout.explain(latents, words, top=len(words))
    tokens = next(share.tokens for share in shares if share.prototype == prototype)
    weights = [float(means[ids[token.position], prototype]) * token.assignment for token in tokens]
    order = sorted(range(len(tokens)), key=lambda place: -weights[place])
    return list(dict.fromkeys(tokens[i].word for i in order if tokens[i].word))[:DOCUMENT_WORDS]


def shown_word(tokenizer: Any, index: int) -> str | None:
    """A vocabulary entry as a reader knows it; None for special tokens, parts and punctuation."""
    if index in tokenizer.all_special_ids:
        return None
    word = str(tokenizer.convert_ids_to_tokens(index))
    # Marks of a word's start in byte-level and sentence-piece vocabularies.
    word = word.lstrip("\u0120\u2581")
    return word if len(word) > 2 and word.isalpha() else None


def excerpt(text: str) -> str:
    r"""The beginning of a text, on one line.

    Example:
        >>> excerpt("A\n  b" + " c" * 500)[:9], len(excerpt("d" * 999))
        ('A b c c c', 281)
    """
    line = " ".join(text.split())
    return line if len(line) <= EXCERPT else line[:EXCERPT].rstrip() + "\u2026"


def write_cards(path: Path, sections: Sequence[Section], result: Mapping[str, Any]) -> None:
    """Write the page: one HTML file that needs no network and no script.

    Args:
        path: The file.
        sections: What it shows, one after the other.
        result: What :func:`experiments.documents.run.run` returns.
    """
    rows = {row["method"]: row for row in result["methods"]}
    write_text(path, filled(TEMPLATE, sections=sections, result=result, rows=rows))
