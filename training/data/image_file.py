"""One image of a file: bounded work before anything is decoded, upright, 8 bits a channel.

S is the height and width asked for.
"""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import DatasetError

if TYPE_CHECKING:
    from PIL.Image import Image

# What a photograph may come in. Left out are formats that run programs, as EPS does, or fetch.
FORMATS = (
    *("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TGA", "TIFF", "WEBP"),
)  # fmt: skip
MAX_PIXELS = 2**26  # 268 MB once decoded
# The longest side that is scaled, in short sides: a line of a pixel would fill the memory.
LONGEST = 4
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
_ORIENTATION = 0x0112


@functools.cache
def formats() -> tuple[str, ...]:
    """Those of ``FORMATS`` that this Pillow was built with."""
    from PIL import Image

    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@functools.cache
def suffixes() -> frozenset[str]:
    """The suffixes of files in these formats, in lower case.

    Example:
        >>> {".jpg", ".jfif", ".pgm", ".png"} <= suffixes()
        True
    """
    from PIL import Image

    known = Image.registered_extensions()
    return frozenset(suffix for suffix, name in known.items() if name in formats())


def open_image(path: Path) -> Image:
    """An upright image of 8 bits a channel, whole in memory; the first frame of an animation.

    Args:
        path: A regular file of one of :func:`formats`, of at most ``MAX_PIXELS`` pixels.

    Raises:
        DatasetError: The file cannot be read; the message names it.
    """
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is no regular file")
        with warnings.catch_warnings():
            # Pillow warns of damaged tags that nobody needs, and of a limit that lies above ours.
            warnings.simplefilter("ignore")
            return _upright(path)
    except Exception as error:  # Pillow's decoders raise errors of many kinds on damaged files
        raise DatasetError(
            f"cannot read image {path} ({error}): repair it, convert it or move it away, or leave "
            "such files out with --skip-bad"
        ) from error


def _upright(path: Path) -> Image:
    from PIL import Image

    with Image.open(path, formats=formats()) as opened:
        if opened.width * opened.height > MAX_PIXELS:
            raise ValueError(
                f"it has {opened.width} x {opened.height} pixels, and {MAX_PIXELS:,} are the most "
                "that are read"
            )
        turn = _TURNS.get(_orientation(opened))
        image = _of_8_bits(opened)
        return image if turn is None else image.transpose(Image.Transpose[turn])


def _orientation(image: Image) -> int:
    """The orientation alone: other tags may be damaged, and nobody needs them."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # Pillow raises what the damage suggests
        return 1


def _of_8_bits(image: Image) -> Image:
    from PIL.Image import fromarray

    # Pillow's own conversion of 16 bits would clip at 255; it reads those of PGM as 32.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        return fromarray((np.asarray(image) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits, expected 8 or 16")
    if "transparency" in image.info:  # Pillow warns of a palette that goes to RGB
        return image.convert("RGBA")
    image.load()
    return image.copy()  # the file is closed afterwards


def square(image: Image, size: int) -> np.ndarray:
    """The image as RGB, scaled until the short side is S and cropped at the centre.

    Transparency is ignored.

    Returns:
        uint8 (S, S, 3).
    """
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.functional import center_crop, resize

    longest = LONGEST * min(image.size)
    if max(image.size) > longest:
        image = center_crop(image, [min(image.height, longest), min(image.width, longest)])
    scaled = resize(image.convert("RGB"), [size], InterpolationMode.BICUBIC)
    return np.asarray(center_crop(scaled, [size]))
