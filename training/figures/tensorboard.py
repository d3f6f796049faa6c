"""What TensorBoard shows of an epoch besides its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .collect import sample_pictures, suffixes
from .reconstructions import reconstruction_grid
from .sample import sample_codebook

if TYPE_CHECKING:
    from ..trainer import Trainer

GRID_IMAGES = 12


def write_epoch(writers: Mapping[str, Any], trainer: Trainer) -> None:
    """Usage curve, heat map and dead codes of each level, and reconstructions of test images.

    Args:
        writers: TensorBoard's writer of each split.
        trainer: The run, at the end of an epoch.
    """
    trackers = trainer.trackers if trainer.model.has_tokens else []
    for tracker, suffix in zip(trackers, suffixes(len(trackers)), strict=True):
        tracker.write(writers["train"], trainer.step, tag=f"usage{suffix}")
    grid = reconstruction_grid(trainer.model, trainer.splits.test[:GRID_IMAGES])
    writers["test"].add_image("reconstruction/input_soft_argmax", grid, trainer.step)


def write_pictures(writers: Mapping[str, Any], trainer: Trainer) -> None:
    """What :func:`training.figures.sample_pictures` draws of validation images.

    Args:
        writers: TensorBoard's writer of each split.
        trainer: The run, at the end of an epoch.
    """
    sample = sample_codebook(trainer.model, trainer.splits.val)
    for name, figure in sample_pictures(trainer.model, sample).items():
        writers["val"].add_figure(f"pictures/{name}", figure, trainer.step)
