"""Scores of clusterings against brute force and against scikit-learn."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from experiments.clustering import best_start, clustering_scores, figure
from softvq import kmeans


def best_pairing(labels, clusters):
    """The largest share of agreeing rows over every one-to-one pairing."""
    names, found = sorted(set(labels)), sorted(set(clusters))
    names += [None] * (len(found) - len(names))  # clusters left over are paired with nothing
    rows = list(zip(labels, clusters, strict=True))
    return max(
        sum(paired[found.index(cluster)] == label for label, cluster in rows)
        for paired in permutations(names, len(found))
    ) / len(labels)


def best_many_to_one(labels, clusters):
    """Every cluster takes the class that most of its rows have, by counting."""
    right = 0
    for cluster in set(clusters):
        own = [label for label, c in zip(labels, clusters, strict=True) if c == cluster]
        right += max(own.count(label) for label in set(own))
    return right / len(labels)


ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), min_size=1, max_size=40)


@settings(deadline=None, max_examples=60)
@example([(0, 0)] * 9 + [(1, 0)])  # one cluster for all
@example([(n // 3, n) for n in range(6)])  # a cluster for each row
@given(ROWS)
def test_scores_are_those_of_brute_force_and_of_sklearn(rows):
    labels, clusters = map(list, zip(*rows, strict=True))
    scores = clustering_scores(labels, clusters)
    assert scores.accuracy == pytest.approx(best_pairing(labels, clusters))
    assert scores.purity == pytest.approx(best_many_to_one(labels, clusters))
    assert scores.nmi == pytest.approx(normalized_mutual_info_score(labels, clusters))
    assert scores.ari == pytest.approx(adjusted_rand_score(labels, clusters))
    agree = [scores.mapping.get(c) == label for label, c in rows]
    assert scores.accuracy == pytest.approx(np.mean(agree))
    assert len(set(scores.mapping.values())) == len(scores.mapping)
    assert len(scores.mapping) == min(len(set(labels)), len(set(clusters)))
    assert scores.accuracy <= scores.purity + 1e-12
    assert (scores.classes, scores.clusters) == (sorted(set(labels)), sorted(set(clusters)))
    counts = Counter(rows)
    assert all(
        scores.counts[i, j] == counts[label, cluster]
        for i, label in enumerate(scores.classes)
        for j, cluster in enumerate(scores.clusters)
    )


def test_names_of_clusters_do_not_matter():
    labels = ["LEO", "GEO", "LEO", "MEO", "GEO", "LEO"]
    scores = clustering_scores(labels, [9, 4, 9, 1, 4, 9])
    assert scores[:4] == (1.0, 1.0, 1.0, 1.0)
    assert scores.mapping == {1: "MEO", 4: "GEO", 9: "LEO"}
    assert clustering_scores(labels, list("xyxzyx"))[:4] == scores[:4]


@pytest.mark.parametrize(
    ("labels", "clusters"), [([], []), ([0, 1], [0]), ([[0], [1]], [[0], [1]])]
)
def test_wrong_shapes_are_refused(labels, clusters):
    with pytest.raises(ValueError, match="same length, at least 1"):
        clustering_scores(labels, clusters)


def test_the_best_of_several_starts_errs_least():
    points = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))

    def error(seed: int) -> float:
        return torch.cdist(points, kmeans(points, 6, seed=seed)).amin(dim=1).square().sum().item()

    best = best_start(points, 6, seed=2, starts=5)
    assert best == min(range(10, 15), key=error)


def test_figures_by_hand():
    assert figure({"mean": 0.12345, "sd": 0.01}) == ".123 ± .010"
    assert figure({"mean": 1.0, "sd": None}) == "1.000"
    assert figure({"mean": -0.00012, "sd": 0.0}) == "-.000 ± .000"
