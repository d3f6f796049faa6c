"""The VQ-VAE of ``train.py`` on CIFAR-10 at constant T / T_c, or constant T, over epsilon."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from tqdm import tqdm

from softvq import DDCLCodebook
from training.callbacks import Callback
from training.checkpoint import write_text
from training.config import TrainConfig
from training.data.feed import to_float
from training.data.splits import ImageSplits, load_splits
from training.errors import UserError
from training.run_log import read_metrics
from training.trainer import Trainer

from .blocks import columns
from .measures import measures
from .results import opened, save

CONTROLS = ("follows", "fixed")
# Images that the prototypes are measured on, of the validation split.
WATCHED_IMAGES = 128
# What the study is about: no restarts and no usage term, that would hide a collapse.
STUDY: dict[str, Any] = {
    "quantizer": "ddcl", "recipe": "paper", "lr_schedule": "constant", "usage_weight": 0.0,
    "restart_threshold": 0.0,
}  # fmt: skip
# What a study itself sets; the data too, for files and tables are named after CIFAR-10.
RESERVED = {
    "dataset", "quantizer", "recipe", "lr", "lr_schedule", "epochs", "steps", "epsilon", "seed",
    "temperature_mode", "temperature_start", "temperature_end", "normalize_latents", "out",
    "levels", "level_pool", "level_sizes", "level_dropout",
}  # fmt: skip
SMALL: dict[str, Any] = {
    "dataset": "cifar10",
    "hidden_channels": 24, "residual_channels": 12, "codebook_size": 64, "codebook_dim": 8,
    "limit_train": 1280, "limit_test": 128, "batch_size": 64,
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
        epochs: Of each run.
        lr: Learning rate of encoder and decoder (Adam).
        settings: Other fields of :class:`TrainConfig`, over those of a run of seconds.
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
        history: Of :func:`measures`, with ``step``; on the first validation images.
    """

    def __init__(self) -> None:
        self.history: list[dict[str, Any]] = []

    def on_start(self, trainer: Trainer) -> None:
        """Measure."""
        self._measure(trainer)

    def on_epoch(self, trainer: Trainer, lines: list[dict[str, Any]]) -> None:
        """Measure."""
        self._measure(trainer)

    @torch.no_grad()
    def _measure(self, trainer: Trainer) -> None:
        images = to_float(trainer.splits.val[:WATCHED_IMAGES].to(trainer.device))
        codebook = cast(DDCLCodebook, trainer.model.levels[0])
        with trainer.model.evaluating():
            figures = measures(codebook, trainer.model(images).code)
        self.history.append({"step": trainer.step} | figures)


def study_cifar10(options: Cifar10Options, out: Path) -> dict[str, Any]:
    """Train what is not there yet; a run that was interrupted starts anew.

    Args:
        options: What to sweep.
        out: Folder; gets ``stability.json`` and the run folders.

    Returns:
        As the study of the mixture; ``history`` has ``mse_soft`` and ``mse_argmax`` of
        the validation images, too, None at the start.

    Raises:
        UserError: If an option is out of range, the data is missing, or the folder holds a study
            of other options.
        KeyboardInterrupt: After Ctrl-C; what ended is kept.
    """
    runs = {
        f"epsilon/vqvae/{control}/{epsilon:g}/{ratio:g}/{seed}": (
            control,
            epsilon,
            ratio,
            seed,
        )
        for seed in range(options.seeds)
        for control in options.controls
        for ratio in options.ratios
        for epsilon in options.epsilons
    }
    configs = {name: config_of(options, *run) for name, run in runs.items()}
    result = opened(out, "cifar10", asdict(options), free=("seeds",))
    waiting = [name for name in runs if name not in result["runs"]]
    if not waiting:
        return result
    one = configs[waiting[0]]
    splits = load_splits(
        one.dataset, one.data_dir, limit_train=one.limit_train, limit_test=one.limit_test
    )
    for name in tqdm(waiting, unit="run", disable=None):
        control, epsilon, ratio, seed = runs[name]
        folder = out / "runs" / name.replace("/", "-")
        history = train_watched(configs[name], control, splits, folder)
        init = "kmeans" if configs[name].kmeans_init else "random"
        about = {"control": control, "epsilon": epsilon, "ratio": ratio, "seed": seed, "init": init}
        result["runs"][name] = [about | {"history": columns(history)}]
        save(result, out)
    return result


def config_of(
    options: Cifar10Options, control: str, epsilon: float, ratio: float, seed: int
) -> TrainConfig:
    """The options of a run; T of a fixed one is set once its latents are known.

    Raises:
        UserError: If there are fewer than two prototypes, or an option is out of range.
    """
    own = {
        "epochs": options.epochs,
        "lr": options.lr,
        "epsilon": epsilon,
        "seed": seed,
        "temperature_mode": "critical",
        "temperature_start": ratio,
        "temperature_end": ratio,
        "normalize_latents": control == "follows",
    }
    config = TrainConfig(**(SMALL | STUDY | options.settings | own))
    if config.codebook_size < 2:
        raise UserError(
            f"--set codebook_size={config.codebook_size}: a study measures distances between "
            "prototypes; give 2 or more"
        )
    return config


def train_watched(
    config: TrainConfig, control: str, splits: ImageSplits, folder: Path
) -> list[dict[str, Any]]:
    """Train one run into its folder; its history, an entry for the start and for each epoch.

    Raises:
        KeyboardInterrupt: After a signal.
    """
    config = replace(config, out=str(folder))
    if control == "fixed":
        unstarted = Trainer(config, splits, folder)
        temperature = cast(DDCLCodebook, unstarted.model.levels[0]).temperature.item()
        config = replace(
            config, temperature_mode="constant", temperature_start=temperature, temperature_end=None
        )
    watch = Watch()
    trainer = Trainer(config, splits, folder, callbacks=[watch])
    write_text(folder / "config.json", config.to_json())
    if trainer.run() is not None:
        raise KeyboardInterrupt
    lines = [line for line in read_metrics(folder / "metrics.jsonl") if line["split"] == "val"]
    errors = [{"mse_soft": None, "mse_argmax": None}, *lines]
    return [
        entry | {name: line[name] for name in ("mse_soft", "mse_argmax")}
        for entry, line in zip(watch.history, errors, strict=True)
    ]
