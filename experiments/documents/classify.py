"""Linear heads on frozen document vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Inverse strengths of the penalty that the dev split chooses among.
STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)


class HeadScores(NamedTuple):
    """A linear head's accuracies, shares in [0, 1].

    Attributes:
        dev: Of the split that chose the penalty.
        test: Of the split that chose nothing.
        strength: Inverse strength of the penalty that was chosen.
        features: Columns that it sees.
    """

    dev: float
    test: float
    strength: float
    features: int


def linear_head(
    vectors: Mapping[str, NDArray[np.float32]],
    labels: Mapping[str, NDArray[np.int64]],
    strengths: Sequence[float] = STRENGTHS,
) -> HeadScores:
    """Logistic regression on standardised columns, its penalty chosen on the dev split.

    Args:
        vectors: (N, F) for ``"train"``, ``"dev"`` and ``"test"``.
        labels: (N,) likewise.
        strengths: Candidates; of equal ones by dev accuracy, the strongest penalty is taken.

    Raises:
        KeyError: If a split is missing.

    Example:
        >>> x = np.arange(40.0)[:, None]
        >>> y = (x[:, 0] > 20).astype(int)
        >>> linear_head(dict.fromkeys(("train", "dev", "test"), x), {
        ...     "train": y, "dev": y, "test": y}).test
        1.0
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    best: tuple[float, float, float] | None = None
    for strength in sorted(strengths):
        head = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=2000))
        head.fit(vectors["train"], labels["train"])
        dev = float(head.score(vectors["dev"], labels["dev"]))
        if best is None or dev > best[0]:
            best = dev, float(head.score(vectors["test"], labels["test"])), strength
    if best is None:
        raise ValueError("a linear head needs at least one penalty to choose, got none")
    dev, test, strength = best
    return HeadScores(dev, test, strength, vectors["train"].shape[1])
