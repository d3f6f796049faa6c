"""training.datasets against independent references: NumPy loops, pickle, torchvision, pixels."""

from __future__ import annotations

import hashlib
import http.server
import pickle
import socket
import sys
import tarfile
import threading
import urllib.error
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_images
from torchvision import transforms
from torchvision.datasets import CIFAR10

from training import datasets, image_folder, patches
from training.datasets import augment, batches, load_splits, to_float
from training.errors import DatasetError

SPLITS = ("train", "val", "test")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- augment, batches, to_float ---------------------------------------------------------------


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


# --- patches ----------------------------------------------------------------------------------


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


def places_of(patch: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """Every (photo, top, left) where a patch lies; one number per pixel in both."""
    size = len(patch)
    places = np.argwhere(colours[:, : 1 - size, : 1 - size] == patch[0, 0])
    for row in range(size):
        for col in range(size):
            photo, top, left = places.T
            places = places[colours[photo, top + row, left + col] == patch[row, col]]
    return places


@pytest.mark.parametrize("split", SPLITS)
def test_patches_are_crops_of_their_own_bands_only(all_patches, split):
    weights = np.array([1, 256, 65_536])
    colours = np.stack(load_sample_images().images) @ weights  # (2, 427, 640)
    sample = getattr(all_patches, split)[:100].permute(0, 2, 3, 1).numpy() @ weights
    allowed = set(columns_of(split))
    mirrored = photos = 0
    for patch in sample:
        upright, turned = places_of(patch, colours), places_of(patch[:, ::-1], colours)
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


# --- a folder of images -----------------------------------------------------------------------


def write_image(path: Path, seed: int, size=(40, 36), mode: str = "RGB") -> Image.Image:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    image.save(path)
    return image


def write_flat(path: Path, value: int) -> None:
    """A tiny image of one grey, so that it can be recognised after loading."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), value).save(path)


def greys(images: torch.Tensor) -> list[int]:
    return images[:, 0, 0, 0].tolist()


def name_hash(name: str) -> int:
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)


def by_hash(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: name_hash(path.name))


def test_folder_reads_every_mode_like_torchvision(tmp_path):
    names = {"a.png": "RGB", "b.png": "L", "c.png": "RGBA", "d.png": "P", "e.gif": "P"}
    names |= {"f.bmp": "RGB", "g.tif": "CMYK", "h.PNG": "1", "i.png": "LA", "j.webp": "RGB"}
    names |= {"k.jpg": "RGB", "l.jpeg": "L", "m.TIFF": "RGB"}
    for i, (name, mode) in enumerate(names.items()):
        write_image(tmp_path / "train" / name, i, size=(64 + 7 * i, 50), mode=mode)
    write_image(tmp_path / "train" / "n.png", 50, size=(33, 90))
    write_image(tmp_path / "train" / "o.png", 51, size=(5, 3))
    write_image(tmp_path / "test" / "a.png", 60)
    write_image(tmp_path / "val" / "a.png", 61)
    splits = load_splits("folder", tmp_path, image_size=24)
    assert splits.name == "folder"
    assert str(tmp_path) in splits.source
    assert splits.train.dtype == torch.uint8
    assert splits.train.is_contiguous()
    assert splits.train_labels is None
    paths = by_hash((tmp_path / "train").iterdir())
    assert splits.train.shape == (len(paths), 3, 24, 24)
    reference = transforms.Compose(
        [
            transforms.Resize(24, transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(24),
            transforms.PILToTensor(),
        ]
    )
    for image, path in zip(splits.train, paths, strict=True):
        with Image.open(path) as opened:
            expected = reference(opened.convert("RGB"))
        np.testing.assert_array_equal(image.numpy(), expected.numpy(), err_msg=path.name)


def test_folder_scales_16_bit_greys_and_palettes_with_transparency(tmp_path):
    ramp = np.tile(np.arange(32, dtype=np.uint16) * 2114, (32, 1))  # up to 65,534
    (tmp_path / "train").mkdir()
    Image.fromarray(ramp).save(tmp_path / "train" / "a.png")
    palette = write_image(tmp_path / "train" / "b.png", 1, size=(32, 32), mode="P")
    palette.save(tmp_path / "train" / "b.png", transparency=bytes(range(256)))
    upside_down = Image.Exif()
    upside_down[0x0112] = 3
    photo = write_image(tmp_path / "train" / "c.png", 2, size=(32, 32))
    photo.save(tmp_path / "train" / "c.png", exif=upside_down)
    write_flat(tmp_path / "val" / "a.png", 0)
    write_flat(tmp_path / "test" / "a.png", 0)
    images = load_splits("folder", tmp_path).train.numpy()
    names = [path.name for path in by_hash((tmp_path / "train").iterdir())]
    grey, colours, turned = (images[names.index(name)] for name in ("a.png", "b.png", "c.png"))
    np.testing.assert_array_equal(grey[0], ramp // 257)
    np.testing.assert_array_equal(colours, np.asarray(palette.convert("RGB")).transpose(2, 0, 1))
    np.testing.assert_array_equal(turned, np.asarray(photo).transpose(2, 0, 1)[:, ::-1, ::-1])


def expected_hash_split(names: list[str]) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {split: [] for split in SPLITS}
    for name in sorted(names, key=name_hash):
        share = name_hash(name) / 0x100000000
        parts["train" if share < 0.8 else "val" if share < 0.9 else "test"].append(name)
    return parts


def test_folder_is_split_by_hash_of_the_relative_path(tmp_path):
    names = [f"class{i % 3}/deep/im{i:03}.png" for i in range(200)]
    value = {name: i for i, name in enumerate(names)}
    for name in reversed(names):
        write_flat(tmp_path / "one" / name, value[name])
    for name in names:
        write_flat(tmp_path / "two" / name, value[name])
    (tmp_path / "one" / "notes.txt").write_text("not an image")
    (tmp_path / "one" / "._im000.png").write_bytes(b"another program's")
    expected = {
        split: [value[name] for name in part] for split, part in expected_hash_split(names).items()
    }
    assert 0 < len(expected["val"]) < 40
    first, second = (
        load_splits("folder", tmp_path / name, image_size=4) for name in ("one", "two")
    )
    for split in SPLITS:
        assert greys(getattr(first, split)) == expected[split]
        assert torch.equal(getattr(first, split), getattr(second, split))
    limited = load_splits("folder", tmp_path / "one", image_size=4, limit_train=7, limit_test=2)
    assert greys(limited.train) == expected["train"][:7]
    assert greys(limited.val) == expected["val"][:2]
    assert greys(limited.test) == expected["test"][:2]


@settings(max_examples=50, deadline=None)
@given(st.sets(st.text("abcdefgh", min_size=1, max_size=3), min_size=3, max_size=12))
def test_every_split_of_a_small_folder_has_an_image(tmp_path_factory, names):
    root = tmp_path_factory.mktemp("small")
    for name in names:
        (root / f"{name}.png").touch()
    parts = image_folder.split_folder(root)
    assert list(parts) == list(SPLITS)
    assert all(parts.values())
    assert sorted(path.stem for part in parts.values() for path in part) == sorted(names)
    assert all(part == sorted(part, key=lambda p: name_hash(p.name)) for part in parts.values())
    by_hash = expected_hash_split([f"{name}.png" for name in names])
    if all(by_hash.values()):
        assert {k: [path.name for path in part] for k, part in parts.items()} == by_hash


@pytest.mark.parametrize("val_name", ["val", "validation"])
def test_folder_uses_the_splits_that_are_there(tmp_path, val_name):
    for i in range(30):
        write_flat(tmp_path / "train" / f"{i}.png", i)
    write_flat(tmp_path / "outside.png", 99)
    write_flat(tmp_path / "test" / "dog" / "x.png", 100)
    without_val = load_splits("folder", tmp_path, image_size=4)
    assert greys(without_val.test) == [100]
    assert without_val.val.shape[0] >= 1
    assert sorted(greys(without_val.train) + greys(without_val.val)) == list(range(30))

    write_flat(tmp_path / val_name / "y.png", 101)
    complete = load_splits("folder", tmp_path, image_size=4)
    assert sorted(greys(complete.train)) == list(range(30))
    assert (greys(complete.val), greys(complete.test)) == ([101], [100])

    (tmp_path / "test").rename(tmp_path / "elsewhere")
    without_test = load_splits("folder", tmp_path, image_size=4)
    assert greys(without_test.val) == [101]
    assert torch.equal(without_test.test, without_val.val)
    assert torch.equal(without_test.train, without_val.train)


def test_folder_errors_name_the_path(tmp_path):
    with pytest.raises(DatasetError, match=r"no folder .*missing"):
        load_splits("folder", tmp_path / "missing")
    with pytest.raises(DatasetError, match=rf"no images below {tmp_path}"):
        load_splits("folder", tmp_path)
    for i in range(2):
        write_flat(tmp_path / f"{i}.png", i)
    with pytest.raises(DatasetError, match=rf"2 images below {tmp_path}: at least 3"):
        load_splits("folder", tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    write_flat(tmp_path / "train" / "0.png", 0)
    with pytest.raises(DatasetError, match=rf"no images below {tmp_path / 'test'}"):
        load_splits("folder", tmp_path)


@pytest.mark.parametrize("damage", ["text", "cut", "empty", "header", "float"])
def test_folder_error_for_an_unreadable_image_names_it(tmp_path, damage):
    for i in range(3):
        write_image(tmp_path / f"{i}.png", i)
    bad = tmp_path / "1.png"
    data = bad.read_bytes()
    if damage == "float":
        bad = tmp_path / "1.tif"
        (tmp_path / "1.png").unlink()
        Image.fromarray(np.zeros((4, 4), dtype=np.float32)).save(bad)
    else:
        header = data[:20] + b"\xff" * 20 + data[40:]
        changed = {"text": b"hello", "cut": data[: len(data) // 2], "empty": b"", "header": header}
        bad.write_bytes(changed[damage])
    with pytest.raises(DatasetError, match=rf"cannot read image {bad} "):
        load_splits("folder", tmp_path)


# --- CIFAR-10 ---------------------------------------------------------------------------------


def test_real_cifar10_has_the_official_images_in_order(cifar10_dir):
    said: list[str] = []
    splits = load_splits("auto", cifar10_dir, announce=said.append)
    assert said == []
    assert splits.name == "cifar10"
    assert str(cifar10_dir) in splits.source
    sizes = [getattr(splits, split).shape for split in SPLITS]
    assert sizes == [(45_000, 3, 32, 32), (5_000, 3, 32, 32), (10_000, 3, 32, 32)]

    def batch(name: str) -> tuple[np.ndarray, list[int]]:
        with open(cifar10_dir / "cifar-10-batches-py" / name, "rb") as file:
            entry = pickle.load(file, encoding="bytes")
        return entry[b"data"].reshape(-1, 3, 32, 32), entry[b"labels"]

    checks = [
        (splits.train[:10_000], splits.train_labels[:10_000], *batch("data_batch_1")),
        (
            splits.train[40_000:],
            splits.train_labels[40_000:],
            *(x[:5_000] for x in batch("data_batch_5")),
        ),
        (splits.val, splits.val_labels, *(x[5_000:] for x in batch("data_batch_5"))),
        (splits.test, splits.test_labels, *batch("test_batch")),
    ]
    for images, labels, expected_images, expected_labels in checks:
        assert images.dtype == torch.uint8
        assert labels.dtype == torch.int64
        np.testing.assert_array_equal(images.numpy(), expected_images)
        assert labels.tolist() == expected_labels

    limited = load_splits("cifar10", str(cifar10_dir), limit_train=60_000, limit_test=9)
    assert len(limited.train) == len(limited.train_labels) == 45_000
    assert torch.equal(limited.val, splits.val[:9])
    assert torch.equal(limited.test_labels, splits.test_labels[:9])


class Served:
    """A tiny CIFAR-10 with its own md5s, as an archive on a local server and unpacked."""

    def __init__(self, folder: Path) -> None:
        self.archive = folder / "site" / "cifar-10-python.tar.gz"
        self.unpacked = folder / "unpacked"
        self.requests: list[str] = []


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Two images per batch; torchvision believes that this is the official data."""
    served = Served(tmp_path)
    batch_dir = served.unpacked / "cifar-10-batches-py"
    batch_dir.mkdir(parents=True)
    served.archive.parent.mkdir()
    random = np.random.default_rng(0)
    md5s = {}
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch", "batches.meta"]:
        pixels = random.integers(0, 256, (2, 3072), dtype=np.uint8)
        entry = {"data": pixels, "labels": [3, 4], "label_names": list("abcdefghij")}
        data = pickle.dumps(entry, protocol=2)
        (batch_dir / name).write_bytes(data)
        md5s[name] = hashlib.md5(data).hexdigest()
    with tarfile.open(served.archive, "w:gz") as tar:
        tar.add(batch_dir, arcname=batch_dir.name)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(served.archive.parent))

        def log_message(self, *args):
            served.requests.append(self.requestline)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    address = f"http://127.0.0.1:{server.server_port}/{served.archive.name}"
    monkeypatch.setattr(CIFAR10, "url", address)
    archive_md5 = hashlib.md5(served.archive.read_bytes()).hexdigest()
    monkeypatch.setattr(CIFAR10, "tgz_md5", archive_md5)
    for attribute in ("train_list", "test_list"):
        names = [[name, md5s[name]] for name, _ in getattr(CIFAR10, attribute)]
        monkeypatch.setattr(CIFAR10, attribute, names)
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": md5s["batches.meta"]})
    monkeypatch.setattr(datasets, "_CIFAR_TRAIN", 7)
    yield served
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def offline(monkeypatch):
    """torchvision's download fails as it does without a network; records its time-out."""
    timeouts = []

    def download(self):
        timeouts.append(socket.getdefaulttimeout())
        print("Downloading ...")
        raise urllib.error.URLError(OSError(-2, "Name or service\nnot known"))

    monkeypatch.setattr(CIFAR10, "download", download)
    return timeouts


@pytest.mark.parametrize("dataset", ["auto", "cifar10"])
def test_cifar10_is_downloaded_into_the_data_folder(tiny, tmp_path, capfd, dataset):
    data_dir = tmp_path / "new" / "data"
    splits = load_splits(dataset, data_dir)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (7, 3, 2)
    assert capfd.readouterr() == (f"downloading CIFAR-10 into {data_dir}\n", "")
    assert [path.name for path in data_dir.iterdir()] == ["cifar-10-batches-py"]
    assert tiny.requests
    tiny.requests.clear()
    again = load_splits(dataset, data_dir)
    assert torch.equal(again.train, splits.train)
    assert capfd.readouterr() == ("", "")
    assert not tiny.requests


def test_an_archive_in_the_data_folder_is_unpacked_without_the_network(tiny, tmp_path, capfd):
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    archive = data_dir / tiny.archive.name
    archive.write_bytes(tiny.archive.read_bytes())
    splits = load_splits("cifar10", data_dir, download=False)
    expected = load_splits("cifar10", tiny.unpacked)
    assert torch.equal(splits.train, expected.train)
    assert not tiny.requests
    assert sorted(path.name for path in data_dir.iterdir()) == [
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
    ]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dataset", ["auto", "cifar10"])
@pytest.mark.parametrize("damage", ["changed", "missing", "empty folder", "archive"])
def test_a_damaged_copy_is_an_error_and_is_left_alone(tiny, tmp_path, dataset, damage):
    folder = tiny.unpacked / "cifar-10-batches-py"
    data_dir, named = tiny.unpacked, folder
    if damage == "changed":
        (folder / "data_batch_3").write_bytes(b"something else")
    elif damage == "missing":
        (folder / "batches.meta").unlink()
    elif damage == "empty folder":
        data_dir = tmp_path / "data"
        named = data_dir / "cifar-10-batches-py"
        named.mkdir(parents=True)
    else:
        data_dir = tmp_path / "data"
        data_dir.mkdir()
        named = data_dir / "cifar-10-python.tar.gz"
        named.write_bytes(tiny.archive.read_bytes()[:-10])

    def listing() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()}

    before = listing()
    with pytest.raises(DatasetError, match=rf"{named} is .*md5.*move it away"):
        load_splits(dataset, data_dir)
    assert listing() == before
    assert not tiny.requests


def test_auto_falls_back_to_patches_with_one_line(offline, tmp_path, capfd):
    previous = socket.getdefaulttimeout()
    splits = load_splits("auto", tmp_path / "data", limit_train=20, limit_test=5)
    out, err = capfd.readouterr()
    assert splits.name == "patches"
    assert torch.equal(splits.train, load_splits("patches", "", limit_train=20).train)
    assert err == ""
    assert out.count("\n") == 1
    assert str(tmp_path / "data") in out
    assert "Name or service not known" in out
    assert "--dataset patches" in out
    assert list((tmp_path / "data").iterdir()) == []
    assert offline == [20.0]
    assert socket.getdefaulttimeout() == previous


@pytest.mark.parametrize(
    "error", [RuntimeError("File not found or corrupted."), OSError(28, "full")]
)
def test_auto_falls_back_whatever_stops_the_download(monkeypatch, tmp_path, error):
    def download(self):
        Path(self.root, "cifar-10-python.tar.gz").write_bytes(b"half of it")
        raise error

    monkeypatch.setattr(CIFAR10, "download", download)
    said: list[str] = []
    assert load_splits("auto", tmp_path, limit_train=1, announce=said.append).name == "patches"
    assert len(said) == 1
    assert str(error) in said[0]
    assert list(tmp_path.iterdir()) == []


def test_a_broken_connection_falls_back_too(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(CIFAR10, "tgz_md5", "0" * 32)
    said: list[str] = []
    splits = load_splits("auto", tmp_path / "data", limit_train=1, announce=said.append)
    assert splits.name == "patches"
    assert len(said) == 2  # the download had begun
    assert "corrupted" in said[1]
    assert list((tmp_path / "data").iterdir()) == []


def test_a_copy_that_another_run_completes_meanwhile_is_used(tiny, tmp_path, monkeypatch):
    real_download = CIFAR10.download

    def download(self):
        real_download(self)
        (tiny.unpacked / "cifar-10-batches-py").rename(tmp_path / "data" / "cifar-10-batches-py")

    monkeypatch.setattr(CIFAR10, "download", download)
    assert load_splits("cifar10", tmp_path / "data").name == "cifar10"
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["cifar-10-batches-py"]


def test_download_can_be_switched_off(offline, tmp_path):
    said: list[str] = []
    splits = load_splits("auto", tmp_path, download=False, limit_train=1, announce=said.append)
    assert splits.name == "patches"
    assert len(said) == 1
    assert "switched off" in said[0]
    with pytest.raises(DatasetError, match="switched off"):
        load_splits("cifar10", tmp_path, download=False)
    assert offline == []


def test_cifar10_never_falls_back_and_names_three_ways_out(offline, tmp_path, capfd):
    with pytest.raises(DatasetError) as caught:
        load_splits("cifar10", tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    for part in [
        f"no cifar-10-batches-py in {tmp_path}",
        "--data-dir",
        "$SOFTVQ_DATA",
        "allow the network",
        "--dataset patches",
        "--dataset folder",
    ]:
        assert part in message
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


# --- the call ---------------------------------------------------------------------------------


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
    assert datasets.default_data_dir() == Path("data")
    monkeypatch.setenv("SOFTVQ_DATA", "")
    assert datasets.default_data_dir() == Path("data")
    monkeypatch.setenv("SOFTVQ_DATA", "/some/where")
    assert datasets.default_data_dir() == Path("/some/where")


def test_importing_needs_no_heavy_library():
    import subprocess

    code = (
        "import sys, training.datasets;"
        "print([m for m in ('torchvision', 'sklearn', 'PIL') if m in sys.modules])"
    )
    root = Path(datasets.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
