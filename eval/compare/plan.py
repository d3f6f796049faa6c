"""Plan: the runs of a comparison, and how they are trained once and only once."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import os
import re
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from train import train
from training.checkpoint import new_model
from training.config import TrainConfig
from training.config.checks import check_given
from training.config.cli import resumed_config
from training.config.migration import migrate_config
from training.errors import ForeignOptionError, UserError
from training.run_log import read_metrics
from training.start import read_status

# What a comparison itself sets.
RESERVED = {"quantizer", "lr", "seed", "epochs", "steps", "out"}
TRUTH = {"true": True, "false": False}
# What may differ between what was asked for and what a folder holds.
FREE = {"out", "data_dir", "device"}


@dataclass(frozen=True)
class Plan:
    """A comparison.

    Attributes:
        quantizers: Names as ``train.py --quantizer`` has them, with options of their own after
            colons: ``ddcl-em:balance=0:init=random``.
        options: The options of every run, by their names in :meth:`TrainConfig.from_options`.
        lrs: Learning rates to sweep on the first seed; the validation split chooses.
        seeds: Number of seeds, from 0.
        out: The folder.
    """

    quantizers: tuple[str, ...]
    options: dict[str, Any]
    lrs: tuple[float, ...]
    seeds: int
    out: Path

    def config(self, quantizer: str, lr: float, seed: int) -> TrainConfig:
        """The options of one run."""
        name, *parts = quantizer.split(":")
        out = str(self.folder(quantizer, lr, seed))
        own = {"quantizer": name, "lr": lr, "seed": seed, "out": out} | parse_settings(parts)
        return TrainConfig.from_options(**(self.options | own))

    def folder(self, quantizer: str, lr: float, seed: int) -> Path:
        """Its run folder."""
        name = re.sub(r"[^\w.]+", "-", quantizer)
        return self.out / "runs" / f"{name}-lr{lr:g}-seed{seed}"

    def check(self) -> None:
        """Refuse a comparison that could not be trained, before any of it is.

        Raises:
            UserError: If a name, an option or a value is wrong, or does nothing for a quantizer, or
                if two runs would share a folder.
        """
        folders = [str(self.folder(q, lr, 0)) for q in self.quantizers for lr in self.lrs]
        if len(set(folders)) < len(folders):
            raise UserError(
                f"each quantizer and each learning rate once, got {','.join(self.quantizers)} and "
                f"{','.join(f'{lr:g}' for lr in self.lrs)}"
            )
        for quantizer, lr in itertools.product(self.quantizers, self.lrs):
            try:
                config = self.config(quantizer, lr, 0)
                values = config.options()
                changed = [n for n, s in config.fields().items() if values[n] != s.default]
                check_given(config, changed)
            except ForeignOptionError as error:
                raise UserError(
                    f"{error}; or give it to one quantizer alone, as in vq-ema:decay=0.9"
                ) from error


def train_all(runs: Sequence[tuple[str, float, int]], plan: Plan, jobs: int) -> None:
    """Train the runs that have not ended, several at a time.

    A run that diverges has ended: it is no reason to stop the others.

    Raises:
        UserError: If a folder holds another run, or options make no model, before any is trained;
            or at the end, if one failed.
    """
    waiting = [r for r in runs if not finished(plan, *r) and not diverged(plan.folder(*r))]
    for quantizer in {quantizer for quantizer, *_ in waiting}:
        new_model(plan.config(quantizer, plan.lrs[0], 0).model_config(total_steps=1))
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ThreadPoolExecutor(jobs) as pool:
        failed = [f for f in pool.map(lambda run: _train_one(plan, run, threads), waiting) if f]
    if failed:
        raise UserError(
            f"{len(failed)} of {len(waiting)} runs failed, the first {failed[0]}, with "
            f"{_last_line(failed[0])!r}: mend it and call again; what is done is not trained again"
        )


def _last_line(folder: Path) -> str:
    """What a run said last."""
    lines = (folder / "train.log").read_text(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing in train.log")


def _train_one(plan: Plan, run: tuple[str, float, int], threads: int) -> Path | None:
    """Train or go on in a process of its own; the folder if that failed."""
    folder = plan.folder(*run)
    print(f"training {folder.name}", file=sys.stderr)
    with (
        contextlib.suppress(BrokenProcessPool),  # killed: the folder tells
        ProcessPoolExecutor(1, get_context("spawn"), _share_cores, (threads,)) as process,
    ):
        process.submit(train_logged, plan.config(*run)).result()
    if diverged(folder):
        print(f"{folder.name} diverged", file=sys.stderr)
        return None
    return None if finished(plan, *run) else folder


def _share_cores(threads: int) -> None:
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads)


def train_logged(config: TrainConfig) -> None:
    """Train or go on, with what it prints and its error, if any, in the folder's train.log."""
    folder = Path(str(config.run.out))
    folder.mkdir(parents=True, exist_ok=True)
    with (
        (folder / "train.log").open("a") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        try:
            resume = (folder / "last.pt").exists()
            train(resumed_config({"out": str(folder)}) if resume else config, resume=resume)
        except (UserError, OSError) as error:
            print(f"Error: {error}")
        except (KeyboardInterrupt, SystemExit):
            pass  # the run is saved and has said so
        except Exception:
            traceback.print_exc()


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Options of ``train.py`` as fields of its config.

    Raises:
        UserError: If one is not NAME=VALUE, or there is no such option, or no such value.

    Example:
        >>> parse_settings(["hidden-channels=48", "augment=false"])
        {'hidden_channels': 48, 'augment': False}
    """
    kinds = TrainConfig.kinds()
    given: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = name.replace("-", "_")
        if name in RESERVED:
            raise UserError(
                f"{name} is what the command itself sets, got {setting!r}: see its --help"
            )
        if name not in kinds:
            near = difflib.get_close_matches(name, kinds, n=1)
            hint = f"did you mean {near[0].replace('_', '-')}?" if near else "see train.py --help"
            raise UserError(f"train.py has no option {name.replace('_', '-')!r}: {hint}")
        if not equals:
            raise UserError(f"options are given as NAME=VALUE, got {setting!r}")
        try:
            given[name] = TRUTH[text] if kinds[name] is bool else kinds[name](text)
        except (ValueError, KeyError) as error:
            own = kinds[name].__name__
            kind = "true or false" if own == "bool" else f"a value of type {own}"
            raise UserError(f"{name} needs {kind}, got {text!r}") from error
    return given


def finished(plan: Plan, quantizer: str, lr: float, seed: int) -> bool:
    """Whether a run has ended.

    Raises:
        UserError: If its folder holds a run of other options.
    """
    folder = plan.folder(quantizer, lr, seed)
    if not (folder / "config.json").exists():
        return False
    saved = migrate_config(saved_config(folder))
    for name in TrainConfig.fields():
        if name not in saved:
            raise UserError(f"{folder} was trained by a version without {name}: give another --out")
    has = TrainConfig.from_dict(saved).options(defaults=True)
    asked = plan.config(quantizer, lr, seed).options(defaults=True)
    for name, value in asked.items():
        open_ = name in FREE or (name == "dataset" and value == "auto")
        if not open_ and has.get(name) != value:
            raise UserError(
                f"{folder} was trained with {name} {has.get(name)}, this comparison asks for "
                f"{value}: give another --out"
            )
    return len(lines_of(folder, "test")) >= asked["epochs"]


def lines_of(folder: Path, split: str) -> list[dict[str, Any]]:
    """The lines of a split, one for each epoch."""
    path = folder / "metrics.jsonl"
    lines = read_metrics(path) if path.exists() else []
    return [line for line in lines if line["split"] == split]


def saved_config(folder: Path) -> dict[str, Any]:
    """The options that a run folder was trained with.

    Raises:
        UserError: If they cannot be read.
    """
    try:
        saved: dict[str, Any] = json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise UserError(f"{folder}/config.json is damaged ({error}): remove the folder") from error
    return saved


def diverged(folder: Path) -> bool:
    """Whether a run ended by losing its numbers, as it would again."""
    return bool(read_status(folder)["status"] == "diverged")
