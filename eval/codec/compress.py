"""Images to a file of tokens, and back, by a trained run."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from eval.codec.format import (
    ImageEntry,
    TokenFile,
    TokenFileError,
    check_model,
    frequency_table,
    from_bytes,
    to_bytes,
)
from eval.codec.names import named, picture_names
from eval.codec.tiles import (
    boxes,
    chunks,
    cut,
    groups,
    padded,
    paste,
    pixels_of,
    tile_sizes,
    to_picture,
)
from eval.run import Model
from models import ImageTokenizer
from training.checkpoint import write_atomic
from training.data.feed import to_float
from training.data.image_file import open_image
from training.errors import DatasetError, UserError


class Compressed(NamedTuple):
    """What a compression made.

    Attributes:
        file: The tokens.
        size: Bytes of the file.
        alphas: Number of images whose transparency is not kept.
        bad: Errors of the images that were left out.
    """

    file: TokenFile
    size: int
    alphas: int
    bad: list[DatasetError]


def compress(
    model: Model,
    paths: Sequence[Path],
    out: Path,
    *,
    levels: int | None = None,
    skip_bad: bool = False,
) -> Compressed:
    """Write the tokens of images to a file.

    Args:
        model: A trained model, and its counts.
        paths: Image files, and folders of them.
        out: The file; an older one is replaced once the new one is whole.
        levels: The first so many levels; all by default.
        skip_bad: Whether to leave out images that cannot be read.

    Raises:
        UserError: If there is no image, one cannot be read, ``out`` is one of them, or there are
            not so many levels.
    """
    found = named(paths)
    for _, path in found:
        if out.resolve() == path.resolve():
            raise UserError(f"{out} is one of the images: give another file with -o")
    alphas, names, bad = 0, list[str](), list[DatasetError]()

    def opened() -> Iterator[Image.Image]:
        nonlocal alphas
        for name, path in found:
            try:
                picture = open_image(path)
            except DatasetError as error:
                if not skip_bad:
                    raise
                bad.append(error)
                continue
            alphas += "A" in picture.getbands()
            names.append(name)
            yield picture

    data = encode(opened(), names, model, levels=levels)
    if not names:
        raise UserError(f"none of {len(found)} images can be read; the first error: {bad[0]}")
    content = to_bytes(data)
    write_atomic(out, lambda file: file.write(content))
    return Compressed(data, len(content), alphas, bad)


def decompress(model: Model, file: Path, folder: Path, *, levels: int | None = None) -> list[Path]:
    """Write the pictures of a file as PNG.

    Args:
        model: The model that made the file.
        file: What :func:`compress` wrote.
        folder: Where the pictures go; existing files are never replaced.
        levels: The first so many levels; all that the file has by default.

    Returns:
        The pictures, in the file's order.

    Raises:
        TokenFileError: If the file is damaged, foreign, or of another model.
        UserError: If a picture exists already, or there are not so many levels.
    """
    try:
        data = from_bytes(file.read_bytes(), model=model.hash)
        names = picture_names([image.name for image in data.images])
    except TokenFileError as error:
        raise TokenFileError(f"{file}: {error}") from error
    targets = [folder / name for name in names]
    there = [target for target in targets if target.exists()]
    if there:
        raise UserError(f"{there[0]} exists already; give another folder with -o, or move it away")
    for target, picture in zip(targets, decode(data, model, levels=levels), strict=True):
        write_atomic(target, functools.partial(picture.save, format="PNG"))
    return targets


@torch.no_grad()
def encode(
    pictures: Iterable[Image.Image],
    names: Sequence[str],
    model: Model,
    *,
    levels: int | None = None,
) -> TokenFile:
    """Tokens of pictures of any size, a few pictures at a time.

    Args:
        pictures: Of any mode; those without colour come back without.
        names: As many.
        model: The trained model.
        levels: The first so many levels; all by default.

    Raises:
        UserError: If there are not so many levels.
    """
    network = model.network
    count = check_levels(levels, len(network.levels))
    entries: list[ImageEntry] = []
    tokens: list[list[Tensor]] = [[torch.zeros(0, dtype=torch.int64)] for _ in range(count)]
    for chunk in chunks(pictures):
        tiles = [tile for picture in chunk for tile in cut(picture.convert("RGB"))]
        left = iter(_tile_tokens(tiles, model, count))
        for picture in chunk:
            own = [next(left) for _ in boxes(picture.size)]
            lengths = tuple(sum(len(tile[n]) for tile in own) for n in range(count))
            mode = "L" if picture.mode in ("1", "L", "LA") else "RGB"
            name = names[len(entries)]
            entries.append(ImageEntry(name, picture.width, picture.height, mode, lengths))
            for n, level in enumerate(tokens):
                level += [tile[n] for tile in own]
    return TokenFile(
        model=model.hash,
        codebook_sizes=tuple(level.codebook_size for level in network.levels[:count]),
        tables=tuple(frequency_table(counts.numpy()) for counts in model.counts[:count]),
        images=tuple(entries),
        tokens=tuple(torch.cat(level).numpy() for level in tokens),
    )


def _tile_tokens(tiles: Sequence[Image.Image], model: Model, count: int) -> list[list[Tensor]]:
    """For each tile its tokens on each level, flat."""
    network = model.network
    coded: list[list[Tensor]] = [[] for _ in tiles]
    for group in groups([padded(tile.size, network.stride) for tile in tiles]):
        batch = torch.stack([pixels_of(tiles[n], network.stride) for n in group])
        parts = network.split(network.tokens(to_float(batch.to(model.device))))[:count]
        for place, number in enumerate(group):
            coded[number] = [part[place].flatten().cpu() for part in parts]
    return coded


@torch.no_grad()
def decode(data: TokenFile, model: Model, *, levels: int | None = None) -> Iterator[Image.Image]:
    """Pictures of a file in its order, a few decoded at a time.

    Raises:
        TokenFileError: If another model made it.
        UserError: If it has not so many levels.
    """
    network = model.network
    check_model(data.model, model.hash)
    count = check_levels(levels, len(data.codebook_sizes))
    grids = [
        network.grids(height, width)
        for image in data.images
        for width, height in tile_sizes(image.size, network.stride)
    ]
    levels_of_tiles = []
    for number, tokens in enumerate(data.tokens[:count]):
        lengths = [math.prod(grid[number]) for grid in grids]
        if sum(lengths) != len(tokens):
            raise TokenFileError("it has not as many tokens as its images need of this model")
        parts = zip(torch.from_numpy(tokens).split(lengths), grids, strict=True)
        levels_of_tiles.append([part.view(grid[number]) for part, grid in parts])
    return _pictures(data, list(zip(*levels_of_tiles, strict=True)), network, model.device)


@torch.no_grad()
def _pictures(
    data: TokenFile,
    tokens: list[tuple[Tensor, ...]],
    network: ImageTokenizer,
    device: torch.device,
) -> Iterator[Image.Image]:
    """Pictures from the tokens (h_l, w_l) of each tile."""
    left = iter(tokens)
    for chunk in chunks(data.images):
        sizes = [size for image in chunk for size in tile_sizes(image.size, network.stride)]
        own = [next(left) for _ in sizes]
        tiles = [Image.new("RGB", (1, 1))] * len(sizes)
        for group in groups(sizes):
            width, height = sizes[group[0]]
            levels = zip(*(own[number] for number in group), strict=True)
            batch = [torch.stack(level).to(device) for level in levels]
            decoded = network.decode_tokens(batch, (height, width)).mul(255).round().byte().cpu()
            for number, picture in zip(group, decoded, strict=True):
                tiles[number] = to_picture(picture)
        ready = iter(tiles)
        for image in chunk:
            own_tiles = [next(ready) for _ in boxes(image.size)]
            yield paste(image.size, own_tiles).convert(image.mode)


def check_levels(levels: int | None, there: int) -> int:
    """How many levels to take.

    Raises:
        UserError: If there are not so many.
    """
    if levels is not None and not 1 <= levels <= there:
        raise UserError(f"--levels must lie between 1 and {there}, got {levels}")
    return levels or there
