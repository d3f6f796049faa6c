"""Pictures of a codebook: the values behind them against NumPy, SciPy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from picture_samples import LEVELS, images_of, model_of, spread
from scipy.spatial.distance import cdist
from sklearn.decomposition import PCA
from sklearn.metrics import mutual_info_score

from training.figures import (
    class_information,
    gini,
    lorenz_curve,
    neighbour_distances,
    principal_plane,
    sample_codebook,
)
from training.figures.reconstructions import worst_and_median

counts_of_codes = st.lists(st.integers(0, 50), min_size=1, max_size=20)


# --- values -------------------------------------------------------------------------------------


@given(counts_of_codes)
def test_gini_is_half_the_relative_mean_difference(counts):
    x = np.array(counts, dtype=float)
    expected = 0.0
    if x.sum():
        expected = np.abs(x[:, None] - x[None]).mean() / 2 / x.mean()
    assert gini(torch.tensor(counts)) == pytest.approx(expected, abs=1e-12)


@given(counts_of_codes)
def test_the_lorenz_curve_is_the_share_of_the_least_used(counts):
    x = np.sort(np.array(counts, dtype=float))
    x = x if x.sum() else np.ones_like(x)
    expected = [x[:k].sum() / x.sum() for k in range(len(x) + 1)]
    np.testing.assert_allclose(lorenz_curve(torch.tensor(counts)), expected, atol=1e-12)


@given(st.integers(2, 30), st.integers(1, 5), st.integers(1, 40), st.integers(0, 99))
def test_neighbour_distances_against_scipy(codes, dim, most, seed):
    prototypes = torch.randn(codes, dim, generator=torch.Generator().manual_seed(seed)) + 10
    every = cdist(prototypes.double(), prototypes.double())
    np.fill_diagonal(every, np.inf)
    expected = every.min(axis=1)
    chosen = spread(codes, min(codes, most))
    np.testing.assert_allclose(
        neighbour_distances(prototypes, most), expected[chosen], rtol=1e-6, atol=1e-6
    )


def test_duplicated_prototypes_are_at_distance_zero_and_a_single_one_has_no_neighbour():
    twice = torch.randn(5, 8).repeat(2, 1) * 100
    assert neighbour_distances(twice).max() < 1e-4
    assert len(neighbour_distances(torch.zeros(1, 3))) == 0


@pytest.mark.parametrize("dim", [1, 2, 7])
def test_the_plane_is_that_of_scikit_learn(dim):
    latents = torch.randn(200, dim) @ torch.randn(dim, dim) + 5
    plane = principal_plane(latents)
    reference = PCA(min(2, dim)).fit(latents.double().numpy())
    np.testing.assert_allclose(plane.shares, reference.explained_variance_ratio_, rtol=1e-6)
    signs = np.sign((plane.axes.numpy() * reference.components_).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(plane.axes, reference.components_ * signs, atol=1e-6)
    np.testing.assert_allclose(
        plane.project(latents), reference.transform(latents.double()) * signs.T, atol=1e-5
    )


def test_what_tokens_say_of_classes_against_scikit_learn():
    indices = torch.randint(0, 12, (40, 3, 5))
    labels = torch.randint(0, 6, (40,)) * 7
    found = class_information(indices, labels, codebook_size=12)
    every = labels[:, None].expand(-1, 15).flatten()
    expected = mutual_info_score(every.numpy(), indices.flatten().numpy()) / np.log(2)
    assert found.bits == pytest.approx(expected, abs=1e-9)
    for row, label in zip(found.joint, found.classes, strict=True):
        assert (
            row.tolist()
            == torch.bincount(indices[labels == label].flatten(), minlength=12).tolist()
        )


def test_shuffled_labels_tell_chance_from_what_tokens_know():
    labels = torch.arange(100) % 4
    known = class_information(labels[:, None, None].expand(-1, 4, 4), labels, codebook_size=4)
    assert known.bits == pytest.approx(2)
    assert known.shuffled_bits < 0.2
    noise = class_information(torch.randint(0, 64, (100, 4, 4)), labels, codebook_size=64)
    assert noise.bits == pytest.approx(noise.shuffled_bits, rel=0.2)
    assert noise.bits > 0.02


def test_of_many_classes_those_with_the_most_images_are_kept():
    labels = torch.tensor([5, 5, 5, 1, 1, 2, 9, 9])
    found = class_information(torch.zeros(8, 1, 1).long(), labels, 1, max_classes=3)
    assert found.classes.tolist() == [1, 5, 9]
    assert found.joint.squeeze(1).tolist() == [2, 3, 2]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 8))
def test_worst_and_median_images(errors, count):
    worst, median = (own.tolist() for own in worst_and_median(torch.tensor(errors), count))
    falling = sorted(np.float32(errors), reverse=True)
    assert len(worst) == len(median) == max(1, min(count, len(errors) // 2))
    assert [np.float32(errors[i]) for i in worst] == falling[: len(worst)]
    middle = [np.float32(errors[i]) for i in median]
    above = len(errors) - len(middle) - (len(errors) - len(middle)) // 2
    assert middle == falling[(len(errors) - len(middle)) // 2 :][: len(middle)]
    assert above - (len(errors) - len(middle)) // 2 in (0, 1)  # as many better as worse


# --- the sample ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEVELS)
def test_the_sample_is_what_the_tokens_are_made_of(name):
    model, images = model_of(**LEVELS[name]).train(), images_of(15)
    if "quantizer" not in LEVELS[name]:
        model.initialize([images / 255])
    torch.manual_seed(1)
    state = torch.get_rng_state()
    sample = sample_codebook(model, images)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    model.eval()
    tokens = model.split(model.tokens(images / 255))
    assert len(tokens) == len(sample.levels) == len(model.levels)
    for level, expected in zip(sample.levels, tokens, strict=True):
        assert torch.equal(level.indices, expected)
        assert (
            level.counts.tolist()
            == np.bincount(expected.flatten().numpy(), minlength=len(level.prototypes)).tolist()
        )
        if name != "peer":  # which looks for its codes elsewhere
            nearest = cdist(level.latents.detach(), level.prototypes).argmin(axis=1)
            assert (nearest == expected.flatten().numpy()).mean() > 0.99
    recon = model.reconstruct(images / 255, "argmax")
    expected = (recon - images / 255).square().mean(dim=(1, 2, 3))
    np.testing.assert_allclose(sample.errors, expected, rtol=1e-4)


def test_cells_are_as_large_as_what_a_token_stands_for():
    sides = {
        name: [level.side for level in sample_codebook(model_of(**config), images_of(2)).levels]
        for name, config in LEVELS.items()
    }
    assert sides["one"] == [4]
    assert sides["pyramid"] == [16, 8, 4]
    assert sides["uneven pyramid"] == [12, 4]
    assert sides["vqvae2"] == [8, 4]


def test_the_sample_is_bounded_and_lies_evenly(monkeypatch):
    images, labels = images_of(300), torch.arange(300)
    assert sample_codebook(model_of(), images, labels, max_images=4).labels.tolist() == [
        round(299 * i / 11)
        for i in range(12)  # fewer than that say nothing
    ]
    sample = sample_codebook(model_of(), images, labels, max_images=100)
    assert len(sample.images) == len(sample.errors) == 100
    assert (sample.labels.diff() - 3).abs().max() <= 1
    assert torch.equal(sample.images, images[sample.labels])
    monkeypatch.setattr("training.figures.sample.MAX_TOKENS", 64 * 20)
    assert len(sample_codebook(model_of(), images).images) == 20


@pytest.mark.parametrize(("count", "labels"), [(0, None), (3, 2)])
def test_no_images_and_labels_that_do_not_fit_are_refused(count, labels):
    labels = None if labels is None else torch.zeros(labels)
    with pytest.raises(ValueError, match=f"got {count} images and"):
        sample_codebook(model_of(), images_of(count), labels)
