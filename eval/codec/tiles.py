"""Pictures of any size as tiles that a model takes, and back.

Tiles are coded each for itself, a few at a time, so that the network needs little memory for a
picture of any size; where it has more than one, a seam may show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from eval.codec.format import ImageEntry

# Pixels to have in the network at once, and the longest side of a tile.
BATCH_PIXELS = 2**18
TILE = 512

Size = tuple[int, int]  # width, height


# A picture, or what a file says of one.
Item = TypeVar("Item", Image.Image, ImageEntry)


def boxes(size: Size) -> list[tuple[int, int, int, int]]:
    """Left, top, right and bottom of the tiles of a picture, row by row."""
    width, height = size
    return [
        (left, top, min(left + TILE, width), min(top + TILE, height))
        for top in range(0, height, TILE)
        for left in range(0, width, TILE)
    ]


def tile_sizes(size: Size, multiple: int) -> list[Size]:
    """Padded sizes of the tiles of a picture."""
    return [
        padded((right - left, bottom - top), multiple) for left, top, right, bottom in boxes(size)
    ]


def chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Runs of pictures of about as many pixels as the network takes at once, at least one each."""
    chunk: list[Item] = []
    total = 0
    for item in items:
        chunk.append(item)
        total += item.size[0] * item.size[1]
        if total >= BATCH_PIXELS:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


def cut(picture: Image.Image) -> list[Image.Image]:
    """Its tiles."""
    return [picture.crop(box) for box in boxes(picture.size)]


def paste(size: Size, tiles: list[Image.Image]) -> Image.Image:
    """The picture of its tiles, whose padding falls off."""
    whole = Image.new("RGB", size)
    for (left, top, right, bottom), tile in zip(boxes(size), tiles, strict=True):
        whole.paste(tile.crop((0, 0, right - left, bottom - top)), (left, top))
    return whole


def padded(size: Size, multiple: int) -> Size:
    """Width and height up to the next multiple."""
    return -(-size[0] // multiple) * multiple, -(-size[1] // multiple) * multiple


def to_pixels(picture: Image.Image) -> Tensor:
    """An RGB picture as uint8 (C, H, W)."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def to_picture(pixels: Tensor) -> Image.Image:
    """uint8 (C, H, W) as an RGB picture."""
    return Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy())


def pixels_of(tile: Image.Image, multiple: int) -> Tensor:
    """uint8 (C, H, W), its last row and column repeated up to the next multiple."""
    pixels = to_pixels(tile)
    width, height = padded(tile.size, multiple)
    missing = (0, width - tile.width, 0, height - tile.height)
    return F.pad(pixels[None].float(), missing, mode="replicate")[0].byte()


def groups(sizes: Sequence[Size]) -> Iterator[list[int]]:
    """Numbers of tiles of one size, as many as the network takes at once."""
    of_size: dict[Size, list[int]] = {}
    for number, size in enumerate(sizes):
        of_size.setdefault(size, []).append(number)
    for (width, height), numbers in of_size.items():
        count = max(1, BATCH_PIXELS // (width * height))
        for start in range(0, len(numbers), count):
            yield numbers[start : start + count]
