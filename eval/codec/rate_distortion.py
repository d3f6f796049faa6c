"""Rate and distortion: real bytes of token files against JPEG and WebP, on the same test images."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from eval.codec.compress import decode, encode
from eval.codec.format import from_bytes, to_bytes
from eval.codec.tiles import to_picture, to_pixels
from eval.report.metrics import image_sums
from eval.report.tables import Table, cell
from eval.run import Model, model_of, open_run
from training.checkpoint import write_atomic
from training.data.feed import to_float
from training.errors import UserError

QUALITIES = (1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95)
CODECS = ("jpeg", "webp")
LONGEST_SIDE = 16383  # of a WebP


def rate_distortion(
    runs: Sequence[Path],
    *,
    limit_test: int | None = None,
    data_dir: str | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Bits per pixel, PSNR and SSIM of every prefix of every run, and of JPEG and WebP.

    Args:
        runs: Run folders or checkpoints, trained on one data set.
        limit_test: Use only the first N test images; all by default.
        data_dir: Folder of the data; where the training found it by default.
        device: As in train.py.

    Returns:
        ``dataset``, ``test_images`` and ``curves``, each with ``name``, ``kind`` and ``points``.

    Raises:
        UserError: If a run cannot be used, or the runs are of different data.
    """
    where: dict[str, Any] = {"limit_test": limit_test, "data_dir": data_dir, "device": device}
    opened = [open_run(run, **where) for run in runs]
    images = opened[0].test_images
    for run, other in zip(runs, opened, strict=True):
        if not torch.equal(other.test_images, images):
            raise UserError(
                f"{run} was trained on {other.dataset}, {runs[0]} on {opened[0].dataset}: test "
                "images differ, so their rates do not compare"
            )
    curves: list[dict[str, Any]] = []
    for name, other in zip(labels(runs), opened, strict=True):
        points = token_points(model_of(other.path, other.state, other.model), images)
        curves.append({"name": name, "kind": "tokens", "points": points})
    pictures = [to_picture(image) for image in images]
    for codec in CODECS:
        for kind, unit in (("files", separate), ("sheet", as_sheet)):
            points = [codec_point(codec, quality, pictures, images, unit) for quality in QUALITIES]
            curves.append({"name": f"{codec}, {kind}", "kind": kind, "points": points})
    return {"dataset": opened[0].dataset, "test_images": len(images), "curves": curves}


def token_points(model: Model, images: Tensor) -> list[dict[str, Any]]:
    """A point for each prefix of the levels: all images in one file."""
    pictures = [to_picture(image) for image in images]
    names = [f"{number:05d}.png" for number in range(len(pictures))]
    points = []
    for levels in range(1, len(model.network.levels) + 1):
        file = encode(pictures, names, model, levels=levels)
        content = to_bytes(file)
        decoded = to_tensor(decode(from_bytes(content), model))
        bound = file.bound() / images[:, 0].numel()
        quality = quality_of(decoded, images, len(content))
        points.append({"levels": levels, "bound_bits_per_pixel": bound, **quality})
    return points


Write = Callable[[Image.Image], bytes]
Unit = Callable[[Sequence[Image.Image], Write], tuple[int, list[Image.Image]]]


def separate(pictures: Sequence[Image.Image], write: Write) -> tuple[int, list[Image.Image]]:
    """Bytes and pictures of a file for each picture: small ones are mostly header."""
    files = [write(picture) for picture in pictures]
    decoded = [Image.open(io.BytesIO(file)).convert("RGB") for file in files]
    return sum(map(len, files)), decoded


def as_sheet(pictures: Sequence[Image.Image], write: Write) -> tuple[int, list[Image.Image]]:
    """Bytes and pictures of files with all pictures side by side: next to no header."""
    width, height = pictures[0].size
    columns = min(int(np.ceil(np.sqrt(len(pictures)))), LONGEST_SIDE // width)
    rows = min(-(-len(pictures) // columns), LONGEST_SIDE // height)
    size, shown = 0, []
    for start in range(0, len(pictures), columns * rows):
        own = pictures[start : start + columns * rows]
        sheet = Image.new("RGB", (columns * width, -(-len(own) // columns) * height))
        places = [(n % columns * width, n // columns * height) for n in range(len(own))]
        for picture, place in zip(own, places, strict=True):
            sheet.paste(picture, place)
        content = write(sheet)
        decoded = Image.open(io.BytesIO(content)).convert("RGB")
        size += len(content)
        shown += [decoded.crop((x, y, x + width, y + height)) for x, y in places]
    return size, shown


def codec_point(
    codec: str, quality: int, pictures: Sequence[Image.Image], images: Tensor, unit: Unit
) -> dict[str, Any]:
    """A point of one of Pillow's codecs."""

    def write(picture: Image.Image) -> bytes:
        buffer = io.BytesIO()
        options = {"optimize": True} if codec == "jpeg" else {"method": 6}
        picture.save(buffer, format=codec, quality=quality, **options)
        return buffer.getvalue()

    size, decoded = unit(pictures, write)
    return {"quality": quality, **quality_of(to_tensor(decoded), images, size)}


def quality_of(decoded: Tensor, images: Tensor, size: int) -> dict[str, float]:
    """Bits per pixel of so many bytes, and means over images of PSNR and SSIM."""
    sums = Counter[str]()
    for ours, theirs in zip(decoded.split(256), images.split(256), strict=True):
        found = image_sums(to_float(ours), to_float(theirs))
        sums.update({name: float(value) for name, value in found.items()})
    means = {name: value / len(images) for name, value in sums.items() if name != "mse"}
    return {"bits_per_pixel": 8 * size / images[:, 0].numel(), **means}


def to_tensor(pictures: Iterable[Image.Image]) -> Tensor:
    """RGB pictures of one size as uint8 (N, C, H, W)."""
    return torch.stack([to_pixels(picture) for picture in pictures])


def labels(runs: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell the runs apart."""
    parts = [run.absolute().parts for run in runs]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise UserError("a run was given twice")


def plot(result: dict[str, Any], path: Path) -> None:
    """PSNR and SSIM over bits per pixel, as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axes = figure.subplots(1, 2)
    styles = {"tokens": "o-", "files": ":", "sheet": "--"}
    for axis, (key, label) in zip(axes, (("psnr", "PSNR (dB)"), ("ssim", "SSIM")), strict=True):
        for curve in result["curves"]:
            points = [p for p in curve["points"] if key in p]
            rates, values = [p["bits_per_pixel"] for p in points], [p[key] for p in points]
            if points:
                axis.plot(rates, values, styles[curve["kind"]], label=curve["name"])
        axis.set(xscale="log", xlabel="bits per pixel, of real files", ylabel=label)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    figure.suptitle(f"{result['test_images']} test images of {result['dataset']}")
    write_atomic(path, lambda file: figure.savefig(file, format="png", dpi=120))


def format_rate(result: dict[str, Any]) -> str:
    """The token curves as a table."""
    forms = {
        "levels": "d", "bits_per_pixel": ".4f", "bound_bits_per_pixel": ".4f", "psnr": ".2f",
        "ssim": ".4f",
    }  # fmt: skip
    rows = [
        [curve["name"], *(cell(point.get(key), form) for key, form in forms.items())]
        for curve in result["curves"]
        if curve["kind"] == "tokens"
        for point in curve["points"]
    ]
    return Table(["run", "levels", "bits/pixel", "entropy", "PSNR", "SSIM"], rows).text()
