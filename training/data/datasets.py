"""Image data for training: CIFAR-10, crops of two photographs, or a folder of images.

Shapes: N images of a split, B of a batch, C channels, H x W pixels. Splits are uint8
(N, C, H, W) on the CPU. The test split chooses nothing: validation images come from the
training part of every data set.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..config import DATASETS
from ..errors import DatasetError
from .image_folder import read_images, split_folder
from .patches import MAX_SIZE, photo_patches

_CIFAR_SIZE = 32
_CIFAR_TRAIN = 45_000  # of the official 50,000; the rest validates
_CIFAR_FOLDER = "cifar-10-batches-py"
_CIFAR_ARCHIVE = "cifar-10-python.tar.gz"
_NETWORK_TIMEOUT_S = 20.0


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
    announce: Callable[[str], object] = print,
) -> ImageSplits:
    """Load a data set by name; the same call always gives the same images in the same order.

    Args:
        dataset: ``cifar10``; ``patches``, crops of two photographs that need no download;
            ``folder``, the images below ``data_dir``; or ``auto``, CIFAR-10 where it is on disk or
            can be downloaded, else ``patches``.
        data_dir: Where CIFAR-10 is looked for and downloaded to (:func:`default_data_dir` when
            None), or the folder of images. A
            ``folder`` with a ``train`` and a ``val`` or ``test`` sub-folder is split that way, and
            whichever of the two is missing is a tenth of ``train``; any other is split 80/10/10 by
            a hash of the relative paths.
        limit_train: Keep at most the first so many training images.
        limit_test: Keep at most the first so many of the validation and of the test images.
        image_size: Height and width. CIFAR-10 has 32 only. Images of a folder are scaled
            (bicubic) until the short side fits, then cropped at the centre.
        download: Whether CIFAR-10 may be downloaded.
        announce: Called with one line for a download or for falling back to ``patches``.

    Raises:
        DatasetError: The data is missing, damaged or too small, or the call is wrong.
    """
    if dataset not in DATASETS:
        raise DatasetError(f"unknown dataset {dataset!r}: choose one of {', '.join(DATASETS)}")
    numbers = {"limit_train": limit_train, "limit_test": limit_test, "image_size": image_size}
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise DatasetError(f"{name} is {value}: give at least 1, or leave it out")
    if dataset == "folder" and data_dir is None:
        raise DatasetError("--dataset folder needs --data-dir, the folder of images")
    root = default_data_dir() if data_dir is None else Path(data_dir).expanduser()
    if dataset == "folder":
        return _load_folder(root, limit_train, limit_test, image_size)
    if dataset == "patches":
        return _load_patches(limit_train, limit_test, image_size)
    if image_size != _CIFAR_SIZE:
        raise DatasetError(
            f"image_size is {image_size}, but CIFAR-10 images are {_CIFAR_SIZE}x{_CIFAR_SIZE}: "
            "leave it out, or use --dataset patches or --dataset folder"
        )
    problem = _fetch_cifar10(root, download, announce)
    if problem is None:
        return _load_cifar10(root, limit_train, limit_test)
    if dataset == "cifar10":
        raise DatasetError(
            f"no {_CIFAR_FOLDER} in {root} and {problem}: put an unpacked {_CIFAR_FOLDER} under "
            "--data-dir or $SOFTVQ_DATA, or allow the network so that it is downloaded, or use "
            "--dataset patches or --dataset folder"
        )
    announce(
        f"no CIFAR-10 in {root} and {problem}: using crops of two photographs instead "
        "(--dataset patches)"
    )
    return _load_patches(limit_train, limit_test, image_size)


def augment(images: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Shift every image by up to ``pad`` pixels, borders reflected, and mirror half of them.

    Args:
        images: (B, C, H, W), any dtype, on any device.
        generator: On the CPU, so that all devices get the same result. Drawn from it: B flips in
            {0, 1}, then (2, B) row and column offsets in [0, 2 * pad] of the crop in the padded
            image. A crop is taken first, then mirrored.
        pad: Less than H and W.

    Returns:
        (B, C, H, W), same dtype and device.
    """
    batch, channels, height, width = images.shape
    if not 0 <= pad < min(height, width):
        raise ValueError(f"pad is {pad}: reflection needs 0 <= pad < {min(height, width)}")
    flips = torch.randint(0, 2, (batch, 1), generator=generator)
    offsets = torch.randint(0, 2 * pad + 1, (2, batch, 1), generator=generator) - pad
    rows = _reflect(torch.arange(height) + offsets[0], height)  # (B, H)
    cols = torch.arange(width)
    cols = torch.where(flips.bool(), cols.flip(0), cols)  # (B, W)
    cols = _reflect(cols + offsets[1], width)
    pixels = (rows[:, :, None] * width + cols[:, None, :]).to(images.device)  # (B, H, W)
    pixels = pixels.flatten(1)[:, None].expand(-1, channels, -1)  # (B, C, H * W)
    return images.flatten(2).gather(2, pixels).view(images.shape)  # (B, C, H, W)


def _reflect(index: Tensor, size: int) -> Tensor:
    """Fold indices in (-size, 2 * size - 1) into [0, size), mirrored at the border pixels."""
    index = index.abs()
    return torch.where(index < size, index, 2 * (size - 1) - index)


def batches(n: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Shuffled indices (B,) of one epoch; the incomplete batch is kept only where it is alone.

    Example:
        >>> [len(batch) for batch in batches(7, 3, torch.Generator())]
        [3, 3]
        >>> [len(batch) for batch in batches(2, 3, torch.Generator())]
        [2]
    """
    if n < 1 or batch_size < 1:
        raise ValueError(f"n is {n} and batch_size is {batch_size}: both must be at least 1")
    kept = n if n < batch_size else n - n % batch_size
    return iter(torch.split(torch.randperm(n, generator=generator)[:kept], batch_size))


def to_float(images: Tensor) -> Tensor:
    """Map uint8 to float32 in [0, 1], any shape.

    Example:
        >>> to_float(torch.tensor([0, 51, 255], dtype=torch.uint8))
        tensor([0.0000, 0.2000, 1.0000])
    """
    if images.dtype != torch.uint8:
        raise TypeError(f"images are {images.dtype}: expected torch.uint8, not yet scaled")
    return images.to(torch.float32) / 255


def _load_patches(limit_train: int | None, limit_test: int | None, size: int) -> ImageSplits:
    if size > MAX_SIZE:
        raise DatasetError(
            f"image_size is {size}: --dataset patches has at most {MAX_SIZE}; give less, or use "
            "--dataset folder"
        )
    return ImageSplits(
        train=photo_patches("train", size, limit_train),
        val=photo_patches("val", size, limit_test),
        test=photo_patches("test", size, limit_test),
        name="patches",
        source="crops of the photographs china and flower of scikit-learn",
    )


def _fetch_cifar10(root: Path, download: bool, announce: Callable[[str], object]) -> str | None:
    """Make sure that an unpacked CIFAR-10 is in ``root``; says why not where that fails."""
    target, archive = root / _CIFAR_FOLDER, root / _CIFAR_ARCHIVE
    if target.exists():
        return None  # complete or not, it is the user's: never downloaded over
    if root.exists() and not root.is_dir():
        raise DatasetError(f"data folder {root} is not a folder: give a folder as --data-dir")
    from torchvision.datasets import CIFAR10
    from torchvision.datasets.utils import check_integrity, extract_archive

    if not archive.exists() and not download:
        return "downloading is switched off"
    if archive.exists() and not check_integrity(archive, CIFAR10.tgz_md5):
        raise DatasetError(
            f"{archive} is damaged or incomplete (its md5 is not the official one): replace it, "
            "or move it away to have it downloaded again"
        )
    missing = not root.exists()
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Unpacked beside its place and then renamed: an interrupted run leaves no partial copy.
        with tempfile.TemporaryDirectory(prefix=".cifar10-", dir=root) as staging:
            with _quiet_network(lambda: announce(f"downloading CIFAR-10 into {root}")):
                if archive.exists():
                    extract_archive(str(archive), staging)
                else:
                    CIFAR10(staging, download=True)
            os.replace(Path(staging) / _CIFAR_FOLDER, target)
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        if target.exists():
            return None  # a run beside this one was faster, and its copy is as good
        if missing and root.is_dir() and not any(root.iterdir()):
            root.rmdir()  # ours, and of no use
        reason = " ".join(str(error).split()) or type(error).__name__
        return f"{'unpacking' if archive.exists() else 'the download'} failed ({reason})"
    return None


@contextlib.contextmanager
def _quiet_network(on_progress: Callable[[], object]) -> Iterator[None]:
    """Give up soon without a network; a progress bar becomes one call when it starts."""
    stdout, timeout = sys.stdout, socket.getdefaulttimeout()

    class Progress(io.StringIO):
        started = False

        def write(self, text: str) -> int:
            if not self.started:
                self.started = True
                with contextlib.redirect_stdout(stdout):
                    on_progress()
            return len(text)

    socket.setdefaulttimeout(_NETWORK_TIMEOUT_S)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(Progress()):
            yield
    finally:
        socket.setdefaulttimeout(timeout)


def _load_cifar10(root: Path, limit_train: int | None, limit_test: int | None) -> ImageSplits:
    from torchvision.datasets import CIFAR10

    try:
        official, test = CIFAR10(str(root), train=True), CIFAR10(str(root), train=False)
    except (OSError, RuntimeError) as error:
        raise DatasetError(
            f"{root / _CIFAR_FOLDER} is not a complete copy of CIFAR-10 (a file is missing, "
            "unreadable or has another md5 than the official one): replace it, or move it away to "
            "have it downloaded again"
        ) from error

    def cut(data: CIFAR10, part: slice, limit: int | None) -> tuple[Tensor, Tensor]:
        images = torch.tensor(data.data[part][:limit]).permute(0, 3, 1, 2)  # (N, C, H, W)
        return images.contiguous(), torch.tensor(data.targets[part][:limit])

    images, labels = zip(
        cut(official, slice(_CIFAR_TRAIN), limit_train),
        cut(official, slice(_CIFAR_TRAIN, None), limit_test),
        cut(test, slice(None), limit_test),
        strict=True,
    )
    return ImageSplits(*images, "cifar10", f"CIFAR-10 in {root}", *labels)


def _load_folder(
    root: Path, limit_train: int | None, limit_test: int | None, size: int
) -> ImageSplits:
    paths = split_folder(root)
    return ImageSplits(
        train=read_images(paths["train"][:limit_train], size),
        val=read_images(paths["val"][:limit_test], size),
        test=read_images(paths["test"][:limit_test], size),
        name="folder",
        source=f"images of the folder {root}",
    )
