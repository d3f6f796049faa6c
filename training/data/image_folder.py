"""Folders of image files.

N images, S the height and width asked for.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..errors import DatasetError

if TYPE_CHECKING:
    from PIL.Image import Image

_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
# The splits that folders hold by their names; val is taken where there is validation, too.
_FOLDERS = {"train": "train", "validation": "val", "val": "val", "test": "test"}


def split_folder(root: Path) -> dict[str, list[Path]]:
    """Sort the images below ``root`` into ``train``, ``val`` and ``test``.

    Sub-folders ``train`` and ``val`` (or ``validation``) or ``test`` are used where they exist;
    whichever of ``val`` and ``test`` is missing is a tenth of ``train``. Other folders are split
    80/10/10. A split depends on relative paths only, and in all but tiny folders adding an
    image moves no other. Within a split the order is that of a hash, so that its first N are a
    mixture of all sub-folders.

    Raises:
        DatasetError: There are too few images, or no folder.
    """
    if not root.is_dir():
        raise DatasetError(f"no folder {root}: give an existing folder of images as --data-dir")
    given = {split: root / name for name, split in _FOLDERS.items() if (root / name).is_dir()}
    if "train" not in given or len(given) == 1:
        return dict(zip(("train", "val", "test"), _hash_split(root, (0.8, 0.9)), strict=True))
    splits = {split: _hash_split(folder, ())[0] for split, folder in given.items()}
    missing = {"val", "test"} - splits.keys()
    if missing:
        splits["train"], splits[missing.pop()] = _hash_split(given["train"], (0.9,))
    return splits


def read_images(paths: Sequence[Path], size: int) -> Tensor:
    """Read images as RGB, scaled until the short side is S and cropped at the centre.

    Only the first frame of an animation is read. Transparency is ignored.

    Returns:
        uint8 (N, 3, S, S).

    Raises:
        DatasetError: A file cannot be read; the message names it.
    """
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.functional import center_crop, resize

    images = np.empty((len(paths), size, size, 3), dtype=np.uint8)
    for image, path in zip(images, paths, strict=True):
        scaled = resize(open_image(path).convert("RGB"), [size], InterpolationMode.BICUBIC)
        image[:] = center_crop(scaled, [size])
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()  # (N, 3, S, S)


def open_image(path: Path) -> Image:
    """An upright image of 8 bits a channel, whole in memory; the first frame of an animation.

    Raises:
        DatasetError: The file cannot be read; the message names it.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened)
            if image.mode.startswith("I;16"):  # Pillow's own conversion would clip at 255
                image = Image.fromarray((np.asarray(image) // 257).astype(np.uint8))
            elif image.mode in ("I", "F"):
                raise ValueError("its pixels have 32 bits, expected 8 or 16")
            elif "transparency" in image.info:  # Pillow warns of a palette that goes to RGB
                image = image.convert("RGBA")
            image.load()
            return image
    except Exception as error:  # Pillow's decoders raise errors of many kinds on damaged files
        raise DatasetError(
            f"cannot read image {path} ({error}): repair it, convert it or move it away"
        ) from error


def find_images(folder: Path) -> list[Path]:
    """All images below a folder, sorted by relative path.

    Raises:
        DatasetError: If there is none, or a folder cannot be listed.
    """

    def refuse(error: OSError) -> None:
        raise DatasetError(f"cannot list {error.filename} ({error.strerror}): make it readable")

    found = [
        Path(parent, name)
        for parent, _, names in os.walk(folder, onerror=refuse)
        for name in names
        # Names with a leading dot are other programs' droppings, such as ._photo.jpg.
        if Path(name).suffix.lower() in _SUFFIXES and not name.startswith(".")
    ]
    if not found:
        raise DatasetError(
            f"no images below {folder}: expected files ending in {' '.join(sorted(_SUFFIXES))}"
        )
    return sorted(found, key=Path.as_posix)


def _hash_split(folder: Path, cuts: tuple[float, ...]) -> list[list[Path]]:
    """Cut the images below a folder at hash values in (0, 1), at least one image in each part."""
    paths = find_images(folder)
    if len(paths) <= len(cuts):
        raise DatasetError(
            f"{len(paths)} images below {folder}: at least {len(cuts) + 1} are needed, one for "
            "each split"
        )

    def position(path: Path) -> float:
        name = os.fsencode(path.relative_to(folder).as_posix())
        return int.from_bytes(hashlib.sha256(name).digest()[:4], "big") / 2**32

    ordered = sorted(paths, key=position)
    parts, start = [], 0
    for k, cut in enumerate(cuts):
        stop = sum(position(path) < cut for path in paths)
        stop = max(start + 1, min(stop, len(paths) - len(cuts) + k))
        parts.append(ordered[start:stop])
        start = stop
    return [*parts, ordered[start:]]
