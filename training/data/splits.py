"""Image data for training: CIFAR-10, crops of two photographs, or a folder of images.

Shapes: N images of a split, C channels, H x W pixels. Splits are uint8 (N, C, H, W) on the CPU.
The test split chooses nothing: validation images come from the training part of every data set.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor

from ..config.sections import DATASETS
from ..errors import DatasetError
from . import cifar10
from .image_folder import in_words, read_images, split_folder
from .patches import MAX_SIZE, photo_patches


@dataclass(frozen=True, eq=False)
class ImageSplits:
    """Three disjoint splits of a data set.

    Attributes:
        train: uint8 (N, C, H, W).
        val: uint8 (N, C, H, W), for every choice made in training.
        test: uint8 (N, C, H, W), for the final figures only.
        name: What the images really are: ``cifar10``, ``patches`` or ``folder``.
        source: Where they came from, for people to read.
        train_labels: int64 (N,), or None where there are no classes.
        val_labels: Likewise.
        test_labels: Likewise.
    """

    train: Tensor
    val: Tensor
    test: Tensor
    name: str
    source: str
    train_labels: Tensor | None = None
    val_labels: Tensor | None = None
    test_labels: Tensor | None = None

    @property
    def sizes(self) -> list[int]:
        """Numbers of training, validation and test images."""
        return [len(self.train), len(self.val), len(self.test)]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all pixels in their order, in hexadecimal."""
        digest = hashlib.sha256()
        for images in (self.train, self.val, self.test):
            digest.update(f"{tuple(images.shape)}".encode())
            digest.update(images.contiguous().numpy().data)
        return digest.hexdigest()


def default_data_dir() -> Path:
    """``$SOFTVQ_DATA`` where it is set and not empty, else ``data``."""
    return Path(os.environ.get("SOFTVQ_DATA") or "data")


def load_splits(
    dataset: str,
    data_dir: str | Path | None = None,
    *,
    limit_train: int | None = None,
    limit_test: int | None = None,
    image_size: int = 32,
    download: bool = True,
    skip_bad: bool = False,
    announce: Callable[[str], object] = print,
) -> ImageSplits:
    """Load a data set by name; the same call always gives the same images in the same order.

    Args:
        dataset: ``cifar10``; ``patches``, crops of two photographs that need no download;
            ``folder``, the images below ``data_dir``; or ``auto``, CIFAR-10 where it is on disk or
            can be downloaded, else ``patches``.
        data_dir: The folder of images, which :func:`.image_folder.split_folder` splits, or the one
            with CIFAR-10 (:func:`default_data_dir` when None).
        limit_train: The largest number of training images, the first ones.
        limit_test: The largest number of validation images, and of test images.
        image_size: Height and width in pixels. CIFAR-10 has 32 only; images of a folder are scaled
            until the short side fits, then cropped at the centre.
        download: Whether CIFAR-10 may be downloaded.
        skip_bad: Whether files of a folder that cannot be read are left out, and said.
        announce: Called with one line for a download, for falling back to ``patches``, and for what
            was left out of a folder.

    Raises:
        DatasetError: The data is missing, damaged or too small, or the call is wrong.
    """
    if dataset not in DATASETS:
        raise DatasetError(f"unknown dataset {dataset!r}: choose one of {', '.join(DATASETS)}")
    _check_positive(limit_train=limit_train, limit_test=limit_test, image_size=image_size)
    limits = {"train": limit_train, "val": limit_test, "test": limit_test}
    if dataset == "folder":
        return _folder(data_dir, limits, image_size, skip_bad, announce)
    if dataset == "patches":
        return _patches(limits, image_size)
    root = default_data_dir() if data_dir is None else Path(data_dir).expanduser()
    found = _cifar10(root, limits, image_size, download, announce)
    if isinstance(found, ImageSplits):
        return found
    if dataset == "cifar10":
        raise DatasetError(cifar10.WAYS_OUT.format(root=root, problem=found))
    announce(
        f"no CIFAR-10 in {root} and {found}: using crops of two photographs instead "
        "(--dataset patches)"
    )
    return _patches(limits, image_size)


def _check_positive(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise DatasetError(f"{name} is {value}: give at least 1, or leave it out")


def _cifar10(
    root: Path,
    limits: dict[str, int | None],
    size: int,
    download: bool,
    announce: Callable[[str], object],
) -> ImageSplits | str:
    """CIFAR-10, or the reason why it cannot be had."""
    if size != cifar10.SIZE:
        raise DatasetError(
            f"image_size is {size}, but CIFAR-10 images are {cifar10.SIZE}x{cifar10.SIZE}: "
            "leave it out, or use --dataset patches or --dataset folder"
        )
    if root.name == cifar10.FOLDER and (root / "data_batch_1").exists():
        raise DatasetError(f"{root} is CIFAR-10 itself: give its parent, --data-dir {root.parent}")
    problem = cifar10.fetch_cifar10(root, download, announce)
    if problem is not None:
        return problem
    (train, val, test), labels = cifar10.read_cifar10(root, limits)
    return ImageSplits(train, val, test, "cifar10", f"CIFAR-10 in {root}", *labels)


def _patches(limits: dict[str, int | None], size: int) -> ImageSplits:
    if size > MAX_SIZE:
        raise DatasetError(
            f"image_size is {size}: --dataset patches has at most {MAX_SIZE}; give less, or use "
            "--dataset folder"
        )
    train, val, test = (photo_patches(split, size, limit) for split, limit in limits.items())
    source = "crops of the photographs china and flower of scikit-learn"
    return ImageSplits(train, val, test, "patches", source)


def _folder(
    root: str | Path | None,
    limits: dict[str, int | None],
    size: int,
    skip_bad: bool,
    announce: Callable[[str], object],
) -> ImageSplits:
    if root is None:
        raise DatasetError("--dataset folder needs --data-dir, the folder of images")
    root = Path(root).expanduser()
    files = split_folder(root)
    if files.skipped:
        announce(f"left out below {root}: {in_words(files.skipped)}")
    bad: list[DatasetError] = []
    on_bad = bad.append if skip_bad else None
    train, val, test = (
        read_images(paths, size, limit=limit, on_bad=on_bad)
        for paths, limit in zip(files[:3], limits.values(), strict=True)
    )
    for error in bad:
        announce(f"left out: {error}")
    return ImageSplits(train, val, test, "folder", f"images of the folder {root}")
