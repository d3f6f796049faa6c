"""Train a VQ-VAE.

python train.py --quantizer ddcl --dataset cifar10 --out runs/a
python train.py --preset quick
python train.py --resume --out runs/a
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from training.config import PRESETS, TrainConfig
from training.errors import UserError
from training.options import OWN, check_given

if TYPE_CHECKING:
    from training.callbacks import Callback

# What may differ from the interrupted run when it goes on.
RESUMABLE = ("out", "device", "epochs", "steps", "data_dir")


def train(config: TrainConfig, *, resume: bool = False, callbacks: Sequence[Callback] = ()) -> Path:
    """Train a model and leave a run folder.

    Args:
        config: The options.
        resume: Continue the run in ``config.out`` from its last checkpoint.
        callbacks: Called at the start, after each step and epoch, and at the end.

    Returns:
        The run folder: config.json, metrics.jsonl, last.pt, best.pt, TensorBoard events.

    Raises:
        UserError: If the data, the folder or a checkpoint is not what the call needs.
        KeyboardInterrupt: After Ctrl-C, once the run is saved.
        SystemExit: After SIGTERM, once the run is saved, with status 143.
    """
    from training.distributed import process_group

    with process_group():
        return _train(config, resume, callbacks)


def _train(config: TrainConfig, resume: bool, callbacks: Sequence[Callback]) -> Path:
    from training.checkpoint import load_checkpoint, write_text
    from training.data.splits import default_data_dir, load_splits
    from training.distributed import main_process_first, rank
    from training.trainer import Trainer

    def say(text: str, err: bool = False) -> None:
        if rank() == 0:
            click.echo(text, err=err)

    if config.out and not resume:
        check_run_folder(Path(config.out))
    with main_process_first():
        splits = load_splits(
            config.dataset,
            config.data_dir,
            limit_train=config.limit_train,
            limit_test=config.limit_test,
            image_size=config.image_size,
            announce=say,
        )
    folder = Path(config.out or default_run_folder(config, splits.name))
    # What auto found, and where, is what a resumed run or a report must find again.
    data_dir = config.data_dir or (str(default_data_dir()) if splits.name == "cifar10" else None)
    data_dir = None if data_dir is None else os.path.abspath(data_dir)
    config = replace(config, dataset=splits.name, out=str(folder), data_dir=data_dir)
    state = load_checkpoint(folder / "last.pt") if resume else None
    header = (
        f"{len(splits.train)} training, {len(splits.val)} validation and {len(splits.test)} test "
        f"images of {splits.name} ({splits.source})\nrun folder: {folder}"
    )
    if state is None:  # what follows may take minutes; a finished run has only that to say
        say(header)
        if config.kmeans_init and config.quantizer in OWN:
            say(f"placing {config.codebook_size} prototypes by k-means")
    try:
        trainer = Trainer(config, splits, folder, state, callbacks=callbacks)
    except KeyboardInterrupt:
        say("stopped before the first step: nothing to save", err=True)
        raise
    if trainer.step >= trainer.total_steps:
        say(
            f"nothing to train: the run in {folder} is at step {trainer.step}, and "
            f"{trainer.total_steps} were asked for; give more --epochs to go on"
        )
        return folder
    if rank() == 0:
        write_text(folder / "config.json", config.to_json())
    if state is not None:
        say(header)
    stopped_by = trainer.run()
    if stopped_by is not None:
        say(
            f"stopped at step {trainer.step} of {trainer.total_steps} and saved; continue with: "
            f"python train.py --resume --out {shlex.quote(str(folder))}",
            err=True,
        )
        if stopped_by == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + stopped_by)
    return folder


def check_run_folder(folder: Path) -> None:
    """Refuse a folder that holds a run, or that cannot be made.

    Raises:
        UserError: If a new run must not or cannot go there.
    """
    if (folder / "last.pt").exists():
        raise UserError(
            f"{folder} already holds a run; add --resume to continue it, or change --out"
        )
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise UserError(
            f"--out {folder} cannot be made: {nearest} is not a folder that can be written to"
        )


def default_run_folder(config: TrainConfig, dataset: str) -> str:
    """A folder under runs/ that does not exist yet."""
    stem = f"runs/{config.quantizer}-{dataset}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = stem, 1
    while Path(folder).exists():
        number += 1
        folder = f"{stem}-{number}"
    return folder


def click_option(spec: Field[Any]) -> click.Option:
    """The command-line option of a field: its name, default, range and help come from there."""
    rule = spec.metadata
    flag = "--" + spec.name.replace("_", "-")
    kind = str(spec.type).removesuffix(" | None")
    declaration, options = [flag], {"help": rule["help"], "show_default": spec.default is not None}
    if kind == "bool":
        declaration = [f"{flag}/--no-{flag[2:]}"]
    elif rule["choices"]:
        options["type"] = click.Choice(rule["choices"])
    elif kind == "str":
        options["type"] = click.STRING
    else:
        ranged = click.IntRange if kind == "int" else click.FloatRange
        low = rule["minimum"] if rule["above"] is None else rule["above"]
        options["type"] = ranged(low, rule["maximum"], min_open=rule["above"] is not None)
    return click.Option(declaration, default=spec.default, **options)


def resumed_config(given: dict[str, Any]) -> TrainConfig:
    """The config of an interrupted run, with what may change changed.

    Raises:
        UserError: If there is no such run, or an option differs that must not.
    """
    from training.checkpoint import load_checkpoint

    if not given.get("out"):
        raise UserError("--resume needs --out, the folder of the run to continue")
    saved = load_checkpoint(Path(given["out"]) / "last.pt")["config"]
    for name, value in given.items():
        found_by_auto = name == "dataset" and value == "auto"
        if name not in RESUMABLE and saved.get(name) != value and not found_by_auto:
            raise UserError(
                f"--{name.replace('_', '-')} is {value} but the run has {saved.get(name)}; "
                f"only {', '.join(RESUMABLE)} may change when a run goes on"
            )
    if "epochs" in given:
        saved["steps"] = None  # otherwise the run's own steps would overrule
    given.pop("dataset", None)
    return TrainConfig.from_dict(saved | given)


@click.command(
    params=[click_option(spec) for spec in fields(TrainConfig)],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--preset", type=click.Choice(sorted(PRESETS)), help="Defaults for a purpose.")
@click.option("--resume", is_flag=True, help="Continue the run in --out.")
@click.pass_context
def main(context: click.Context, /, preset: str | None, resume: bool, **values: Any) -> None:
    """Train a VQ-VAE with a soft or hard codebook, and watch its utilization.

    The run folder gets config.json, metrics.jsonl, checkpoints and TensorBoard events.
    """
    given = {
        name: value
        for name, value in values.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    try:
        if resume:
            if preset:
                raise UserError("--resume takes its options from the run: leave out --preset")
            config = resumed_config(given)
        else:
            config = TrainConfig(**(PRESETS.get(preset or "", {}) | given))
            check_given(config, given)
        folder = train(config, resume=resume)
    except UserError as error:
        click.echo(f"Error: {error}", err=True)
        context.exit(error.exit_code)
    except OSError as error:
        click.echo(f"Error: {error}", err=True)
        context.exit(1)
    except KeyboardInterrupt:
        context.exit(130)
    if os.environ.get("RANK", "0") == "0":
        click.echo(f"evaluate it: python -m eval report {folder}")
        click.echo(f"watch it:    tensorboard --logdir {folder}")


if __name__ == "__main__":
    main()
