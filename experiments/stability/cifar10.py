"""The VQ-VAE of ``train.py`` on CIFAR-10 at constant T / T_c, or constant T, over epsilon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from training.callbacks import Callback
from training.checkpoint import write_text
from training.config import TrainConfig
from training.data.feed import to_float
from training.data.splits import ImageSplits
from training.errors import UserError
from training.start import load_data
from training.trainer import Trainer

from .blocks import columns
from .measures import measures

CONTROLS = ("follows", "fixed")
# Images that the prototypes are measured on, of the validation split.
WATCHED_IMAGES = 128
# What a study itself sets; the data too, for files and tables are named after CIFAR-10.
STUDY: dict[str, Any] = {
    "dataset": "cifar10", "quantizer": "ddcl", "lr_schedule": "constant", "steps": None,
    "levels": None, "level_pool": None, "level_sizes": None, "temperature_mode": "critical",
}  # fmt: skip
# A run of seconds; without restarts and usage term, which would hide a collapse.
SMALL: dict[str, Any] = {
    "hidden_channels": 24, "residual_channels": 12, "codebook_size": 64, "codebook_dim": 8,
    "limit_train": 1280, "limit_test": 128, "batch_size": 64, "usage_weight": 0.0,
    "restart_threshold": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Cifar10Options:
    """What a study of the VQ-VAE sweeps.

    Attributes:
        epsilons: Encoder's learning rate over the prototypes'.
        ratios: T / T_c; at the start only, for T fixed.
        controls: ``follows``: T / T_c is held and latents are standardised; ``fixed``: T is
            held, and latents may shrink.
        seeds: Number of seeds, from 0.
        epochs: Number of epochs of each run.
        lr: Learning rate of encoder and decoder (Adam).
        settings: Other options of train.py by their flat names, over those of a run of seconds.
    """

    epsilons: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)
    ratios: tuple[float, ...] = (0.1, 0.5, 1.5)
    controls: tuple[str, ...] = CONTROLS
    seeds: int = 2
    epochs: int = 4
    lr: float = 2e-3
    settings: dict[str, Any] = field(default_factory=dict)


class Watch(Callback):
    """Measures the prototypes of a run at its start and after each epoch.

    Attributes:
        history: The :func:`measures` on the first validation images, with ``step``, ``mse_soft``
            and ``mse_argmax``, which are None at the start.
    """

    def __init__(self) -> None:
        self.history: list[dict[str, Any]] = []

    def on_start(self, trainer: Trainer) -> None:
        """Measure before the first step."""
        self._measure(trainer, {})

    def on_epoch(self, trainer: Trainer, lines: list[dict[str, Any]]) -> None:
        """Measure after an epoch."""
        self._measure(trainer, next(line for line in lines if line["split"] == "val"))

    @torch.no_grad()
    def _measure(self, trainer: Trainer, line: dict[str, Any]) -> None:
        images = to_float(trainer.splits.val[:WATCHED_IMAGES].to(trainer.device))
        level: Any = trainer.model.levels[0]
        with trainer.model.evaluating():
            figures = measures(level, trainer.model(images).code)
        errors = {name: line.get(name) for name in ("mse_soft", "mse_argmax")}
        self.history.append({"step": trainer.step} | figures | errors)


def cifar10_runs(
    options: Cifar10Options, out: Path
) -> dict[str, Callable[[], list[dict[str, Any]]]]:
    """Plan all runs; one that is interrupted starts anew.

    Args:
        options: What to sweep.
        out: Folder of the study.

    Returns:
        By name, what trains a run into its folder and returns its settings and history.

    Raises:
        UserError: If an option is out of range.
    """
    grid = product(range(options.seeds), options.controls, options.ratios, options.epsilons)

    def train(about: dict[str, Any], config: TrainConfig, folder: Path) -> list[dict[str, Any]]:
        history = train_watched(config, splits(), folder)
        init = "kmeans" if config.quantizer.kmeans_init else "random"
        return [about | {"init": init, "history": columns(history)}]

    runs: dict[str, Callable[[], list[dict[str, Any]]]] = {}
    for seed, control, ratio, epsilon in grid:
        about: dict[str, Any] = dict(control=control, epsilon=epsilon, ratio=ratio, seed=seed)
        config = config_of(options, **about)
        name = f"epsilon/vqvae/{control}/{epsilon:g}/{ratio:g}/{seed}"
        runs[name] = partial(train, about, config, out / "runs" / name.replace("/", "-"))
    splits = cache(lambda: load_data(config, tqdm.write)[1])  # The data are those of all runs.
    return runs


def config_of(
    options: Cifar10Options, control: str, epsilon: float, ratio: float, seed: int
) -> TrainConfig:
    """Return the options of a run; T of a fixed one is set once its latents are known.

    Raises:
        UserError: If there are fewer than two prototypes, or an option is out of range, or has a
            meaning of its own here.
    """
    own = STUDY | {
        "epochs": options.epochs, "lr": options.lr, "epsilon": epsilon, "seed": seed, "out": None,
        "temperature_start": ratio, "temperature_end": ratio,
        "normalize_latents": control == "follows",
    }  # fmt: skip
    for name in own.keys() & options.settings.keys():
        raise UserError(f"--set {name} has a meaning of its own here; see stability --help")
    config = TrainConfig.from_options(**(SMALL | options.settings | own))
    if config.model.codebook_size < 2:
        raise UserError(
            f"--set codebook_size={config.model.codebook_size}: a study measures distances "
            "between prototypes; give 2 or more"
        )
    return config


def train_watched(config: TrainConfig, splits: ImageSplits, folder: Path) -> list[dict[str, Any]]:
    """Train one run into its folder; return an entry for the start and for each epoch.

    Raises:
        KeyboardInterrupt: After a signal.
    """
    config = config.replace(out=str(folder))
    if not config.model.normalize_latents:  # T is to be fixed, as it is at the start.
        level: Any = Trainer(config, splits, folder).model.levels[0]
        config = config.replace(
            temperature_mode="constant",
            temperature_start=level.temperature.item(),
            temperature_end=None,
        )
    watch = Watch()
    trainer = Trainer(config, splits, folder, callbacks=[watch])
    write_text(folder / "config.json", config.to_json())
    if trainer.run() is not None:
        raise KeyboardInterrupt
    return watch.history
