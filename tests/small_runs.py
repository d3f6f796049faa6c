"""Training runs of about a second, and what tests compare of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import train
from training import trainer
from training.callbacks import Callback, Pictures, standard_callbacks
from training.config import TrainConfig
from training.trainer import Trainer

# 8 steps an epoch.
SMALL: dict[str, Any] = {
    "dataset": "patches",
    "limit_train": 256,
    "limit_test": 64,
    "hidden_channels": 8,
    "residual_channels": 8,
    "codebook_size": 16,
    "codebook_dim": 8,
    "batch_size": 32,
    "epochs": 2,
}
STEPS_PER_EPOCH = 8
# Of a metrics line: they depend on the machine's mood.
TIMING = {"images_per_second"}


def without_figures(patch: pytest.MonkeyPatch) -> None:
    """Leave out what takes most of a small run's time; test_run_log.py looks at it."""
    patch.setattr(Pictures, "on_epoch", lambda *args: None)


class AtStep(Callback):
    """Does something at the end of a training step, once."""

    def __init__(self, step: int, act: Callable[[], object]) -> None:
        self.step, self.act = step, act

    def on_step(self, trainer: Trainer) -> None:
        if trainer.step == self.step:
            self.step = -1
            self.act()


def at_step(patch: pytest.MonkeyPatch, step: int, act: Callable[[], object]) -> None:
    """Every run to come does something at a step, also one from the command line."""
    watch = AtStep(step, act)
    patch.setattr(trainer, "standard_callbacks", lambda rank: [watch, *standard_callbacks(rank)])


def small(out: Path | None, **options: Any) -> TrainConfig:
    return TrainConfig.from_options(**(SMALL | options), out=str(out) if out else None)


def run_small(out: Path | None, **options: Any) -> Path:
    return train.train(small(out, **options))


def arguments(**options: Any) -> list[str]:
    """Options as one writes them; a value of None leaves the option out."""
    return [
        word
        for name, value in (SMALL | options).items()
        if value is not None
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def command(*words: object) -> Result:
    """``python train.py WORDS``, in this process."""
    return CliRunner().invoke(train.main, [str(word) for word in words])


def refuse_constant(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl, each strict JSON."""
    text = (folder / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=refuse_constant) for line in text.splitlines()]


def untimed(folder: Path) -> list[dict[str, Any]]:
    """Metrics without what no two runs share."""
    return [{k: v for k, v in line.items() if k not in TIMING} for line in metrics(folder)]


def checkpoint(folder: Path, name: str = "last.pt") -> dict[str, Any]:
    return torch.load(folder / name, weights_only=True)


def differences(first: Any, second: Any, at: str = "") -> list[str]:
    """Where two checkpoints differ, bit for bit; NaN differs from everything."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return [] if first.dtype == second.dtype and torch.equal(first, second) else [at]
    if isinstance(first, dict) and isinstance(second, dict):
        if first.keys() != second.keys():
            return [f"{at} keys"]
        return [d for key in first for d in differences(first[key], second[key], f"{at}/{key}")]
    if isinstance(first, list) and isinstance(second, list):
        if len(first) != len(second):
            return [f"{at} length"]
        pairs = enumerate(zip(first, second, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{at}/{i}")]
    return [] if type(first) is type(second) and first == second else [at]


def assert_equal_ends(whole: Path, resumed: Path) -> None:
    for name in ("last.pt", "best.pt"):
        first, second = checkpoint(whole, name), checkpoint(resumed, name)
        for part in ("model", "optimizer", "trackers", "sums", "step", "best", "model_config"):
            assert differences(first[part], second[part], f"{name} {part}") == []
    assert untimed(resumed) == untimed(whole)


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def evaluate(*words: object) -> Result:
    """``python -m eval WORDS``, in this process."""
    from eval.__main__ import main

    return CliRunner().invoke(main, [str(word) for word in words])


def assert_refused(result: Result, status: int, message: str) -> None:
    """A call ended with a status and one line that says why."""
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert (result.exit_code, len(errors)) == (status, 1), result.output
    assert message in errors[0]
