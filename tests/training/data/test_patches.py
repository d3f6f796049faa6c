"""training.data.patches: crops of two photographs, found again in the photographs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.datasets import load_sample_images

from training.data import patches
from training.data.splits import load_splits
from training.errors import DatasetError

SPLITS = ("train", "val", "test")


def columns_of(split: str) -> np.ndarray:
    return np.concatenate([np.arange(*band) for band in patches.BANDS[split]])


def test_patch_bands_share_no_column_and_cover_the_photographs():
    columns = np.concatenate([columns_of(split) for split in SPLITS])
    assert sorted(columns) == list(range(640))
    widths = [stop - start for bands in patches.BANDS.values() for start, stop in bands]
    assert min(widths) == patches.MAX_SIZE


@pytest.fixture(scope="module")
def all_patches():
    return load_splits("patches", "unused")


def test_patches_have_the_promised_form(all_patches):
    assert all_patches.name == "patches"
    assert "scikit-learn" in all_patches.source
    for split, count in zip(SPLITS, (20_000, 2_000, 2_000), strict=True):
        images = getattr(all_patches, split)
        assert images.shape == (count, 3, 32, 32)
        assert images.dtype == torch.uint8
        assert images.is_contiguous()
        assert getattr(all_patches, f"{split}_labels") is None
        # Drawn without repetition; only crops of an evenly white sky may look alike.
        assert len({image.numpy().tobytes() for image in images}) > 0.99 * count


WEIGHTS = np.array([1, 256, 65_536])


class Photographs:
    """Both photographs, one number per pixel, and where each number is."""

    def __init__(self) -> None:
        colours = np.stack(load_sample_images().images) @ WEIGHTS  # (2, 427, 640)
        self.windows = sliding_window_view(colours, (32, 32), axis=(1, 2))
        self.shape = colours.shape
        self.order = colours.argsort(axis=None)
        self.colours = colours.ravel()[self.order]

    def places_of(self, patch: np.ndarray) -> np.ndarray:
        """Every (photo, top, left) where a patch lies."""
        start, stop = (np.searchsorted(self.colours, patch, side) for side in ("left", "right"))
        row, col = np.unravel_index((stop - start).argmin(), patch.shape)  # the rarest pixel
        found = self.order[start[row, col] : stop[row, col]]
        places = np.stack(np.unravel_index(found, self.shape), axis=1) - [0, row, col]
        inside = (places >= 0) & (places < self.windows.shape[:3])
        places = places[inside.all(axis=1)]
        photo, top, left = places.T
        return places[(self.windows[photo, top, left] == patch).all(axis=(1, 2))]


@pytest.fixture(scope="module")
def photographs():
    return Photographs()


def test_the_search_finds_a_patch_where_it_was_cut(photographs):
    for place in [(0, 0, 0), (1, 395, 608), (1, 200, 300), (0, 300, 77)]:
        patch = photographs.windows[place]
        assert list(place) in photographs.places_of(patch).tolist()
        broken = patch.copy()
        broken[31, 31] = -1
        assert len(photographs.places_of(broken)) == 0


@pytest.mark.parametrize("split", SPLITS)
def test_patches_are_crops_of_their_own_bands_only(all_patches, photographs, split):
    sample = getattr(all_patches, split)[:100].permute(0, 2, 3, 1).numpy() @ WEIGHTS
    allowed = set(columns_of(split))
    mirrored = photos = 0
    for patch in sample:
        upright, turned = photographs.places_of(patch), photographs.places_of(patch[:, ::-1])
        places = np.concatenate([upright, turned])
        columns = [set(range(left, left + 32)) for left in places[:, 2]]
        # An evenly coloured patch occurs elsewhere as well; others in one place.
        assert any(column <= allowed for column in columns)
        assert len(columns) == 1 or len(np.unique(patch)) < 30
        mirrored += not len(upright)
        photos += places[0, 0]
    assert 30 < mirrored < 70
    assert 30 < photos < 70


def test_patches_are_the_same_in_every_call_and_limits_are_prefixes(all_patches):
    torch.manual_seed(1)
    np.random.seed(1)
    again = load_splits("patches", "elsewhere", limit_train=500, limit_test=70)
    assert torch.equal(again.train, all_patches.train[:500])
    assert torch.equal(again.val, all_patches.val[:70])
    assert torch.equal(again.test, all_patches.test[:70])


def test_patches_come_in_other_sizes():
    splits = load_splits("patches", "unused", image_size=48, limit_train=5, limit_test=10**6)
    assert splits.train.shape == (5, 3, 48, 48)
    # a held-out band of 48 columns has one place per row in each photograph
    assert splits.val.shape == (2 * 2 * (427 - 47), 3, 48, 48)
    with pytest.raises(DatasetError, match=r"49.*at most 48"):
        load_splits("patches", "unused", image_size=49)
