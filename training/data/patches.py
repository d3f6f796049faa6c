"""The embedded data set: crops of two photographs that scikit-learn ships."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Columns of both photographs, [start, stop). Held-out bands lie between training bands, so that
# they show the same things; brightness and contrast of the three splits differ little.
BANDS = {
    "train": ((0, 80), (128, 208), (256, 336), (384, 464), (512, 640)),
    "val": ((80, 128), (336, 384)),
    "test": ((208, 256), (464, 512)),
}
COUNTS = {"train": 20_000, "val": 2_000, "test": 2_000}
MAX_SIZE = 48  # the narrowest band


def photo_patches(split: str, size: int, limit: int | None = None) -> Tensor:
    """Crops of the photographs china and flower of scikit-learn, half of them mirrored.

    Args:
        split: ``train``, ``val`` or ``test``; no two share a pixel of a photograph.
        size: S, at most ``MAX_SIZE``.
        limit: Only the first so many.

    Returns:
        uint8 (N, 3, S, S), always the same; N is in ``COUNTS`` unless the band has fewer
        positions or ``limit`` is smaller.
    """
    from sklearn.datasets import load_sample_images

    photos = torch.from_numpy(np.stack(load_sample_images().images))  # (2, 427, 640, 3)
    windows = photos.unfold(1, size, 1).unfold(2, size, 1)  # (2, top, left, 3, S, S)
    lefts = np.concatenate([np.arange(start, stop - size + 1) for start, stop in BANDS[split]])
    shape = (len(photos), windows.shape[1], len(lefts))
    # RandomState, because NumPy keeps its streams the same in all versions.
    random = np.random.RandomState(sorted(BANDS).index(split))
    chosen = random.permutation(np.prod(shape))[: COUNTS[split]]
    mirrored = torch.from_numpy(random.randint(0, 2, len(chosen)).astype(bool)[:limit])
    photo, top, left = (torch.from_numpy(i) for i in np.unravel_index(chosen[:limit], shape))
    patches = windows[photo, top, torch.from_numpy(lefts)[left]]  # (N, 3, S, S)
    return torch.where(mirrored[:, None, None, None], patches.flip(3), patches).contiguous()
