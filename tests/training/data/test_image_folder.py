"""training.data.image_folder against torchvision's transforms and hashes computed here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms

from training.data import image_folder
from training.data.splits import load_splits
from training.errors import DatasetError

SPLITS = ("train", "val", "test")


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
    parts = dict(zip(SPLITS, image_folder.split_folder(root)[:3], strict=True))
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
    for i in range(2):
        write_flat(tmp_path / "train" / f"{i}.png", i)
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
