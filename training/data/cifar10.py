"""CIFAR-10: found on disk or downloaded by torchvision, and cut into three splits."""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from ..errors import DatasetError

SIZE = 32
TRAIN_IMAGES = 45_000  # of the official 50,000; the rest validates
FOLDER = "cifar-10-batches-py"
_ARCHIVE = "cifar-10-python.tar.gz"
_NETWORK_TIMEOUT_S = 20.0
WAYS_OUT = (
    f"no {FOLDER} in {{root}} and {{problem}}: put an unpacked {FOLDER} under --data-dir or "
    "$SOFTVQ_DATA, or allow the network so that it is downloaded, or use --dataset patches or "
    "--dataset folder"
)


def fetch_cifar10(root: Path, download: bool, announce: Callable[[str], object]) -> str | None:
    """Make sure that an unpacked CIFAR-10 is in a folder.

    Args:
        root: The data folder; it is made where it does not exist.
        download: Whether the network may be used.
        announce: Called with one line when a download starts.

    Returns:
        None where CIFAR-10 is there, otherwise the reason why it is not.

    Raises:
        DatasetError: If the folder is not one, or it holds a damaged archive.
    """
    target, archive = root / FOLDER, root / _ARCHIVE
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
            os.replace(Path(staging) / FOLDER, target)
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


def read_cifar10(
    root: Path, limits: dict[str, int | None]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Read the unpacked CIFAR-10 in a folder.

    Args:
        root: The data folder.
        limits: The largest number of images of each split, by its name.

    Returns:
        Images of train, val and test, uint8 (N, 3, 32, 32), and their labels, int64 (N,).

    Raises:
        DatasetError: If the copy is not complete.
    """
    from torchvision.datasets import CIFAR10

    try:
        official, test = CIFAR10(str(root), train=True), CIFAR10(str(root), train=False)
    except (OSError, RuntimeError) as error:
        raise DatasetError(
            f"{root / FOLDER} is not a complete copy of CIFAR-10 (a file is missing, "
            "unreadable or has another md5 than the official one): replace it, or move it away to "
            "have it downloaded again"
        ) from error
    parts = {
        "train": (official, slice(TRAIN_IMAGES)),
        "val": (official, slice(TRAIN_IMAGES, None)),
        "test": (test, slice(None)),
    }
    images, labels = [], []
    for split, (data, part) in parts.items():
        pixels = torch.tensor(data.data[part][: limits[split]])  # (N, H, W, C)
        images.append(pixels.permute(0, 3, 1, 2).contiguous())
        labels.append(torch.tensor(data.targets[part][: limits[split]]))
    return tuple(images), tuple(labels)
