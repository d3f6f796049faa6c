"""Names of images in a file of tokens, and of the pictures that come out of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from eval.codec.format import TokenFileError
from training.data.image_folder import find_images
from training.errors import UserError


def named(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Image files under the names they get: relative to their folder, or their own.

    Raises:
        UserError: If there is none, or a path does not exist.
    """
    found: list[tuple[str, Path]] = []
    for path in paths:
        if path.is_dir():
            found += [(file.relative_to(path).as_posix(), file) for file in find_images(path).paths]
        elif path.is_file():
            found.append((path.name, path))
        else:
            raise UserError(f"no {path}: give image files, or folders of them")
    # A picture that was given twice, as itself and in its folder, is coded once.
    once: dict[Path, tuple[str, Path]] = {}
    for name, path in found:
        once.setdefault(path.resolve(), (name, path))
    return list(once.values())


def picture_names(names: Sequence[str]) -> list[PurePosixPath]:
    """Names of the decoded pictures: PNG, inside the folder, no two alike on any file system.

    Raises:
        TokenFileError: If a name would lead out of the folder.

    Example:
        >>> [str(name) for name in picture_names(["a.jpg", "b/a.png", "A.png", "12:30.png"])]
        ['a.png', 'b/a.png', 'A-2.png', '12_30.png']
    """
    paths = []
    for name in names:
        # No separators to other systems' eyes, nor what names may not hold there.
        path = PurePosixPath(re.sub(r'[\\:*?"<>|\x00-\x1f]', "_", name))
        if path.is_absolute() or ".." in path.parts or not path.name:
            raise TokenFileError(f"the name {name!r} in it may lead out of the folder")
        paths.append(path.with_suffix(".png"))
    taken = {str(parent).casefold() for path in paths for parent in path.parents}
    numbers: dict[str, int] = {}
    pictures = []
    for path in paths:
        picture, plain = path, str(path).casefold()
        while str(picture).casefold() in taken:
            numbers[plain] = numbers.get(plain, 1) + 1
            picture = path.with_stem(f"{path.stem}-{numbers[plain]}")
        taken.add(str(picture).casefold())
        pictures.append(picture)
    return pictures
