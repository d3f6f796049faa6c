"""Train a VQ-VAE.

python train.py --quantizer ddcl-em --dataset cifar10 --out runs/a
python train.py --preset quick
python train.py --resume --out runs/a
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from training.config import PRESETS, TrainConfig
from training.config.cli import ConfigCommand, config_options, given_config
from training.errors import DivergedError, UserError
from training.run_folder import check_run_folder, held_run_folder
from training.start import load_data, write_status

if TYPE_CHECKING:
    from training.callbacks import Callback
    from training.data.splits import ImageSplits
    from training.trainer import Trainer

# An epoch of fewer steps is said before the training on a folder of images.
FEW_STEPS = 10


def train(
    config: TrainConfig,
    *,
    resume: bool = False,
    changed_images: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Path:
    """Train a model and leave a run folder.

    Args:
        config: The options.
        resume: Whether to continue the run in ``config.run.out`` from its last checkpoint.
        changed_images: Whether to continue although the pixels are not those of the start.
        callbacks: Further :class:`training.callbacks.Callback` objects, which observe the run.

    Returns:
        The run folder: config.json, status.json, metrics.jsonl, last.pt, best.pt, TensorBoard
        events.

    Raises:
        DivergedError: If the run loses its numbers; status.json says so, too.
        UserError: If the data, the folder, a checkpoint or an option is not what the call needs.
        KeyboardInterrupt: After Ctrl-C, once the run is saved.
        SystemExit: After SIGTERM, once the run is saved, with status 143.
    """
    from training.checkpoint import write_text
    from training.distributed import process_group, rank

    with process_group(), ExitStack() as held:
        if config.run.out and not resume:
            check_run_folder(Path(config.run.out))
        trainer = _trainer(config, resume, changed_images, callbacks, held)
        if trainer.step >= trainer.total_steps:
            _say(
                f"nothing to train: the run in {trainer.folder} is at step {trainer.step}, and "
                f"{trainer.total_steps} were asked for; give more --epochs to go on"
            )
            return trainer.folder
        if rank() == 0:
            write_text(trainer.folder / "config.json", trainer.config.to_json())
        if resume:
            _say(_header(trainer.splits, trainer.config, trainer.folder))
        _run(trainer)
    return trainer.folder


def _say(text: str, err: bool = False) -> None:
    from training.distributed import rank

    if rank() == 0:
        click.echo(text, err=err)


def _trainer(
    config: TrainConfig,
    resume: bool,
    changed_images: bool,
    callbacks: Sequence[Callback],
    held: ExitStack,
) -> Trainer:
    """A run that has its data, its folder to itself, and its start, or its last checkpoint."""
    from training.checkpoint import load_checkpoint, new_model
    from training.distributed import rank
    from training.trainer import Trainer

    if not resume:  # refuses what no model can be made of
        model = new_model(config.model_config(total_steps=1))
        _say(f"{config.quantizer.name}: the encoder gets {model.levels[-1].encoder_gradient}")
    config, splits = load_data(config, _say)
    folder = Path(str(config.run.out))
    if rank() == 0:
        held.enter_context(held_run_folder(folder))
    state = load_checkpoint(folder / "last.pt") if resume else None
    if state is not None and changed_images:
        state.pop("images_digest", None)
    if state is None:  # what follows may take minutes; a finished run has only that to say
        _say(_header(splits, config, folder))
        if config.quantizer.kmeans_init:
            _say(f"placing {config.model.codebook_size} prototypes by k-means")
    try:
        return Trainer(config, splits, folder, state, callbacks=callbacks)
    except KeyboardInterrupt:
        _say("stopped before the first step: nothing to save", err=True)
        raise


def _header(splits: ImageSplits, config: TrainConfig, folder: Path) -> str:
    sizes, batch = splits.sizes, config.optimizer.batch_size
    lines = [
        f"{sizes[0]} training, {sizes[1]} validation and {sizes[2]} test images of {splits.name} "
        f"({splits.source})",
        f"run folder: {folder}",
    ]
    steps = max(sizes[0] // batch, 1)
    if splits.name == "folder" and steps < FEW_STEPS and config.optimizer.steps is None:
        lines.append(
            f"few images: an epoch is {steps} step{'s'[: steps > 1]} of {min(batch, sizes[0])} "
            f"images, {steps * config.optimizer.epochs} in all, and some thousands make a good "
            "model; give more --epochs or a smaller --batch-size"
        )
    return "\n".join(lines)


def _run(trainer: Trainer) -> None:
    """Train, and leave in status.json how the run ended."""
    from training.distributed import rank

    def status(name: str, message: str = "") -> None:
        if rank() == 0:
            write_status(trainer.folder, name, trainer.step, message)

    status("training")
    try:
        stopped_by = trainer.run()
    except DivergedError as error:
        status("diverged", str(error))
        raise
    status("finished" if stopped_by is None else "stopped")
    if stopped_by is not None:
        _say(
            f"stopped at step {trainer.step} of {trainer.total_steps} and saved; continue with: "
            f"python train.py --resume --out {shlex.quote(str(trainer.folder))}",
            err=True,
        )
        if stopped_by == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + stopped_by)


@click.command(
    cls=ConfigCommand,
    params=config_options(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--preset", type=click.Choice(sorted(PRESETS)), help="Defaults for a purpose.")
@click.option("--resume", is_flag=True, help="Continue the run in --out.")
@click.option(
    "--changed-images", is_flag=True, help="With --resume: go on with other pixels than before."
)
@click.pass_context
def main(
    context: click.Context, /, preset: str | None, resume: bool, changed_images: bool, **_: Any
) -> None:
    """Train a VQ-VAE with a soft or hard codebook, and watch its utilization.

    The run folder gets config.json, metrics.jsonl, checkpoints and TensorBoard events.
    """
    if changed_images and not resume:
        raise UserError("--changed-images is for a run that goes on: add --resume, or leave it out")
    config = given_config(context, preset, resume)
    folder = train(config, resume=resume, changed_images=changed_images)
    if os.environ.get("RANK", "0") == "0":
        click.echo(f"evaluate it: python -m eval report {folder}")
        click.echo(f"watch it:    tensorboard --logdir {folder}")


if __name__ == "__main__":
    main()
