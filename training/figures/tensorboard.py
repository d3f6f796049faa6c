"""What TensorBoard shows of an epoch besides its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from models import ImageTokenizer
from softvq import UtilizationTracker

from .collect import sample_pictures, suffixes
from .reconstructions import reconstruction_grid
from .sample import sample_codebook

GRID_IMAGES = 12


def write_epoch(
    writers: Mapping[str, Any],
    model: ImageTokenizer,
    trackers: list[UtilizationTracker],
    test_images: Tensor,
    step: int,
) -> None:
    """Usage curve, heat map and dead codes of each level, and a grid of reconstructions.

    Args:
        writers: TensorBoard's writer of each split.
        model: The model.
        trackers: One for each level, whose last epoch has ended.
        test_images: uint8 (N, C, H, W); the first ones are shown, one a column.
        step: Number of steps that are done.
    """
    if model.has_tokens:
        for tracker, suffix in zip(trackers, suffixes(len(trackers)), strict=True):
            tracker.write(writers["train"], step, tag=f"usage{suffix}")
    grid = reconstruction_grid(model, test_images[:GRID_IMAGES])
    writers["test"].add_image("reconstruction/input_soft_argmax", grid, step)


def write_pictures(
    writers: Mapping[str, Any], model: ImageTokenizer, val_images: Tensor, step: int
) -> None:
    """What :func:`training.figures.sample_pictures` draws of validation images.

    Args:
        writers: TensorBoard's writer of each split.
        model: The model.
        val_images: uint8 (N, C, H, W).
        step: Number of steps that are done.
    """
    for name, figure in sample_pictures(model, sample_codebook(model, val_images)).items():
        writers["val"].add_figure(f"pictures/{name}", figure, step)


def write_prototypes(
    writers: Mapping[str, Any],
    model: ImageTokenizer,
    trackers: list[UtilizationTracker],
    step: int,
) -> None:
    """The prototypes in TensorBoard's projector, labelled with their use in the last epoch.

    Args:
        writers: TensorBoard's writer of each split.
        model: The model.
        trackers: One for each level, whose last epoch has ended.
        step: Number of steps that are done.
    """
    if not model.has_tokens:
        return
    for level, tracker, suffix in zip(model.levels, trackers, suffixes(len(trackers)), strict=True):
        counts = tracker.history[-1].tolist()
        writers["train"].add_embedding(
            level.codebook.detach().float().cpu(),
            metadata=[[str(code), str(count)] for code, count in enumerate(counts)],
            metadata_header=["code", "tokens"],
            global_step=step,
            tag=f"codebook{suffix}",
        )
