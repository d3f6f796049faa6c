"""The state of a run: at its start, saved to a checkpoint, and restored from one."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .checkpoint import mismatch, save_checkpoint
from .config.schema import check_sizes
from .errors import UserError

if TYPE_CHECKING:
    from .trainer import Trainer


def begin_run(trainer: Trainer, state: dict[str, Any] | None) -> None:
    """Start a run, or put it where its checkpoint was written.

    Args:
        trainer: A new run.
        state: What :func:`training.checkpoint.load_checkpoint` returned, of the same config; None
            for a new run.

    Raises:
        CheckpointError: If the state does not fit the model and the optimiser.
        UserError: If the data is other data than then, or there are fewer latents than prototypes.
    """
    if state is not None:
        _restore(trainer, state)
        return
    # Statistics of the latents first, then prototypes from latents of several batches.
    # Counted, not encoded: a quantizer of others would start itself on these raw latents.
    batch = next(trainer.feed.sample(1, step=0))
    grids = trainer.model.grids(*batch.shape[2:])
    wanted = [
        math.ceil(16 * level.codebook_size / (len(batch) * height * width))
        for level, (height, width) in zip(trainer.model.levels, grids, strict=True)
    ]
    sample_batches = trainer.feed.sample(min(max(4, *wanted), 64), step=0)
    if not trainer.config.quantizer.kmeans_init:
        trainer.model.calibrate(sample_batches)
        return
    try:
        trainer.model.initialize(sample_batches, seed=trainer.config.run.seed)
    except ValueError as error:
        raise UserError(f"no k-means of the latents ({error}); or --init random") from error


def save_run(trainer: Trainer, name: str) -> None:
    """Write a checkpoint of everything that a run needs to go on; every process calls it.

    Args:
        trainer: The run.
        name: Name of the file in the run folder.
    """
    trainer.saved_at = time.monotonic()
    # Collected from all processes, before all but one of them leave.
    counts = [{"counts": tracker.compute().counts} for tracker in trainer.trackers]
    if trainer.rank > 0:
        return
    state = {
        "model_config": trainer.model_config,
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "trackers": [
            tracker.state_dict() | own
            for tracker, own in zip(trainer.trackers, counts, strict=True)
        ],
        "step": trainer.step,
        "sums": trainer.sums,
        "seconds": trainer.seconds,
        "best": trainer.best,
        "config": trainer.config.options(),
        "images": trainer.splits.sizes,
        "images_digest": trainer.splits.digest,
    }
    save_checkpoint(trainer.folder / name, state)


def _restore(trainer: Trainer, state: dict[str, Any]) -> None:
    learning_rates = [group["lr"] for group in trainer.optimizer.param_groups]
    try:
        trainer.model.load_state_dict(state["model"])
        trainer.optimizer.load_state_dict(state["optimizer"])
        # Checkpoints of before there was a scheduler lack what it starts from.
        for group, lr in zip(trainer.optimizer.param_groups, learning_rates, strict=True):
            group["initial_lr"] = lr
        for tracker, saved in zip(trainer.trackers, state["trackers"], strict=True):
            tracker.load_state_dict(saved)
        _check_moments(trainer.optimizer)
        trainer.step, trainer.sums = int(state["step"]), dict(state["sums"])
        trainer.seconds, trainer.best = float(state["seconds"]), float(state["best"])
    except Exception as error:  # an edited file fails in ways of its own
        raise mismatch(str(trainer.folder / "last.pt"), error) from error
    if state["images"] != trainer.splits.sizes:
        raise UserError(
            f"the data has changed since {trainer.folder} was saved: train, val and test had "
            f"{state['images']} images, now {trainer.splits.sizes}; restore it, or start anew"
        )
    # Checkpoints of before there were digests go on with any images.
    if state.get("images_digest", trainer.splits.digest) != trainer.splits.digest:
        raise UserError(
            f"the images have changed since {trainer.folder} was saved: as many as then, but with "
            "other pixels, or in another order; restore them, start anew, or add --changed-images "
            "to go on with these"
        )
    if trainer.rank > 0:
        for tracker in trainer.trackers:
            tracker.reset()  # the counts of all processes are the main one's now


def resumed_model_config(
    model_config: dict[str, Any], state: dict[str, Any] | None, folder: Path
) -> dict[str, Any]:
    """The options of the model of a run that goes on, perhaps for longer than was planned.

    Args:
        model_config: The options of the run's config, with the schedules of its new length.
        state: Its checkpoint; None for a new run, whose options stay as they are.
        folder: The run folder, for errors.

    Raises:
        CheckpointError: If the options are not those of the weights.
    """
    if state is None:
        return model_config
    # More epochs than planned go on at the last temperature: a longer schedule would heat up what
    # has cooled down.
    names = ("temperature_hold_steps", "temperature_steps")
    try:
        check_sizes(model_config, state["model"])
        kept = {name: state["model_config"][name] for name in names}
    except Exception as error:  # options of an edited file fail in ways of their own
        raise mismatch(str(folder / "last.pt"), error) from error
    return model_config | kept


def _check_moments(optimizer: torch.optim.Optimizer) -> None:
    """Adam takes moments of any shape and then writes out of bounds."""
    for parameter, moments in optimizer.state.items():
        for name, value in moments.items():
            if value.dim() and value.shape != parameter.shape:
                raise ValueError(
                    f"size mismatch: {name} of the optimizer is {tuple(value.shape)}, its "
                    f"parameter {tuple(parameter.shape)}"
                )
