"""The run folder: metrics.jsonl, checkpoints, TensorBoard events, the table."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_runs import (
    STEPS_PER_EPOCH,
    checkpoint,
    differences,
    metrics,
    run_small,
    small,
    untimed,
    without_figures,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from training import callbacks
from training import metrics as training_metrics
from training.checkpoint import load_model
from training.data import splits as data_splits
from training.data.feed import to_float
from training.figures.tensorboard import GRID_IMAGES

REQUIRED = {
    "epoch", "step", "split", "mse_soft", "mse_argmax", "psnr_soft", "psnr_argmax", "utilization",
    "dead_codes", "perplexity", "codes_per_token", "loss_q", "loss_ols", "variance", "temperature",
    "temperature_ratio", "images_per_second",
}  # fmt: skip
QUANTIZERS = ("ddcl-em", "vq", "vq-ema")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """One finished run of each quantizer, ddcl and none with figures."""
    root = tmp_path_factory.mktemp("runs")
    folders = {name: run_small(root / name, quantizer=name) for name in ("ddcl-em", "none")}
    with pytest.MonkeyPatch.context() as patch:
        without_figures(patch)
        for name in ("vq", "vq-ema"):
            folders[name] = run_small(root / name, quantizer=name)
    return folders


def events(folder: Path, split: str) -> EventAccumulator:
    return EventAccumulator(str(folder / split), size_guidance={"images": 0, "scalars": 0}).Reload()


# --- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantizer", [*QUANTIZERS, "none"])
def test_metrics_have_a_line_per_epoch_and_split_with_the_required_keys(runs, quantizer):
    lines = metrics(runs[quantizer])
    assert [(line["epoch"], line["step"], line["split"]) for line in lines] == [
        (epoch, epoch * STEPS_PER_EPOCH, split)
        for epoch in (1, 2)
        for split in ("train", "val", "test")
    ]
    for line in lines:
        train = line["split"] == "train"
        missing = REQUIRED - line.keys()
        assert missing == ({"mse_argmax", "psnr_soft", "psnr_argmax"} if train else set())
        assert ("loss" in line) == train
        numbers = {key: value for key, value in line.items() if key != "split"}
        assert all(value is None or isinstance(value, int | float) for value in numbers.values())


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_figures_of_every_line_are_consistent(runs, quantizer):
    for line in metrics(runs[quantizer]):
        assert line["loss_q"] == pytest.approx(line["loss_ols"] + line["variance"], rel=1e-5)
        assert line["loss_q"] > 0
        assert line["utilization"] == (16 - line["dead_codes"]) / 16
        assert 1 <= line["perplexity"] <= 16 - line["dead_codes"] + 1e-9
        assert line["images_per_second"] > 0
        if quantizer == "ddcl-em":
            assert line["variance"] > 0
            assert 1 < line["codes_per_token"] < 16
            assert 0 < line["temperature_ratio"] < 1
            assert line["temperature"] > 0
        else:
            assert (line["variance"], line["codes_per_token"]) == (0, 1)
            assert line["commitment_loss"] == line["codebook_loss"] == line["loss_q"]
            assert line["temperature"] is line["temperature_ratio"] is None
            if line["split"] != "train":
                assert line["mse_soft"] == line["mse_argmax"]


@pytest.mark.parametrize("quantizer", [*QUANTIZERS, "none"])
def test_the_training_loss_is_the_weighted_sum_of_its_terms(runs, quantizer):
    images = data_splits.load_splits("patches", limit_train=256, limit_test=1).train / 255
    variance = np.mean([images[:, channel].var().item() for channel in range(3)])
    weights = {
        "ddcl-em": {"loss_q": 0.1, "usage_kl": 0.0},
        "vq": {"codebook_loss": 1.0, "commitment_loss": 0.25},
        "vq-ema": {"commitment_loss": 0.25},
        "none": {},
    }[quantizer]
    for line in metrics(runs[quantizer]):
        if line["split"] == "train":
            terms = [weight * line[name] for name, weight in weights.items()]
            expected = line["mse_soft"] / variance + sum(terms)
            assert line["loss"] == pytest.approx(expected, rel=1e-5)


def test_the_config_and_both_checkpoints_are_plain_data(runs):
    for quantizer, folder in runs.items():
        config = json.loads((folder / "config.json").read_text())
        assert config == small(folder, quantizer=quantizer).options()
        for name in ("last.pt", "best.pt"):
            state = checkpoint(folder, name)  # with weights_only=True
            assert state["config"] == config
            assert load_model(state).codebook.codebook_size == (1 if quantizer == "none" else 16)
        assert checkpoint(folder)["step"] == 2 * STEPS_PER_EPOCH
        assert not [path for path in folder.rglob(".*")]  # no temporary files


def test_the_best_checkpoint_is_of_the_lowest_validation_error(tmp_path, monkeypatch):
    without_figures(monkeypatch)
    validation, test = iter([0.3, 0.1, 0.2]), iter([0.3, 0.2, 0.1])
    real = training_metrics.evaluate_split
    images = data_splits.load_splits("patches", limit_train=1, limit_test=64)

    def evaluate_split(model, split):
        forged = validation if torch.equal(split, images.val) else test
        return real(model, split) | {"mse_argmax": next(forged), "mse_soft": 0.5}

    monkeypatch.setattr(training_metrics, "evaluate_split", evaluate_split)
    folder = run_small(tmp_path / "run", quantizer="vq", epochs=3)
    best = checkpoint(folder, "best.pt")
    assert best["step"] == 2 * STEPS_PER_EPOCH
    assert best["best"] == checkpoint(folder)["best"] == 0.1
    epochs = [line["mse_argmax"] for line in metrics(folder) if line["split"] == "val"]
    assert epochs == [0.3, 0.1, 0.2]


@pytest.mark.parametrize("quantizer", ["ddcl-em", "none"])
def test_the_test_split_chooses_nothing(runs, tmp_path, monkeypatch, quantizer):
    without_figures(monkeypatch)
    real = data_splits.load_splits

    def load_splits(*args, **options):
        splits = real(*args, **options)
        noise = torch.randint(0, 256, splits.test.shape, dtype=torch.uint8)
        return replace(splits, test=noise)

    monkeypatch.setattr(data_splits, "load_splits", load_splits)
    folder = run_small(tmp_path / "run", quantizer=quantizer)
    for name in ("best.pt", "last.pt"):
        first, second = checkpoint(runs[quantizer], name), checkpoint(folder, name)
        for part in ("model", "optimizer", "trackers", "step", "best"):
            assert differences(first[part], second[part], part) == []
    for before, after in zip(untimed(runs[quantizer]), untimed(folder), strict=True):
        assert (before == after) == (before["split"] != "test")


# --- TensorBoard --------------------------------------------------------------------------------


def test_tensorboard_has_every_number_of_the_metrics(runs):
    names = {
        "reconstruction": ["loss", "mse_soft", "mse_argmax", "psnr_soft", "psnr_argmax"],
        "codebook": [
            "loss_q", "loss_ols", "variance", "usage_kl", "utilization", "dead_codes",
            "perplexity", "codes_per_token",
        ],
        "temperature": ["temperature", "temperature_ratio"],
        "speed": ["images_per_second"],
    }  # fmt: skip
    logs = {split: events(runs["ddcl-em"], split) for split in ("train", "val", "test")}
    lines = metrics(runs["ddcl-em"])
    found = 0
    for group, keys in names.items():
        for key in keys:
            for split in ("train", "val", "test"):
                expected = [
                    (line["step"], pytest.approx(line[key], rel=1e-6))
                    for line in lines
                    if line["split"] == split and key in line
                ]
                if expected:
                    points = logs[split].Scalars(f"{group}/{key}")
                    assert [(point.step, point.value) for point in points] == expected
                    found += 1
    assert found == 3 * 16 - 3 - 2  # train has three figures less, the others no loss


def test_tensorboard_has_the_usage(runs):
    log = events(runs["ddcl-em"], "train")
    steps = [STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH]
    train = [line for line in metrics(runs["ddcl-em"]) if line["split"] == "train"]
    for key in ("utilization", "dead_codes", "perplexity"):
        points = log.Scalars(f"usage/{key}")
        assert [p.step for p in points] == steps
        assert [p.value for p in points] == pytest.approx([line[key] for line in train])
    for tag in ("usage/usage_curve", "usage/usage_history"):
        pictures = log.Images(tag)
        assert [p.step for p in pictures] == steps
        for picture in pictures:
            pixels = np.asarray(Image.open(io.BytesIO(picture.encoded_image_string)))
            assert min(pixels.shape[:2]) >= 300
            assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 20  # drawn
    [text] = log.Tensors("usage/dead/text_summary")[-1].tensor_proto.string_val
    assert text.decode().startswith(f"{train[-1]['dead_codes']} of 16: ")


def test_tensorboard_has_inputs_above_soft_and_argmax_reconstructions(runs):
    images = data_splits.load_splits("patches", limit_train=1, limit_test=64).test[:GRID_IMAGES]
    for quantizer, rows in (("ddcl-em", 3), ("none", 2)):
        pictures = events(runs[quantizer], "test").Images("reconstruction/input_soft_argmax")
        assert [p.step for p in pictures] == [STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH]
        pixels = np.asarray(Image.open(io.BytesIO(pictures[-1].encoded_image_string)))
        assert pixels.shape == (33 * rows + 1, 33 * GRID_IMAGES + 1, 3)
        model = load_model(checkpoint(runs[quantizer]))
        batch = to_float(images)
        modes = ["soft", "argmax"][: rows - 1]
        expected = [batch, *(model.reconstruct(batch, mode) for mode in modes)]
        for row, recons in enumerate(expected):
            for column, recon in enumerate(recons):
                top, left = 33 * row + 1, 33 * column + 1
                shown = pixels[top : top + 32, left : left + 32] / 255
                difference = np.abs(shown - recon.permute(1, 2, 0).numpy())
                assert difference.max() < 1.01 / 255


def test_tensorboard_has_the_pictures_that_take_time_at_the_end_and_every_few_epochs(
    runs, tmp_path, monkeypatch
):
    tags = {f"pictures/{name}" for name in ("reconstructions", "token_map", "gallery")}
    log = events(runs["ddcl-em"], "val")
    assert set(log.Tags()["images"]) == tags
    for tag in tags:
        pictures = log.Images(tag)
        assert [picture.step for picture in pictures] == [STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH]
        assert {picture.width for picture in pictures} == {480}
    written = []
    monkeypatch.setattr(callbacks, "write_epoch", lambda *args: None)
    monkeypatch.setattr(callbacks, "write_pictures", lambda _, run: written.append(run.step))
    monkeypatch.setattr(callbacks, "PICTURES_EVERY", 3)
    run_small(tmp_path / "run", quantizer="vq", epochs=5)
    assert written == [STEPS_PER_EPOCH * epoch for epoch in (1, 3, 5)]


def test_a_picture_that_fails_costs_no_checkpoint(tmp_path, monkeypatch, capsys):
    def fail(*args: object) -> None:
        raise RuntimeError("no such colour")

    monkeypatch.setattr(callbacks, "write_epoch", fail)
    folder = run_small(tmp_path / "run", epochs=1)
    assert checkpoint(folder)["step"] == STEPS_PER_EPOCH
    assert (folder / "best.pt").exists()
    assert "no pictures of epoch 1: no such colour" in capsys.readouterr().err


def test_without_codes_there_is_no_usage_in_tensorboard(runs):
    for split in ("train", "val", "test"):
        tags = events(runs["none"], split).Tags()
        pictures = {"test": "reconstruction/input_soft_argmax", "val": "pictures/reconstructions"}
        assert tags["images"] == ([pictures[split]] if split in pictures else [])
        assert not [tag for tag in tags["scalars"] if "utilization" in tag or "argmax" in tag]
