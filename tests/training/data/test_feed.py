"""training.data.feed: augmentation, batches and wrong calls, against loops in NumPy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.feed import augment, batches, to_float
from training.data.splits import default_data_dir, load_splits
from training.errors import DatasetError


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def slow_augment(images: np.ndarray, flips: np.ndarray, offsets: np.ndarray, pad: int):
    """One image at a time: pad by reflection, crop, mirror."""
    result = np.empty_like(images)
    height, width = images.shape[2:]
    for i, image in enumerate(images):
        padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)), mode="reflect")
        top, left = offsets[:, i]
        crop = padded[:, top : top + height, left : left + width]
        result[i] = crop[:, :, ::-1] if flips[i] else crop
    return result


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9)),
    pad=st.integers(0, 8),
    dtype=st.sampled_from([torch.uint8, torch.float32, torch.float64, torch.bfloat16]),
    seed=st.integers(0, 2**32),
)
def test_augment_equals_a_loop_over_images(shape, pad, dtype, seed):
    pad = min(pad, min(shape[2:]) - 1)
    images = torch.randint(0, 256, shape, generator=generator(seed)).to(dtype)
    before = images.clone()
    result = augment(images, generator(seed), pad)

    same = generator(seed)
    flips = torch.randint(0, 2, (shape[0], 1), generator=same).numpy()[:, 0]
    offsets = torch.randint(0, 2 * pad + 1, (2, shape[0], 1), generator=same).numpy()[:, :, 0]
    expected = slow_augment(images.double().numpy(), flips, offsets, pad)
    assert result.dtype == dtype
    assert result.shape == images.shape
    np.testing.assert_array_equal(result.double().numpy(), expected)
    assert torch.equal(images, before)


def test_augment_reaches_every_shift_and_flip_about_equally():
    image = torch.arange(100.0).view(1, 1, 10, 10)
    results = augment(image.expand(9_000, 1, 10, 10), generator(0), pad=1)
    kinds, counts = results.flatten(1).unique(dim=0, return_counts=True)
    assert len(kinds) == 3 * 3 * 2
    # 500 expected of each, standard deviation 22
    assert counts.min() > 380
    assert counts.max() < 620


def test_augment_takes_any_memory_layout_and_passes_gradients():
    images = torch.rand(3, 2, 6, 5)
    expected = augment(images, generator(3), 2)
    strided = images.to(memory_format=torch.channels_last)
    assert torch.equal(augment(strided, generator(3), 2), expected)
    leaf = images.clone().requires_grad_()
    augment(leaf, generator(3), 0).sum().backward()
    assert torch.equal(leaf.grad, torch.ones_like(leaf))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_augment_is_the_same_on_every_device():
    images = torch.randint(0, 256, (8, 3, 32, 32), generator=generator(0), dtype=torch.uint8)
    on_cuda = augment(images.cuda(), generator(1))
    assert on_cuda.is_cuda
    assert torch.equal(on_cuda.cpu(), augment(images, generator(1)))


@pytest.mark.parametrize("pad", [-1, 4])
def test_augment_refuses_a_pad_that_cannot_be_reflected(pad):
    with pytest.raises(ValueError, match=rf"pad is {pad}.*< 4"):
        augment(torch.zeros(1, 1, 4, 9), generator(0), pad)


@given(n=st.integers(1, 200), batch_size=st.integers(1, 220), seed=st.integers(0, 2**32))
def test_batches_are_a_shuffle_cut_into_full_batches(n, batch_size, seed):
    sizes = [len(batch) for batch in batches(n, batch_size, generator(seed))]
    assert sizes == ([n] if n < batch_size else [batch_size] * (n // batch_size))
    flat = torch.cat(list(batches(n, batch_size, generator(seed))))
    assert flat.dtype == torch.int64
    assert len(set(flat.tolist())) == len(flat)
    assert set(flat.tolist()) <= set(range(n))
    again = torch.cat(list(batches(n, batch_size, generator(seed))))
    assert torch.equal(flat, again)


def test_batches_differ_between_epochs_and_refuse_nonsense():
    shared = generator(0)
    assert next(batches(100, 50, shared)).tolist() != next(batches(100, 50, shared)).tolist()
    for n, batch_size in [(0, 4), (4, 0), (-1, 1)]:
        with pytest.raises(ValueError, match="at least 1"):
            batches(n, batch_size, shared)


def test_to_float_maps_bytes_to_the_unit_interval():
    values = torch.arange(256, dtype=torch.uint8)
    result = to_float(values)
    assert result.dtype == torch.float32
    np.testing.assert_array_equal(result.numpy(), np.arange(256, dtype=np.float32) / 255)
    with pytest.raises(TypeError, match=r"float32.*uint8"):
        to_float(result)


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        ("mnist", {}, r"'mnist'.*auto, cifar10, patches, folder"),
        ("patches", {"limit_train": 0}, "limit_train is 0"),
        ("patches", {"limit_test": -3}, "limit_test is -3"),
        ("folder", {"image_size": 0}, "image_size is 0"),
        ("cifar10", {"image_size": 64}, "image_size is 64.*32x32"),
        ("auto", {"image_size": 16}, "image_size is 16.*32x32"),
    ],
)
def test_wrong_calls_say_what_is_expected(tmp_path, dataset, options, message):
    with pytest.raises(DatasetError, match=message):
        load_splits(dataset, tmp_path, **options)


@pytest.mark.parametrize("dataset", ["auto", "cifar10", "folder"])
def test_a_file_as_data_folder_is_an_error(tmp_path, dataset):
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError, match=r"folder .*file"):
        load_splits(dataset, tmp_path / "file")


def test_the_default_data_folder_follows_the_environment(monkeypatch):
    monkeypatch.delenv("SOFTVQ_DATA", raising=False)
    assert default_data_dir() == Path("data")
    monkeypatch.setenv("SOFTVQ_DATA", "")
    assert default_data_dir() == Path("data")
    monkeypatch.setenv("SOFTVQ_DATA", "/some/where")
    assert default_data_dir() == Path("/some/where")


def test_importing_needs_no_heavy_library():
    code = (
        "import sys, training.data.splits, training.data.feed;"
        "print([m for m in ('torchvision', 'sklearn', 'PIL') if m in sys.modules])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
