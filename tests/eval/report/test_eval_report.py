"""python -m eval report: every figure, from the checkpoint alone."""

from __future__ import annotations

import json
import math
import re
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_runs import (
    assert_refused,
    checkpoint,
    evaluate,
    refuse_constant,
    run_small,
    snapshot,
    without_figures,
)

from eval.report import evaluate as report_module
from eval.report.evaluate import ImageErrors, evaluate_run, rates
from eval.report.tables import format_report
from eval.run import open_run
from models import build_model
from training.checkpoint import save_checkpoint
from training.data.splits import load_splits
from training.errors import CheckpointError, UserError


def test_rates_by_hand():
    figures = {"perplexity": 100.0, "variance": 0.3, "loss_q": 1.2}
    assert rates(figures, [512], [64], 32 * 32) == {
        "bits_per_token": 9.0,
        "entropy_bits_per_token": pytest.approx(6.643856),
        "bits_per_pixel": 0.5625,  # 64 tokens of 9 bits over 1024 pixels
        "variance_share": pytest.approx(0.25),
    }
    one = rates({"perplexity": 1.0, "variance": 0.0, "loss_q": 0.0}, [1], [16], 256)
    assert set(one.values()) == {0.0}
    none = rates({"perplexity": None, "variance": 0.0, "loss_q": 0.0}, [512], [64], 1024)
    assert set(none.values()) == {None}


@pytest.mark.parametrize("quantizer", ["ddcl-em", "vq-ema"])
def test_the_figures_are_those_of_the_best_checkpoint_on_all_test_images(runs, quantizer):
    figures = evaluate_run(runs[quantizer], limit_test=70)
    state = checkpoint(runs[quantizer], "best.pt")
    model = build_model(state["model_config"])
    model.load_state_dict(state["model"])
    model.eval()
    images = load_splits("patches", limit_train=1, limit_test=70).test.float() / 255
    for mode in ("soft", "argmax"):
        mse = (model.reconstruct(images, mode) - images).square().mean(dim=(1, 2, 3))
        assert figures[f"mse_{mode}"] == pytest.approx(mse.mean().item(), rel=1e-5)
        psnr = (10 * torch.log10(1 / mse)).mean().item()
        assert figures[f"psnr_{mode}"] == pytest.approx(psnr, rel=1e-5)
    tokens = model.tokens(images).numpy().ravel()
    shares = np.unique(tokens, return_counts=True)[1] / tokens.size
    entropy = -(shares * np.log2(shares)).sum()
    assert figures["entropy_bits_per_token"] == pytest.approx(entropy)
    assert figures["perplexity"] == pytest.approx(2**entropy)
    assert figures["utilization"] == len(shares) / 16
    assert figures["dead_codes"] == 16 - len(shares)
    assert figures["bits_per_token"] == 4
    assert figures["bits_per_pixel"] == 4 * 64 / 1024
    share = figures["variance"] / figures["loss_q"]
    assert figures["variance_share"] == pytest.approx(share)
    assert (share == 0) == (quantizer == "vq-ema")
    assert figures["parameters"] == sum(p.numel() for p in model.parameters())
    assert figures["images_per_second"] > 0
    names = ("softvq", "torch", "scikit-image", "torchmetrics")
    versions = {name: metadata.version(name) for name in names}
    described = {"quantizer": quantizer, "dataset": "patches", "test_images": 70, "step": 8,
                 "codebook_size": 16, "codebook_dim": 8, "tokens_per_image": 64,
                 "versions": versions}  # fmt: skip
    assert {name: figures[name] for name in described} == described


def test_all_test_images_are_the_default(runs):
    """Whatever limit the training had."""
    assert len(open_run(runs["none"]).test_images) == 2000


def test_a_checkpoint_alone_is_enough_anywhere(runs, tmp_path, monkeypatch):
    expected = evaluate_run(runs["ddcl-em"], limit_test=20)
    lone = tmp_path / "somewhere" / "model.pt"
    lone.parent.mkdir()
    lone.write_bytes((runs["ddcl-em"] / "best.pt").read_bytes())
    monkeypatch.chdir(lone.parent)
    words = ("--limit-test", 20, "--refit-steps", 0, "--device", "cpu")
    result = evaluate("report", "model.pt", *words, "--json", "out/figures.json")
    assert result.exit_code == 0, result.output
    figures = json.loads(Path("out/figures.json").read_text(), parse_constant=refuse_constant)
    assert figures.pop("checkpoint") == "model.pt"
    assert figures.pop("images_per_second") > 0
    del expected["checkpoint"], expected["images_per_second"]
    assert figures == expected


def test_the_json_file_is_what_evaluate_run_returns(runs, tmp_path, monkeypatch):
    returned = []
    real = evaluate_run

    def kept(*args, **options):
        returned.append(real(*args, **options))
        return returned[-1]

    monkeypatch.setattr(report_module, "evaluate_run", kept)
    for name, folder in runs.items():
        file = tmp_path / f"{name}.json"
        words = ("--limit-test", 5, "--batch-size", 2, "--refit-steps", 2)
        result = evaluate("report", folder, *words, "--json", file)
        assert result.exit_code == 0, result.output
        assert json.loads(file.read_text(), parse_constant=refuse_constant) == returned[-1]
        assert result.stdout == f"{format_report(returned[-1])}\nwritten to {file}\n"


def test_the_report_shows_soft_and_argmax_side_by_side(runs):
    figures = evaluate_run(runs["ddcl-em"], limit_test=9)
    lines = format_report(figures).splitlines()
    assert lines[0] == "ddcl-em, K = 16, D = 8, 64 tokens per image, step 8"
    assert lines[1].endswith("best.pt on 9 test images of patches")
    assert ["soft", "argmax"] in [line.split() for line in lines]
    rows = {words[0].strip(): words[1:] for line in lines if (words := re.split("  +", line))}
    for label, key, form in [
        ("MSE", "mse", ".5f"),
        ("PSNR (dB), mean over images", "psnr", ".2f"),
        ("PSNR (dB) of the mean MSE", "psnr_global", ".2f"),
        ("SSIM", "ssim", ".4f"),
    ]:
        both = [format(figures[f"{key}_{mode}"], form) for mode in ("soft", "argmax")]
        assert rows[label] == both
    assert rows["bits per token (log2 K)"] == ["4.000"]
    assert rows["bits per pixel"] == ["0.2500"]
    assert rows["utilization"] == [f"{figures['utilization']:.1%}"]
    assert rows["dead codes"] == [str(figures["dead_codes"])]
    assert rows["perplexity"] == [f"{figures['perplexity']:.1f}"]
    assert rows["V / L_q"] == [f"{figures['variance_share']:.3f}"]
    assert rows["parameters"] == [f"{figures['parameters']:,d}"]
    assert {"bits per token (entropy of use)", "codes per token", "T / T_c"} <= rows.keys()
    assert "images per second" in rows


def test_without_codes_what_is_of_tokens_is_left_empty(runs):
    figures = evaluate_run(runs["none"], limit_test=9)
    empty = {name for name, value in figures.items() if value is None}
    assert empty == {
        "mse_argmax", "psnr_argmax", "psnr_global_argmax", "ssim_argmax", "ms_ssim_soft",
        "ms_ssim_argmax", "lpips_soft", "lpips_argmax", "gap", "utilization",
        "dead_codes", "perplexity",
        "codes_per_token", "temperature", "temperature_ratio", "bits_per_token",
        "entropy_bits_per_token", "bits_per_pixel", "variance_share", "codebook_size",
        "tokens_per_image",
    }  # fmt: skip
    text = format_report(figures)
    assert "nan" not in text.lower()
    assert text.count(" -\n") == 4 + 9  # an argmax column, and nine figures of tokens


def test_images_below_the_window_of_ssim(run_of):
    figures = evaluate_run(run_of(image_size=8, steps=1), limit_test=4)
    assert figures["ssim_soft"] is figures["ssim_argmax"] is None
    assert figures["bits_per_pixel"] == 4 * 4 / 64
    assert math.isfinite(figures["psnr_argmax"])
    assert "SSIM" in format_report(figures)


def test_data_that_moved_is_found_with_data_dir(tmp_path, monkeypatch):
    without_figures(monkeypatch)
    for i in range(6):
        path = tmp_path / "images" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.effect_noise((16, 16), 60 + i).save(path)
    images = str(tmp_path / "images")
    folder = run_small(tmp_path / "run", dataset="folder", data_dir=images, image_size=16, steps=1)
    before = evaluate_run(folder)
    moved = (tmp_path / "images").rename(tmp_path / "moved")
    with pytest.raises(UserError, match=rf"no folder {images}"):
        evaluate_run(folder)
    result = evaluate("report", folder)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert evaluate_run(folder, data_dir=str(moved))["mse_soft"] == before["mse_soft"]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["{}/nowhere"], 1, "nowhere does not exist"),
        (["{}"], 1, "holds no best.pt or last.pt"),
        (["{}/cut.pt"], 1, "cut.pt cannot be read as a checkpoint"),
        (["{}/text.pt"], 1, "text.pt cannot be read as a checkpoint"),
        (["{}/shape.pt"], 1, "shape.pt does not fit the model that it describes (size mismatch"),
        (["{}/later.pt"], 2, "options this version does not know: colour"),
        (["{}/good.pt", "--device", "toaster"], 2, "device 'toaster' cannot be used here"),
        (["{}/good.pt", "--batch-size", "0"], 2, "'--batch-size'"),
        (["{}/good.pt", "--limit-test", "0"], 2, "'--limit-test'"),
        (["{}/good.pt", "--json", "{}"], 2, "'--json'"),
    ],
)
def test_wrong_calls_are_one_line(runs, tmp_path, words, status, message):
    good = runs["ddcl-em"] / "best.pt"
    (tmp_path / "good.pt").write_bytes(good.read_bytes())
    (tmp_path / "cut.pt").write_bytes(good.read_bytes()[:5000])
    (tmp_path / "text.pt").write_text("hello")
    state = checkpoint(runs["ddcl-em"], "best.pt")
    shape = state["model_config"] | {"codebook_size": 17}
    save_checkpoint(tmp_path / "shape.pt", state | {"model_config": shape})
    save_checkpoint(tmp_path / "later.pt", state | {"config": state["config"] | {"colour": 1}})
    before = snapshot(tmp_path)
    result = evaluate("report", *(word.replace("{}", str(tmp_path)) for word in words))
    assert isinstance(result.exception, SystemExit)
    assert_refused(result, status, message)
    assert snapshot(tmp_path) == before


def test_a_wrong_checkpoint_is_an_error_to_callers_too(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        evaluate_run(tmp_path / "nowhere")


def test_the_gap_is_a_table_of_text(runs):
    figures = evaluate_run(runs["ddcl-em"], limit_test=6, refit_steps=3)
    lines = format_report(figures).splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("decoded from"))
    names = [line.split("  ")[0] for line in lines[start + 1 : start + 7]]
    assert names == ["soft", "top-8", "top-4", "top-2", "argmax", "argmax, decoder refit, 3"]
    assert "at most (V / q_max)" in lines[start + 8]
    hard = evaluate_run(runs["vq-ema"], limit_test=6)
    assert [row["decode"] for row in hard["gap"]] == ["argmax"]
    assert hard["gap"][0]["mse"] == hard["mse_argmax"]


def test_a_checkpoint_without_numbers_is_one_line_of_error(runs, tmp_path):
    state = checkpoint(runs["ddcl-em"], "best.pt")
    name = next(name for name in state["model"] if name.startswith("decoder"))
    state["model"][name].fill_(math.nan)
    save_checkpoint(tmp_path / "nan.pt", state)
    words = ("--limit-test", 4, "--refit-steps", 0, "--json", tmp_path / "nan.json")
    result = evaluate("report", tmp_path / "nan.pt", *words, "--html", tmp_path / "nan.html")
    assert result.exit_code == 1
    assert f"holds NaN or infinity in {name} and 0 more" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["nan.pt"]


def test_the_worst_images_of_the_page_are_of_all(runs, tmp_path):
    errors = ImageErrors()
    figures = evaluate_run(runs["ddcl-em"], limit_test=30, batch_size=7, observers=[errors])
    values = errors.values()
    assert len(values) == 30
    assert values.mean().item() == pytest.approx(figures["mse_argmax"], rel=1e-5)
