"""Short runs on real CIFAR-10: the log tells a codebook that lives from one that collapses."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import checkpoint, metrics, without_figures

import train
from eval.doctor import diagnose
from eval.report.evaluate import evaluate_run
from training.config import TrainConfig

pytestmark = pytest.mark.slow

SIZES = {
    "limit_train": 4096,
    "limit_test": 512,
    "hidden_channels": 32,
    "residual_channels": 16,
    "codebook_size": 256,
    "codebook_dim": 16,
    "batch_size": 64,
    "epochs": 3,
}


@pytest.fixture(scope="module")
def runs(cifar10_dir, tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        without_figures(patch)
        return {
            quantizer: train.train(
                TrainConfig.from_options(
                    quantizer=quantizer,
                    dataset="cifar10",
                    data_dir=str(cifar10_dir),
                    out=str(root / quantizer),
                    **SIZES,
                )
            )
            for quantizer in ("ddcl-em", "vq", "vq-ema")
        }


def lines_of(folder: Path, split: str) -> list[dict]:
    return [line for line in metrics(folder) if line["split"] == split]


def test_every_code_of_ddcl_is_used_from_the_first_epoch(runs):
    train_lines = lines_of(runs["ddcl-em"], "train")
    assert [line["utilization"] for line in train_lines] == [1.0] * 3
    assert [line["dead_codes"] for line in train_lines] == [0] * 3
    # The first epoch sums up codes that still move.
    pairs = zip(train_lines, (150, 210, 210), strict=True)
    assert all(line["perplexity"] > low for line, low in pairs)
    assert all(0 < line["temperature_ratio"] < 1 for line in metrics(runs["ddcl-em"]))


def test_the_textbook_baseline_collapses_in_its_own_log(runs):
    last = lines_of(runs["vq"], "train")[-1]
    assert last["utilization"] < 0.5
    assert last["dead_codes"] == round(256 * (1 - last["utilization"]))
    assert last["perplexity"] < 25


def test_the_strong_baseline_uses_its_codes(runs):
    assert all(line["utilization"] > 0.9 for line in lines_of(runs["vq-ema"], "train"))
    assert lines_of(runs["vq-ema"], "train")[-1]["perplexity"] > 100


def test_tokens_reconstruct_real_images(runs):
    last = {name: lines_of(folder, "test")[-1] for name, folder in runs.items()}
    for name in ("ddcl-em", "vq-ema"):
        assert last[name]["mse_argmax"] < 0.013
        assert last[name]["mse_argmax"] < 0.6 * last["vq"]["mse_argmax"]
    assert last["ddcl-em"]["mse_argmax"] < 1.15 * last["ddcl-em"]["mse_soft"]
    for name, folder in runs.items():
        errors = [line["mse_argmax"] for line in lines_of(folder, "val")]
        assert errors == sorted(errors, reverse=True), name


@pytest.mark.parametrize(
    ("quantizer", "sick"),
    [("ddcl-em", set()), ("vq", {"collapsed", "never-recovered"}), ("vq-ema", set())],
)
def test_the_doctor_finds_the_collapse_and_nothing_else(runs, quantizer, sick):
    found = diagnose(runs[quantizer], device="cpu", images=600)
    assert {finding.name for finding in found if finding.severity == "severe"} == sick


def test_the_report_agrees_with_the_log(runs, cifar10_dir):
    folder = runs["ddcl-em"]
    figures = evaluate_run(folder, data_dir=str(cifar10_dir), limit_test=512)
    step = checkpoint(folder, "best.pt")["step"]
    [line] = [line for line in lines_of(folder, "test") if line["step"] == step]
    for key in ("mse_soft", "mse_argmax", "psnr_argmax", "perplexity", "utilization"):
        assert figures[key] == pytest.approx(line[key], rel=1e-4)
    assert figures["bits_per_token"] == 8
    assert figures["entropy_bits_per_token"] > 6
    assert 0.4 < figures["ssim_argmax"] < figures["ssim_soft"] + 0.05 < 1
