"""Pictures of a codebook: what they show, of any model."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from picture_samples import LEVELS, images_of, level_of, model_of, spread
from PIL import Image
from sklearn.decomposition import PCA

from training.figures import (
    code_patches,
    codebook_pictures,
    history_pictures,
    sample_codebook,
    to_png,
)
from training.figures.gallery import gallery_figure, most_and_least_used
from training.figures.reconstructions import reconstruction_rows
from training.figures.token_map import prototype_colours, token_map_figure
from training.figures.usage import grouped, heat_map_figure

# --- contents -----------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [4, 5, 12])
def test_patches_of_the_gallery_are_those_that_choose_the_code(side):
    images = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)
    grid = -(-32 // side)
    indices = torch.randint(0, 5, (6, grid, grid))
    level, margin = level_of(indices, 6, side), side // 2
    padded = np.pad(
        images, ((0, 0), (0, 0), (margin, margin + side), (margin, margin + side)), "edge"
    )
    for own in code_patches(images, level, range(6), per_code=7):
        chosen = (indices == own.code).nonzero().numpy()
        assert own.uses == len(chosen)
        assert len(own.patches) == min(7, len(chosen))
        places = spread(len(chosen), len(own.patches))
        for patch, (image, row, column) in zip(own.patches, chosen[places], strict=True):
            size = side + 2 * margin
            top, left = row * side, column * side
            cut = padded[image, :, top : top + size, left : left + size]
            np.testing.assert_array_equal(patch, cut)


def test_the_gallery_shows_most_and_least_used_codes_with_their_patches():
    indices = torch.tensor([0] * 9 + [2] * 4 + [3] * 2 + [5]).reshape(1, 4, 4)
    image = torch.randint(0, 256, (1, 3, 16, 16), dtype=torch.uint8)
    figure = gallery_figure(image, level_of(indices, 7), codes=2, per_code=3)
    labels = [[text.get_text() for text in axes.get_yticklabels()] for axes in figure.axes]
    assert labels == [["0 (9)", "2 (4)"], ["5 (1)", "3 (2)"]]
    assert "3 of 7 codes not chosen" in figure.axes[-1].get_xlabel()
    [own] = code_patches(image, level_of(indices, 7), [5])
    shown = np.asarray(figure.axes[1].images[0].get_array())
    np.testing.assert_allclose(shown[1:9, 1:9], own.patches[0].movedim(0, -1) / 255, atol=1e-6)
    assert (shown[1:9, 10:] == 1).all()  # no second patch


def test_codes_are_never_shown_twice():
    counts = torch.tensor([4, 0, 1, 3])
    assert most_and_least_used(counts, 2) == ([0, 3], [2])
    assert most_and_least_used(counts, 8) == ([0, 3, 2], [])
    assert most_and_least_used(torch.zeros(3), 8) == ([], [])


def test_the_token_map_has_the_colour_of_each_token_in_its_place():
    model, images = model_of(level_pools=[3, 1]), images_of(3)
    sample = sample_codebook(model, images)
    shown = np.asarray(token_map_figure(sample, images=3).axes[0].images[0].get_array())
    for row, level in enumerate(sample.levels, start=1):
        colours = prototype_colours(level.prototypes).numpy()
        for column in range(3):
            tile = shown[row * 33 + 1 : row * 33 + 33, column * 33 + 1 : column * 33 + 33]
            for i, j in np.ndindex(32, 32):
                code = level.indices[column, i // level.side, j // level.side]
                np.testing.assert_allclose(tile[i, j], colours[code], atol=1e-6)


@pytest.mark.parametrize(("codes", "dim"), [(1, 3), (2, 1), (50, 4)])
def test_colours_of_prototypes_are_ranks_along_the_principal_axes(codes, dim):
    prototypes = torch.randn(codes, dim)
    colours = prototype_colours(prototypes)
    assert colours.shape == (codes, 3)
    if codes == 1:
        assert (colours == 0.5).all()
        return
    places = torch.from_numpy(PCA(min(dim, 3)).fit_transform(prototypes.double()))
    for axis in range(min(dim, 3)):
        order = colours[:, axis].argsort().tolist()
        along = places[:, axis].argsort().tolist()
        assert order in (along, along[::-1])  # an axis has no sign
        assert sorted(colours[:, axis].tolist()) == pytest.approx(np.linspace(0, 1, codes))
    assert (colours[:, dim:] == 0.5).all()


def test_rows_of_reconstructions_are_input_soft_and_argmax():
    images = images_of(3)
    for quantizer, names in (("ddcl", ["input", "soft", "argmax"]), ("none", ["input", "soft"])):
        model = model_of(quantizer=quantizer).train()
        tiles, rows = reconstruction_rows(model, images)
        assert rows == names
        assert model.training
        model.eval()
        expected = [images / 255, *(model.reconstruct(images / 255, mode) for mode in names[1:])]
        np.testing.assert_allclose(tiles, torch.cat(expected), atol=1e-5)


def test_errors_of_all_images_choose_the_pictures_where_they_are_given():
    model, images = model_of(), images_of(60)
    errors = torch.zeros(60)
    errors[[7, 41]] = torch.tensor([2.0, 3.0])
    figure = codebook_pictures(model, images, errors=errors, max_images=12)["reconstructions"]
    upper = figure.axes[0]
    assert [text.get_text() for text in upper.get_xticklabels()][:3] == [
        "3.0000",
        "2.0000",
        "0.0000",
    ]
    shown = np.asarray(upper.images[0].get_array())
    np.testing.assert_allclose(shown[1:33, 1:33], images[41].movedim(0, -1) / 255, atol=1e-6)
    assert upper.get_title() == "worst of 60 images by argmax MSE"


@given(st.integers(1, 30), st.integers(1, 7))
def test_groups_of_codes_have_their_sum_or_what_they_would_have_if_full(codes, size):
    history = torch.randint(0, 100, (2, codes)) * size
    shown = grouped(history, size)
    assert shown.shape == (2, -(-codes // size))
    for number, column in enumerate(shown.T):
        own = history[:, number * size : (number + 1) * size].double().mean(dim=1) * size
        assert (column - own).abs().max() < 1


def test_heat_maps_of_large_codebooks_are_of_groups():
    figure = heat_map_figure(torch.ones(3, 65_536).long())
    assert np.asarray(figure.axes[0].images[0].get_array()).shape == (3, 512)
    assert figure.axes[0].get_xlabel() == "groups of 128 adjacent codes"
    small = heat_map_figure(torch.ones(3, 512).long())
    assert small.axes[0].get_xlabel() == "code"


# --- all of them --------------------------------------------------------------------------------

ALONE = {"reconstructions", "token_map"}
EACH = {"gallery", "usage_curve", "usage_history"}


def pictures_of(model, images, epochs=2):
    histories = [torch.randint(0, 9, (epochs, level.codebook_size)) for level in model.levels]
    return codebook_pictures(model, images, histories)


def assert_drawn(pictures):
    for name, figure in pictures.items():
        picture = Image.open(io.BytesIO(to_png(figure))).convert("L")
        assert picture.width == 720, name
        assert 200 < picture.height < 2500, name
        assert np.asarray(picture).std() > 5, name
        assert all(axes.get_xlabel() or axes.get_ylabel() for axes in figure.axes), name


@pytest.mark.parametrize("name", ["one", "pyramid", "vqvae2"])
def test_every_level_has_every_picture(name):
    model = model_of(**LEVELS[name])
    pictures = pictures_of(model, images_of())
    levels = len(model.levels)
    suffixes = [""] if levels == 1 else [f"_level_{n}" for n in range(1, levels + 1)]
    assert set(pictures) == ALONE | {name + suffix for name in EACH for suffix in suffixes}
    # Figures are the same for each level, and drawing is what takes time.
    assert_drawn({name: pictures[name] for name in pictures if "level" not in name})


def test_a_model_without_tokens_has_pictures_of_what_it_has():
    pictures = pictures_of(model_of(quantizer="none"), images_of())
    assert set(pictures) == {"reconstructions"}
    assert_drawn(pictures)
    assert sample_codebook(model_of(quantizer="none"), images_of(2)).levels == ()


@pytest.mark.parametrize(
    ("config", "channels", "count"),
    [({"codebook_size": 1}, 3, 20), ({"codebook_dim": 1}, 3, 1), ({"in_channels": 1}, 1, 3)],
)
def test_one_code_one_dimension_one_image_and_grey_images_are_drawn(config, channels, count):
    pictures = pictures_of(model_of(**config), images_of(count, channels))
    assert set(pictures) == ALONE | EACH
    assert_drawn(pictures)


def test_a_codebook_of_65536_codes_is_drawn():
    model = model_of(codebook_size=65_536, quantizer="vq")
    assert_drawn(pictures_of(model, images_of(12, size=16)))


def test_without_histories_the_tokens_of_the_images_are_counted():
    pictures = codebook_pictures(model_of(), images_of(), histories=[torch.zeros(0, 16)])
    assert "usage_curve" in pictures
    assert "usage_history" not in pictures
    assert "tokens of 20 images" in pictures["usage_curve"].axes[0].get_title()
    assert history_pictures([torch.zeros(0, 4)]) == {}
