"""What clusters documents: the linear encoder, readouts, linear heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

from experiments.documents.embeddings import TokenEmbeddings
from experiments.documents.heads import linear_head
from experiments.documents.readout import ReadoutSettings, fit_readout, summed_up
from experiments.documents.study import axes_of
from experiments.documents.vectors import Documents, documents, fit_encoder
from experiments.identity import TOLERANCE
from training.errors import DatasetError

QUICK = {"steps": 30, "starts": 2}


def test_vectors_that_are_all_alike_are_refused():
    with pytest.raises(DatasetError, match="only 2 different vectors of 6"):
        axes_of(torch.eye(2, 4).repeat_interleave(3, dim=0), 2)
    nearly = 1 + 1e-6 * torch.arange(12.0).reshape(6, 2)
    with pytest.raises(DatasetError, match="cannot be told apart"):
        axes_of(nearly, 2)


def blobs(count: int = 60, dim: int = 12, places: int = 5) -> tuple[Documents, np.ndarray]:
    """Documents of three far apart directions, each of a few noisy tokens."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 3
    tokens = np.eye(dim)[labels][:, None] + 0.05 * rng.standard_normal((count, places, dim))
    flat = torch.tensor(tokens.reshape(-1, dim), dtype=torch.float16)
    ids = torch.arange(len(flat), dtype=torch.int32)
    return documents(TokenEmbeddings(flat, ids, torch.full((count,), places))), labels


def test_the_linear_encoder_is_a_scaled_pca_of_unit_vectors():
    vectors = torch.randn(40, 10, generator=torch.Generator().manual_seed(0))
    units = vectors / vectors.norm(dim=1, keepdim=True)
    expected = PCA(4, svd_solver="full").fit_transform(units)
    codes = fit_encoder(vectors, 4)(vectors).numpy()
    scale = np.sqrt(expected.var(axis=0).mean())
    np.testing.assert_allclose(np.abs(codes), np.abs(expected) / scale, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(fit_encoder(3 * vectors, 4)(5 * vectors), codes, atol=1e-4)
    assert fit_encoder(vectors[:3], 64).axes.shape == (10, 2)
    with pytest.raises(DatasetError, match="same way"):
        fit_encoder(torch.ones(5, 3), 2)


@pytest.mark.parametrize("unit", ["document", "token"])
def test_a_readout_finds_far_apart_directions(unit):
    split, labels = blobs()
    settings = ReadoutSettings(unit=unit, axes=4, **QUICK)
    fit = fit_readout(split, fit_encoder(split.mean, 4), 3, 0, settings)
    shares, read = fit.read(split)
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(len(labels)))
    clusters = shares.argmax(dim=1).numpy()
    assert len({(a, b) for a, b in zip(clusters, labels, strict=True)}) == 3
    pooled = shares @ fit.readout.codebook.codebook
    torch.testing.assert_close(read, pooled.detach(), rtol=1e-4, atol=1e-4)
    assert max(epoch["gap"] for epoch in fit.epochs) < 1e-5
    again = fit_readout(split, fit_encoder(split.mean, 4), 3, 0, settings)
    assert torch.equal(again.read(split)[0], shares)
    other = fit_readout(split, fit_encoder(split.mean, 4), 3, 1, settings)
    assert not torch.equal(other.read(split)[0], shares)


def test_a_broken_identity_stops_the_run():
    split, _ = blobs()
    fit = fit_readout(split, fit_encoder(split.mean, 4), 3, 0, ReadoutSettings(axes=4, **QUICK))
    line = {"loss_q": 1.0, "loss_ols": 0.7, "variance": 0.3, "codes_per_token": 1.0}
    assert summed_up([line, line], fit.readout)["gap"] < 1e-12
    for broken in (0.3 + 2 * TOLERANCE, float("nan")):
        with pytest.raises(ArithmeticError, match="is not L_OLS"):
            summed_up([line, line | {"variance": broken}], fit.readout)


def test_the_dev_split_chooses_the_penalty_of_a_head():
    rng = np.random.default_rng(0)
    x = {name: rng.standard_normal((80, 20)) for name in ("train", "dev", "test")}
    y = {name: (v[:, 0] + rng.standard_normal(80) > 0).astype(int) for name, v in x.items()}
    center, scale = x["train"].mean(axis=0), x["train"].std(axis=0)
    scores = {}
    for strength in (0.001, 0.1, 10.0):
        model = LogisticRegression(C=strength, max_iter=2000)
        model.fit((x["train"] - center) / scale, y["train"])
        scores[strength] = {s: model.score((x[s] - center) / scale, y[s]) for s in ("dev", "test")}
    best = max(scores, key=lambda strength: scores[strength]["dev"])
    expected = (scores[best]["dev"], scores[best]["test"], best)
    assert linear_head(x, y, (10.0, 0.001, 0.1)) == expected
