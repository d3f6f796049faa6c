"""Pictures of a codebook: the sample of images behind them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from picture_samples import LEVELS, images_of, model_of

from training.figures import sample_codebook
from training.figures.reconstructions import worst_and_median
from training.figures.sample import evenly


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
    images = images_of(300)
    few = [round(299 * i / 11) for i in range(12)]  # fewer than that say nothing
    assert torch.equal(sample_codebook(model_of(), images, max_images=4).images, images[few])
    sample = sample_codebook(model_of(), images, max_images=100)
    assert len(sample.images) == len(sample.errors) == 100
    assert torch.equal(sample.images, images[evenly(300, 100)])
    assert (evenly(300, 100).diff() - 3).abs().max() <= 1
    monkeypatch.setattr("training.figures.sample.MAX_TOKENS", 64 * 20)
    assert len(sample_codebook(model_of(), images).images) == 20


def test_no_images_are_refused():
    with pytest.raises(ValueError, match="at least one image"):
        sample_codebook(model_of(), images_of(0))
