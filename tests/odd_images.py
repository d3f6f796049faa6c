"""Small image files in any format."""

from pathlib import Path

import numpy as np
from PIL import Image


def flat(path: Path, value: int = 0, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), value).save(path, **options)
    return path


def photo(path: Path, size=(40, 20), **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)
    return path
