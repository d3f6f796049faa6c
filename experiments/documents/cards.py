"""Prototype cards: a page that says what each prototype stands for, by its documents and words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eval.report.html import filled
from softvq import assignments

from .readout import PIECE, FittedReadout, encode_tokens
from .study import Study
from .vectors import Documents

TEMPLATE = Path(__file__).with_name("cards.html.jinja")
DOCUMENTS, WORDS, DOCUMENT_WORDS = 5, 15, 6
EXCERPT = 280  # characters
# Every word is counted as if it had occurred this often more, each time with the mean assignment.
PRIOR = 10.0


def cards_of(fit: FittedReadout, study: Study) -> list[dict[str, Any]]:
    """Make cards of all prototypes, by the training split, the largest share first.

    Returns:
        For each prototype ``prototype``, its index; ``share``, the mean of its shares in all
        documents; ``size``, the number of documents in which its share is the largest; ``label``,
        their commonest class, None where there are none, and ``agreement``, the part of them that
        is of it; ``words``, those that are assigned to it most, and how much; and ``documents``,
        those with the largest share, the nearest of equal ones first, with its
        ``share`` in each, their class, and the words in them that are assigned to it most.
    """
    documents, corpus = study.splits["train"], study.data.splits["train"]
    classes = study.data.classes
    shares = fit.read(documents)[0]  # (N, K)
    clusters = shares.argmax(dim=1).numpy()
    words, means = word_means(fit, documents, study.tokenizer)
    distances = torch.cdist(fit.encoder(documents.mean), fit.readout.codebook.codebook.detach())

    def document(row: int, k: int) -> dict[str, Any]:
        start, end = documents.tokens.offsets[row : row + 2].tolist()
        ids = documents.tokens.ids[start:end].long()
        latents = fit.encoder(documents.tokens.tokens[start:end])
        # In a document about one thing every token is assigned alike: its own assignments alone do
        # not tell the telling words from the others.
        weights = means[ids, k] * assignments(fit.readout.codebook, latents[None])[0, :, k]
        told = dict.fromkeys(words[i] for i, _ in ranked(weights, ids) if words[i])
        return {
            "share": float(shares[row, k]),
            "label": classes[int(corpus.labels[row])],
            "words": list(told)[:DOCUMENT_WORDS],
            "excerpt": shorten(corpus.texts[row], EXCERPT, placeholder=" \u2026"),
        }

    cards: list[dict[str, Any]] = []
    known = torch.tensor([i for i, word in words.items() if word], dtype=torch.int64)
    for k in shares.mean(dim=0).argsort(descending=True, stable=True).tolist():
        own = corpus.labels[clusters == k]
        counts = np.bincount(own, minlength=len(classes))
        nearest = np.lexsort((distances[:, k].numpy(), -shares[:, k].numpy().round(3)))
        card = {
            "prototype": k,
            "share": float(shares[:, k].mean()),
            "size": len(own),
            "label": classes[int(counts.argmax())] if len(own) else None,
            "agreement": float(counts.max() / max(len(own), 1)),
            "words": [(words[i], value) for i, value in ranked(means[known, k], known)[:WORDS]],
            "documents": [document(row, k) for row in nearest[:DOCUMENTS].tolist()],
        }
        cards.append(card)
    return cards


@torch.no_grad()
def word_means(
    fit: FittedReadout, documents: Documents, tokenizer: Any
) -> tuple[dict[int, str], Tensor]:
    """Return the words of vocabulary indices, and each entry's mean assignment, (V, K).

    Few occurrences say little: means are drawn to those of all tokens.
    """
    tokens, ids = encode_tokens(documents.tokens, fit.encoder), documents.tokens.ids.long()
    codebook, size = fit.readout.codebook, int(ids.max()) + 1
    sums = torch.zeros(size, codebook.codebook_size)
    for piece, own in zip(tokens.split(PIECE), ids.split(PIECE), strict=True):
        sums.index_add_(0, own, assignments(codebook, piece[None]).squeeze(0))
    counts = ids.bincount(minlength=size)[:, None]  # (V, 1)
    prior = sums.sum(dim=0) / counts.sum()  # (K,)
    words = {i: shown_word(tokenizer, i) for i in ids.unique().tolist()}
    return words, (sums + PRIOR * prior) / (counts + PRIOR)


def ranked(values: Tensor, ids: Tensor) -> list[tuple[int, float]]:
    """Return vocabulary indices with their values, the largest value first."""
    order = values.argsort(descending=True, stable=True)
    return list(zip(ids[order].tolist(), values[order].tolist(), strict=True))


def shown_word(tokenizer: Any, index: int) -> str:
    """Return an entry as a reader knows it; "" for special tokens, parts and punctuation."""
    if index in tokenizer.all_special_ids:
        return ""
    word = str(tokenizer.convert_ids_to_tokens(index))
    # Marks of a word's start in byte-level and sentence-piece vocabularies.
    word = word.lstrip("\u0120\u2581")
    return word if len(word) > 2 and word.isalpha() else ""


def page(cards: Mapping[str, list[dict[str, Any]]], result: Mapping[str, Any]) -> str:
    """Return a page as HTML that needs no network and no script.

    Args:
        cards: The cards by method, in the order of the page.
        result: What :func:`experiments.documents.run.run` returns.
    """
    rows = {row["method"]: row for row in result["methods"]}
    return filled(TEMPLATE, cards=cards, result=result, rows=rows)
