"""Images to a file of tokens, and back, by a trained run."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from models import ImageTokenizer
from training.checkpoint import write_atomic
from training.datasets import to_float
from training.errors import UserError
from training.image_folder import find_images, open_image

from .run import Model
from .tiles import Size, boxes, cut, groups, padded, paste, pixels_of
from .token_file import (
    ImageEntry,
    TokenFile,
    TokenFileError,
    frequency_table,
    from_bytes,
    to_bytes,
)


@dataclass(frozen=True)
class Compressed:
    """What a compression made.

    Attributes:
        images: Number of images.
        pixels: Of all images together.
        size: Bytes of the file.
        bound: Bytes that the tokens alone cost under the counts used.
        alphas: Images whose transparency was left out.
    """

    images: int
    pixels: int
    size: int
    bound: float
    alphas: int


def compress(
    model: Model, paths: Sequence[Path], out: Path, *, levels: int | None = None
) -> Compressed:
    """Write the tokens of images to a file.

    Args:
        model: A trained model, and its counts.
        paths: Image files, and folders of them.
        out: The file; an older one is replaced once the new one is whole.
        levels: The first so many levels; all by default.

    Raises:
        UserError: If there is no image, one cannot be read, or there are not so many levels.
    """
    found = named(paths)
    pictures = [open_image(path) for _, path in found]
    data = encode(pictures, [name for name, _ in found], model, levels=levels)
    content = to_bytes(data)
    write_atomic(out, lambda file: file.write(content))
    return Compressed(
        images=len(found),
        pixels=sum(picture.width * picture.height for picture in pictures),
        size=len(content),
        bound=data.bound() / 8,
        alphas=sum("A" in picture.getbands() for picture in pictures),
    )


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
        data = from_bytes(file.read_bytes())
        pictures = decode(data, model, levels=levels)
    except TokenFileError as error:
        raise TokenFileError(f"{file}: {error}") from error
    targets = [folder / name for name in picture_names([image.name for image in data.images])]
    there = [target for target in targets if target.exists()]
    if there:
        raise UserError(f"{there[0]} exists already; give another folder with -o, or move it away")
    for target, picture in zip(targets, pictures, strict=True):
        write_atomic(target, functools.partial(picture.save, format="PNG"))
    return targets


@torch.no_grad()
def encode(
    pictures: Sequence[Image.Image],
    names: Sequence[str],
    model: Model,
    *,
    levels: int | None = None,
) -> TokenFile:
    """Tokens of pictures of any size; of a mode without colour, pictures without colour come back.

    Raises:
        UserError: If there are not so many levels.
    """
    network = model.network
    count = check_levels(levels, len(network.levels))
    tiles = [tile for picture in pictures for tile in cut(picture.convert("RGB"))]
    coded: list[list[Tensor]] = [[]] * len(tiles)
    for group in groups([padded(tile.size, network.multiple) for tile in tiles]):
        batch = torch.stack([pixels_of(tiles[n], network.multiple) for n in group])
        parts = network.split(network.tokens(to_float(batch.to(model.device))))[:count]
        for place, number in enumerate(group):
            coded[number] = [part[place].flatten().cpu() for part in parts]
    left = iter(coded)
    entries = []
    for name, picture in zip(names, pictures, strict=True):
        own = [next(left) for _ in boxes(picture.size)]
        lengths = tuple(sum(len(tile[n]) for tile in own) for n in range(count))
        mode = "L" if picture.mode in ("1", "L", "LA", "I;16") else "RGB"
        entries.append(ImageEntry(name, picture.width, picture.height, mode, lengths))
    none = [torch.zeros(0, dtype=torch.int64)]
    return TokenFile(
        model=model_hash(network),
        codebook_sizes=tuple(level.codebook_size for level in network.levels[:count]),
        tables=tuple(frequency_table(counts.numpy()) for counts in model.counts[:count]),
        images=tuple(entries),
        tokens=tuple(torch.cat(none + [tile[n] for tile in coded]).numpy() for n in range(count)),
    )


@torch.no_grad()
def decode(data: TokenFile, model: Model, *, levels: int | None = None) -> list[Image.Image]:
    """Pictures of a file.

    Raises:
        TokenFileError: If another model made it.
        UserError: If it has not so many levels.
    """
    network = model.network
    check_model(data, network)
    count = check_levels(levels, len(data.codebook_sizes))
    sizes = [
        padded((right - left, bottom - top), network.multiple)
        for image in data.images
        for left, top, right, bottom in boxes((image.width, image.height))
    ]
    grids = [network.grids(height, width)[:count] for width, height in sizes]
    tokens = [
        _split(part, [grid[n] for grid in grids]) for n, part in enumerate(data.tokens[:count])
    ]
    tiles = [Image.new("RGB", (1, 1))] * len(sizes)
    for group in groups(sizes):
        batch = [torch.stack([level[n] for n in group]).to(model.device) for level in tokens]
        decoded = network.decode_tokens(batch).mul(255).round().byte().cpu()
        for number, picture in zip(group, decoded, strict=True):
            tiles[number] = Image.fromarray(picture.permute(1, 2, 0).numpy())
    left = iter(tiles)
    pictures = []
    for image in data.images:
        size = image.width, image.height
        picture = paste(size, [next(left) for _ in boxes(size)])
        pictures.append(picture.convert(image.mode))
    return pictures


def _split(tokens: NDArray[np.int64], grids: list[Size]) -> list[Tensor]:
    """Tokens of a level as (h, w) for each tile."""
    lengths = [height * width for height, width in grids]
    if sum(lengths) != len(tokens):
        raise TokenFileError("it has not as many tokens as its images need of this model")
    parts = torch.from_numpy(tokens).split(lengths)
    return [part.view(grid) for part, grid in zip(parts, grids, strict=True)]


def check_levels(levels: int | None, there: int) -> int:
    """How many levels to take.

    Raises:
        UserError: If there are not so many.
    """
    if levels is not None and not 1 <= levels <= there:
        raise UserError(f"--levels must lie between 1 and {there}, got {levels}")
    return levels or there


def check_model(data: TokenFile, network: ImageTokenizer) -> None:
    """Refuse a file that another model made.

    Raises:
        TokenFileError: If its tokens mean something else here.
    """
    if data.model != model_hash(network):
        raise TokenFileError(
            f"another model made it ({data.model[:12]}, this one is {model_hash(network)[:12]}): "
            "give the run, and its best.pt or last.pt, that it was compressed with"
        )


def model_hash(network: ImageTokenizer) -> str:
    """What two models share only if all their weights are equal."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        value = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()[:32]


def named(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Image files under the names they get: relative to their folder, or their own.

    Raises:
        UserError: If there is none, or a path does not exist.
    """
    found: list[tuple[str, Path]] = []
    for path in paths:
        if path.is_dir():
            found += [(file.relative_to(path).as_posix(), file) for file in find_images(path)]
        elif path.is_file():
            found.append((path.name, path))
        else:
            raise UserError(f"no {path}: give image files, or folders of them")
    return found


def picture_names(names: Sequence[str]) -> list[PurePosixPath]:
    """Names of the decoded pictures: PNG, no two alike, none outside the folder.

    Raises:
        TokenFileError: If a name would lead out of the folder.

    Example:
        >>> [str(name) for name in picture_names(["a.jpg", "b/a.png", "a.png"])]
        ['a.png', 'b/a.png', 'a.png.png']
    """
    pictures: dict[PurePosixPath, None] = {}
    for name in names:
        path = PurePosixPath(name)
        odd = path.is_absolute() or ".." in path.parts or not path.name or set(name) & set("\\:")
        if odd:
            raise TokenFileError(f"the name {name!r} in it may lead out of the folder")
        picture = path.with_suffix(".png")
        while picture in pictures:
            path = path.with_name(f"{path.name}.png")
            picture = path
        pictures[picture] = None
    return list(pictures)
