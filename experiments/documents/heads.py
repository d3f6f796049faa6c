"""Linear heads on frozen document vectors: what a readout's vectors know of the classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .readout import ON_TOKENS, READOUTS, fit_readout
from .study import Study, over_seeds
from .vectors import Documents

# Inverse strengths of the penalty that the dev split chooses among.
STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
HEAD_SIZES = (16, 64, 256)  # Prototypes of the readouts under a linear head.


def linear_head(
    vectors: Mapping[str, NDArray[np.float32] | Tensor],
    labels: Mapping[str, NDArray[np.int64]],
    strengths: Sequence[float] = STRENGTHS,
) -> tuple[float, float, float]:
    """Fit a logistic regression on standardised columns, its penalty chosen on the dev split.

    Args:
        vectors: (N, F) for each of ``"train"``, ``"dev"`` and ``"test"``.
        labels: (N,) likewise.
        strengths: The candidates, at least one. Of those with equal dev accuracy the strongest
            penalty is taken.

    Returns:
        The accuracies on the dev split and on the test split, which chose nothing, in [0, 1]; and
        the inverse strength of the penalty that was chosen.

    Example:
        >>> x = np.arange(40.0)[:, None]
        >>> y = (x[:, 0] > 20).astype(int)
        >>> linear_head(dict.fromkeys(("train", "dev", "test"), x), {
        ...     "train": y, "dev": y, "test": y})[1]
        1.0
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    vectors = {split: np.asarray(rows) for split, rows in vectors.items()}
    found = []
    for strength in sorted(strengths):
        head = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=2000))
        head.fit(vectors["train"], labels["train"])
        dev, test = (float(head.score(vectors[s], labels[s])) for s in ("dev", "test"))
        found.append((dev, test, strength))
    return max(found, key=lambda scores: scores[0])


def heads(study: Study) -> list[dict[str, Any]]:
    """Judge vectors of readouts over tokens, CLS and the mean token by linear heads."""
    splits, train = study.splits, study.splits["train"]
    kinds: dict[str, Callable[[Documents], Tensor]] = {
        "CLS": lambda documents: documents.cls,
        "mean": lambda documents: documents.mean,
        "mean, principal axes": lambda documents: study.encoder(documents.mean),
    }
    rows = [head(study, n, [{s: of(d) for s, d in splits.items()}]) for n, of in kinds.items()]
    settings = replace(READOUTS[ON_TOKENS], starts=1)
    for size in HEAD_SIZES:
        # A readout starts from k-means, which needs as many training tokens as prototypes.
        if size > (tokens := len(train.tokens.ids)):
            study.say(f"no heads on {size} prototypes: there are only {tokens} training tokens")
            continue
        fits = [fit_readout(train, study.encoder, size, s, settings) for s in range(study.seeds)]
        read = [{split: fit.read(part) for split, part in splits.items()} for fit in fits]
        for number, key in enumerate(("proportions", "pooled")):
            vectors = [{split: both[number] for split, both in one.items()} for one in read]
            rows.append(head(study, f"DDCL {key}, K = {size}", vectors))
    return rows


def head(study: Study, name: str, vectors: list[dict[str, Tensor]]) -> dict[str, Any]:
    """Return a row of accuracies, for each of the fits that made the vectors of all splits."""
    labels = {split: corpus.labels for split, corpus in study.data.splits.items()}
    dev, test, strength = zip(*(linear_head(one, labels) for one in vectors), strict=True)
    features = vectors[0]["train"].shape[1]
    row: dict[str, Any] = {"vectors": name, "features": features, "strength": list(strength)}
    row |= {"dev": over_seeds(dev), "test": over_seeds(test)}
    study.say(f"head on {name}: {row['test']['mean']:.3f}")
    return row
