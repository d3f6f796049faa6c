"""Folders of image files: one walk, and a split of what it finds.

N images, S the height and width asked for.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import DatasetError
from .image_file import open_image, square, suffixes

# What sub-folders of each split may be called, without regard to case.
SPLIT_NAMES = {"train": ("train",), "val": ("val", "valid", "validation", "dev"), "test": ("test",)}
_LIKE_A_SPLIT = re.compile(
    r"(train|val|valid|validation|dev|test|eval|evaluation|holdout)"
    r"(ing)?([-_ ]?(\d+|sets?|data|split|images?|imgs?))*",
    re.IGNORECASE,
)
# Folders that operating systems and disk stations make.
_HOUSEKEEPING = {"__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found"}
_CIFAR10 = "data_batch_1"


class ImageFiles(NamedTuple):
    """What a walk found.

    Attributes:
        paths: The images, sorted by relative path.
        skipped: What was left out, in words, and how often.
    """

    paths: list[Path]
    skipped: Counter[str]


class FolderSplits(NamedTuple):
    """The images of a folder: three disjoint lists, and what was left out."""

    train: list[Path]
    val: list[Path]
    test: list[Path]
    skipped: Counter[str]


def split_folder(root: Path) -> FolderSplits:
    """Sort the images below ``root`` into training, validation and test.

    Sub-folders ``train`` and ``val`` (or ``valid``, ``validation``, ``dev``) or ``test``, in any
    case, are used where they exist; whichever of validation and test is missing is a tenth of
    ``train``. Other folders are split 80/10/10. A split depends on relative paths only, and in all
    but tiny folders adding an image moves no other. Within a split the order is that of a hash, so
    that its first N are a mixture of all sub-folders.

    Raises:
        DatasetError: There are too few images, no folder, or folders that look like splits and
            cannot be used as such.
    """
    if not root.is_dir():
        raise DatasetError(f"no folder {root}: give an existing folder of images as --data-dir")
    given, skipped, seen = _split_folders(root), Counter[str](), set[tuple[int, int]]()
    if given.keys() <= {"train"}:
        train, val, test = _hash_split(root, (0.8, 0.9), skipped, seen)
        return FolderSplits(train, val, test, skipped)
    train, *rest = _hash_split(given["train"], (0.9,) * (3 - len(given)), skipped, seen)
    others = {name: folder for name, folder in given.items() if name != "train"}
    parts = {name: _hash_split(folder, (), skipped, seen)[0] for name, folder in others.items()}
    val, test = (parts.get(split) or rest[0] for split in ("val", "test"))
    return FolderSplits(train, val, test, skipped)


def _split_folders(root: Path) -> dict[str, Path]:
    """The sub-folders that are splits by their names."""
    given: dict[str, Path] = {}
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    for split, names in SPLIT_NAMES.items():
        own = [path for path in folders if path.name.lower() in names]
        if len(own) > 1:
            raise DatasetError(
                f"{root} has {own[0].name} and {own[1].name}, both for {split}: leave one of them"
            )
        if own:
            given[split] = own[0]
    unused = [
        p.name for p in folders if p not in given.values() and _LIKE_A_SPLIT.fullmatch(p.name)
    ]
    if given and "train" not in given:
        unused = [next(iter(given.values())).name]
    if unused:
        raise DatasetError(
            f"{root} has a folder {unused[0]}, which looks like a split and would be mixed with "
            "the other images: call the folders train, val and test, or rename it"
        )
    return given


def read_images(
    paths: Sequence[Path],
    size: int,
    *,
    limit: int | None = None,
    on_bad: Callable[[DatasetError], object] | None = None,
) -> Tensor:
    """Read images as RGB, scaled until the short side is S and cropped at the centre.

    Only the first frame of an animation is read. Transparency is ignored.

    Args:
        paths: The files.
        size: S, in pixels.
        limit: The largest number of images, the first ones.
        on_bad: Called with the error of each file that cannot be read, which is then left out.

    Returns:
        uint8 (N, 3, S, S).

    Raises:
        DatasetError: A file cannot be read, and no ``on_bad`` is given; or none can.
    """
    images = torch.empty(min(len(paths), limit or len(paths)), 3, size, size, dtype=torch.uint8)
    count = 0
    for path in paths:
        if count == len(images):
            break
        try:
            pixels = square(open_image(path), size)
        except DatasetError as error:
            if on_bad is None:
                raise
            on_bad(error)
            continue
        images[count] = torch.tensor(pixels).permute(2, 0, 1)
        count += 1
    if paths and not count:
        raise DatasetError(f"none of {len(paths)} images can be read; one is {paths[0]}")
    return images[:count]


def find_images(folder: Path, seen: set[tuple[int, int]] | None = None) -> ImageFiles:
    """All images below a folder.

    Hidden folders and those of operating systems are left out. Links are followed. A file or folder
    that is reached twice counts once.

    Args:
        folder: Where to look.
        seen: What other walks have found already, which counts no more; this walk adds to it.

    Raises:
        DatasetError: If there is none, or a folder cannot be listed.
    """
    found, skipped, seen = list[Path](), Counter[str](), set() if seen is None else seen

    def refuse(error: OSError) -> None:
        raise DatasetError(f"cannot list {error.filename} ({error.strerror}): make it readable")

    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        if _known(os.stat(parent), seen):
            skipped["folders linked a second time"] += 1
            folders.clear()
            continue
        shown = [name for name in folders if not _housekeeping(name)]
        skipped["hidden folders"] += len(folders) - len(shown)
        # Links last: what lies here itself keeps its name.
        folders[:] = sorted(shown, key=lambda name: (os.path.islink(f"{parent}/{name}"), name))
        for name in sorted(names):
            path = Path(parent, name)
            reason = _why_not(path, seen)
            if reason:
                skipped[reason] += 1
            else:
                found.append(path)
    skipped = +skipped
    if not found:
        raise DatasetError(f"no images below {folder}{_left_out(folder, skipped)}")
    return ImageFiles(sorted(found, key=Path.as_posix), skipped)


def _why_not(path: Path, seen: set[tuple[int, int]]) -> str | None:
    """Why a file is no image of its own; None if it is one."""
    if path.name.startswith("."):  # other programs' droppings, such as ._photo.jpg
        return "hidden files"
    if path.suffix.lower() not in suffixes():
        return f"files *{path.suffix.lower()}" if path.suffix else "files without a suffix"
    try:
        found = path.stat()
    except OSError:
        return "links that lead nowhere"
    if not stat.S_ISREG(found.st_mode):
        return "pipes and devices"
    return "files linked a second time" if _known(found, seen) else None


def _known(found: os.stat_result, seen: set[tuple[int, int]]) -> bool:
    place = (found.st_dev, found.st_ino)
    if place in seen:
        return True
    if found.st_ino:  # some file systems have no such numbers
        seen.add(place)
    return False


def _housekeeping(name: str) -> bool:
    return name.startswith(".") or name.lower() in _HOUSEKEEPING


def in_words(skipped: Counter[str]) -> str:
    """What was left out, as a list in words.

    Example:
        >>> in_words(Counter({"hidden files": 2, "files *.txt": 1}))
        '2 hidden files, 1 files *.txt'
    """
    return ", ".join(f"{count} {what}" for what, count in skipped.most_common())


def _left_out(folder: Path, skipped: Counter[str]) -> str:
    if (folder / _CIFAR10).exists():
        return f": it is CIFAR-10 itself; give --dataset cifar10 --data-dir {folder.parent}"
    left = f" (left out: {in_words(skipped)})" if skipped else ""
    return f"{left}: expected files ending in {' '.join(sorted(suffixes()))}"


def _hash_split(
    folder: Path, cuts: tuple[float, ...], skipped: Counter[str], seen: set[tuple[int, int]]
) -> list[list[Path]]:
    """Cut the images below a folder at hash values in (0, 1), at least one image in each part."""
    paths, own = find_images(folder, seen)
    skipped += own
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
