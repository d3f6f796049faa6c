"""--perceptual-weight: LPIPS in the loss of a run."""

from __future__ import annotations

import pytest
import torch
from small_runs import arguments, command, metrics, run_small, snapshot, without_figures

from training.config import TrainConfig
from training.data.splits import load_splits
from training.errors import UserError
from training.losses import PerceptualDistance
from training.trainer import Trainer


@pytest.fixture
def squeeze(shared):
    return shared / "lpips" / "squeezenet1_1_features.pth"


def test_the_loss_has_the_distance_times_its_weight(tmp_path, squeeze):
    options = {"dataset": "patches", "hidden_channels": 8, "residual_channels": 8,
               "codebook_size": 16, "codebook_dim": 8, "batch_size": 16}  # fmt: skip
    splits = load_splits("patches", limit_train=16, limit_test=4)
    losses, sums = [], []
    for weight in (0.0, 2.0):
        file = str(squeeze) if weight else None
        config = TrainConfig.from_options(**options, perceptual_weight=weight, lpips_weights=file)
        trainer = Trainer(config, splits, tmp_path)
        batch = next(trainer.feed.epoch(0, 0))
        trainer.train_step(batch)
        losses.append(trainer.loss)
        sums.append(trainer.sums)
    assert losses[1] - losses[0] == pytest.approx(2 * sums[1]["lpips"], rel=1e-4)
    assert "lpips" not in sums[0]
    assert sums[1]["lpips"] > 0.05


def test_training_with_it_lowers_the_distance(tmp_path, squeeze, monkeypatch):
    without_figures(monkeypatch)
    distance = PerceptualDistance("squeeze", squeeze)
    options = {"lpips_weights": str(squeeze), "perceptual_weight": 5.0, "epochs": 4}
    folder = run_small(tmp_path / "with", **options)
    values = [line["lpips"] for line in metrics(folder) if line["split"] == "train"]
    assert values[-1] < values[0]
    assert not any("perceptual" in name for name in torch.load(folder / "last.pt")["model"])
    assert distance.net == "squeeze"


def test_missing_weights_are_one_line_before_anything_is_written(tmp_path):
    before = snapshot(tmp_path)
    result = command(
        *arguments(out=tmp_path / "run", perceptual_weight=1, lpips_weights=tmp_path / "none.pth")
    )
    assert result.exit_code == 2
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert f"--lpips-weights {tmp_path / 'none.pth'}: there is no such file" in errors[0]
    assert snapshot(tmp_path) == before


def test_weights_without_their_use_are_refused(tmp_path):
    result = command(*arguments(out=tmp_path / "run", lpips="vgg"))
    assert result.exit_code == 2
    assert "--lpips does nothing without --perceptual-weight" in result.stderr
    with pytest.raises(UserError, match="lpips_weights does nothing without perceptual_weight"):
        TrainConfig.from_options(lpips_weights="some.pth")
