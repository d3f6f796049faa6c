"""A picture of reconstructions."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from eval.codec.tiles import to_picture
from eval.run import Run
from training.checkpoint import write_atomic
from training.figures.reconstructions import reconstruction_grid


def write_grid(run: Run, path: Path, *, scale: int = 3) -> None:
    """Write a PNG: inputs above soft above argmax reconstructions, a column for each test image.

    Args:
        run: The run; all of its test images are shown.
        path: The file.
        scale: Screen pixels per image pixel.
    """
    grid = reconstruction_grid(run.model, run.test_images)  # (C, rows, columns)
    picture = to_picture(grid.mul(255).round().byte())
    size = (picture.width * scale, picture.height * scale)
    picture = picture.resize(size, Image.Resampling.NEAREST)
    write_atomic(path, lambda file: picture.save(file, format="PNG"))
