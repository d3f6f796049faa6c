"""Tokens of a run's data as plain tensors, for those who train a prior."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from eval.run import Model, splits_of
from training.checkpoint import write_atomic
from training.config import TrainConfig
from training.data.feed import to_float
from training.errors import UserError

SPLITS = ("train", "val", "test")


@torch.no_grad()
def write_tokens(
    model: Model,
    out: Path,
    *,
    splits: Sequence[str] = SPLITS,
    limit: int | None = None,
    data_dir: str | None = None,
    skip_bad: bool = False,
    announce: Callable[[str], object] = lambda _: None,
    batch_size: int = 256,
) -> dict[str, tuple[int, ...]]:
    """Write the tokens of a run's data set to a safetensors file.

    Args:
        model: The trained model.
        out: The file; an older one is replaced once the new one is whole.
        splits: Of ``train``, ``val`` and ``test``.
        limit: Use only the first N images of a split; all by default, whatever the training used.
        data_dir: Folder of the data; where the training found it by default.
        skip_bad: Whether to leave out images of a folder that cannot be read.
        announce: Called with a line for each of them.
        batch_size: Images at a time.

    Returns:
        Names and shapes of what was written: ``<split>.level_<n>`` int32 (N, h, w), coarse level
        first, and ``<split>.labels`` int64 (N,) where there are classes.

    Raises:
        UserError: If the data cannot be used.
    """
    unknown = [split for split in splits if split not in SPLITS]
    if unknown:
        raise UserError(f"unknown split {unknown[0]!r}; known: {', '.join(SPLITS)}")
    config = TrainConfig.from_dict(model.state["config"])
    limits = {"limit_train": limit, "limit_test": limit}
    data = splits_of(config, data_dir, **limits, skip_bad=skip_bad, announce=announce)
    tensors: dict[str, Tensor] = {}
    for split in splits:
        for number, level in enumerate(_tokens(model, getattr(data, split), batch_size), start=1):
            tensors[f"{split}.level_{number}"] = level
        labels = getattr(data, f"{split}_labels")
        if labels is not None:
            tensors[f"{split}.labels"] = labels
    metadata = {
        "model": model.hash,
        "codebook_sizes": json.dumps([level.codebook_size for level in model.network.levels]),
        "dataset": data.name,
    }
    write_atomic(out, lambda file: file.write(safetensors.torch.save(tensors, metadata)))
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _tokens(model: Model, images: Tensor, batch_size: int) -> list[Tensor]:
    """The tokens of each level, int32 (N, h, w)."""
    network = model.network
    parts = [
        network.split(network.tokens(to_float(part.to(model.device))))
        for part in images.split(batch_size)
    ]
    return [torch.cat(level).int().cpu().contiguous() for level in zip(*parts, strict=True)]
