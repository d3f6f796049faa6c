"""Models of several levels, from training to the report."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from small_runs import (
    arguments,
    checkpoint,
    command,
    differences,
    metrics,
    run_small,
    untimed,
    without_figures,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from eval.__main__ import main
from eval.report.levels import level_ablation
from eval.run import open_run
from training.data.feed import to_float
from training.metrics import evaluate_split

FEW = ("--limit-test", "64", "--refit-steps", "2")
RUNS = {
    "pyramid": {"levels": 3, "level_pool": "4,2,1", "level_sizes": "5,9,16"},
    "vqvae2": {"architecture": "vqvae2"},
    "one": {},
}


@pytest.fixture(autouse=True)
def undrawn(request, monkeypatch):
    if "tensorboard" not in request.node.name:
        without_figures(monkeypatch)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        without_figures(patch)
        return {name: run_small(root / name, epochs=1, **options) for name, options in RUNS.items()}


def test_a_run_of_levels_goes_on_where_it_was_stopped(tmp_path):
    options = RUNS["vqvae2"] | {"quantizer": "vq-ema", "lr_schedule": "constant"}
    options |= {"level_dropout": 0.3}
    whole = run_small(tmp_path / "whole", **options)
    out = run_small(tmp_path / "run", **options, epochs=1)
    assert command("--resume", "--epochs", 2, "--out", out).exit_code == 0
    for part in ("model", "optimizer", "trackers"):
        assert differences(checkpoint(whole)[part], checkpoint(out)[part], part) == []
    assert untimed(whole) == untimed(out)


def test_evaluation_counts_the_tokens_of_every_level(runs):
    run = open_run(runs["pyramid"])
    figures = evaluate_split(run.model, run.test_images, batch_size=20)
    tokens = run.model.split(run.model.tokens(to_float(run.test_images)))
    for level, part, size in zip(figures["levels"], tokens, (5, 9, 16), strict=True):
        counts = torch.bincount(part.flatten(), minlength=size).double()
        share = counts[counts > 0] / counts.sum()
        assert level["utilization"] == pytest.approx((counts > 0).double().mean())
        assert level["perplexity"] == pytest.approx(float((-share * share.log()).sum().exp()))
        assert level["dead_codes"] == (counts == 0).sum()


def test_the_ablation_by_hand(runs):
    run = open_run(runs["pyramid"])
    rows = level_ablation(run.model, run.test_images, batch_size=20)
    batch = to_float(run.test_images)
    with torch.no_grad():
        tokens = run.model.split(run.model.tokens(batch))
        codes = run.model.codes(tokens)

        def psnr(codes):
            mse = (run.model.decode_codes(codes).clamp(0, 1) - batch).square().mean(dim=(1, 2, 3))
            return float(-10 * mse.log10().mean())

        for number in range(3):
            assert rows[number]["prefix_psnr"] == pytest.approx(psnr(codes[: number + 1]), abs=1e-4)
            mean = codes[number].mean(dim=(0, 1, 2)).expand_as(codes[number])
            without = [*codes[:number], mean, *codes[number + 1 :]]
            drop = psnr(codes) - psnr(without)
            assert rows[number]["psnr_drop_without"] == pytest.approx(drop, abs=1e-3)
    assert [row["tokens_per_image"] for row in rows] == [4, 16, 64]
    bits = 4 * math.log2(5) + 16 * math.log2(9) + 64 * 4
    assert rows[-1]["prefix_bits_per_pixel"] == pytest.approx(bits / 1024)


def test_the_report_has_a_line_for_each_level(runs, tmp_path):
    out = tmp_path / "report.json"
    result = CliRunner().invoke(main, ["report", str(runs["pyramid"]), "--json", str(out), *FEW])
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text())
    assert figures["codebook_size"] == [5, 9, 16]
    assert figures["tokens_per_image"] == 84
    assert figures["bits_per_pixel"] == pytest.approx(
        figures["levels"][-1]["prefix_bits_per_pixel"]
    )
    assert figures["psnr_argmax"] == pytest.approx(figures["levels"][-1]["prefix_psnr"], abs=1e-4)
    table = result.stdout.split("level ")[1].splitlines()
    assert [line.split()[:2] for line in table[1:4]] == [["1", "5"], ["2", "9"], ["3", "16"]]
    assert "K = 5 + 9 + 16" in result.stdout


def test_tensorboard_has_every_level(tmp_path):
    run = run_small(tmp_path / "run", epochs=1, **RUNS["pyramid"])
    events = EventAccumulator(str(run / "train"), size_guidance={"images": 0})
    events.Reload()
    tags = events.Tags()
    line = metrics(run)[0]
    for number, level in enumerate(line["levels"], start=1):
        for key in ("utilization", "perplexity", "loss_q"):
            [scalar] = events.Scalars(f"codebook_level_{number}/{key}")
            assert scalar.value == pytest.approx(level[key], rel=1e-5)
        assert f"temperature_level_{number}/temperature_ratio" in tags["scalars"]
        assert f"usage_level_{number}/usage_curve" in tags["images"]
    [scalar] = events.Scalars("codebook/utilization")
    assert scalar.value == pytest.approx(min(level["utilization"] for level in line["levels"]))


def test_levels_through_the_command_line(tmp_path):
    words = arguments(levels=2, level_pool="2,1", epochs=1)
    result = command(*words, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert checkpoint(tmp_path / "run")["model_config"]["level_pools"] == [2, 1]
    result = command(*arguments(level_pool="2,1"), "--out", tmp_path / "other")
    assert result.exit_code == 2
    assert result.stderr == "Error: level_pool: for several levels only; give --levels, too\n"


def test_rate_and_distortion(runs, tmp_path):
    out, data = tmp_path / "rate.png", tmp_path / "rate.json"
    words = ["rate", runs["pyramid"], runs["one"], "-o", out, "--json", data, "--limit-test", 20]
    result = CliRunner().invoke(main, list(map(str, words)))
    assert result.exit_code == 0, result.output
    assert out.read_bytes().startswith(b"\x89PNG")
    figures = json.loads(data.read_text())
    curves = {curve["name"]: curve["points"] for curve in figures["curves"]}
    assert set(curves) == {
        "pyramid", "one", "jpeg, files", "jpeg, sheet", "webp, files", "webp, sheet",
    }  # fmt: skip
    assert [point["levels"] for point in curves["pyramid"]] == [1, 2, 3]
    run = open_run(runs["pyramid"], limit_test=20)
    rows = level_ablation(run.model, run.test_images)
    for point, row in zip(curves["pyramid"], rows, strict=True):
        # Pixels are rounded to eight bits.
        assert point["psnr"] == pytest.approx(row["prefix_psnr"], abs=0.05)
        assert point["bound_bits_per_pixel"] < point["bits_per_pixel"]
    for name in ("jpeg", "webp"):
        files, sheet = curves[f"{name}, files"], curves[f"{name}, sheet"]
        assert files[0]["bits_per_pixel"] > sheet[0]["bits_per_pixel"]
        rates = [point["bits_per_pixel"] for point in sheet]
        assert rates == sorted(rates)
        assert sheet[-1]["psnr"] > 30
    assert np.isfinite([p["ssim"] for points in curves.values() for p in points]).all()
    twice = CliRunner().invoke(main, ["rate", str(runs["one"]), str(runs["one"]), "-o", str(out)])
    assert twice.exit_code == 2
    assert twice.output == "Error: a run was given twice\n"


def test_pools_that_do_not_divide_the_grid_train_and_report(tmp_path):
    run = run_small(tmp_path / "run", epochs=1, levels=2, level_pool="3,2")
    out = tmp_path / "report.json"
    result = CliRunner().invoke(main, ["report", str(run), "--json", str(out), *FEW])
    assert result.exit_code == 0, result.output
    assert [level["tokens_per_image"] for level in json.loads(out.read_text())["levels"]] == [9, 16]
