"""python -m eval report: every figure, from the checkpoint alone."""

from __future__ import annotations

import hashlib
import json
import math
import re
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image
from small_runs import checkpoint, refuse_constant, run_small, snapshot, without_figures

from eval.__main__ import main
from eval.report import evaluate as report_module
from eval.report.evaluate import ImageErrors, evaluate_run, rates
from eval.report.judges import Judges
from eval.report.tables import format_report
from eval.run import open_run
from models import build_model
from training.checkpoint import save_checkpoint
from training.data.splits import load_splits
from training.errors import CheckpointError, UserError
from training.losses import PerceptualDistance


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        without_figures(patch)
        return {
            name: run_small(root / name, quantizer=name, epochs=1)
            for name in ("ddcl-em", "vq-ema", "none")
        }


def report(*words: object) -> Result:
    """``python -m eval report WORDS``, in this process."""
    return CliRunner().invoke(main, ["report", *(str(word) for word in words)])


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
    result = report("model.pt", *words, "--json", "out/figures.json")
    assert result.exit_code == 0, result.output
    figures = json.loads(Path("out/figures.json").read_text(), parse_constant=refuse_constant)
    assert figures.pop("checkpoint") == "model.pt"
    assert figures.pop("images_per_second") > 0
    del expected["checkpoint"], expected["images_per_second"]
    assert figures == expected


def test_the_json_file_is_what_evaluate_run_returns(runs, tmp_path, monkeypatch):
    returned = []
    real = evaluate_run

    def evaluate(*args, **options):
        returned.append(real(*args, **options))
        return returned[-1]

    monkeypatch.setattr(report_module, "evaluate_run", evaluate)
    for name, folder in runs.items():
        file = tmp_path / f"{name}.json"
        words = ("--limit-test", 5, "--batch-size", 2, "--refit-steps", 2)
        result = report(folder, *words, "--json", file)
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


def test_images_below_the_window_of_ssim(tmp_path, monkeypatch):
    without_figures(monkeypatch)
    folder = run_small(tmp_path / "run", image_size=8, steps=1)
    figures = evaluate_run(folder, limit_test=4)
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
    result = report(folder)
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
    result = report(*(word.replace("{}", str(tmp_path)) for word in words))
    assert result.exit_code == status
    assert isinstance(result.exception, SystemExit)
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert snapshot(tmp_path) == before


def test_a_wrong_checkpoint_is_an_error_to_callers_too(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        evaluate_run(tmp_path / "nowhere")


def test_judges_that_cannot_be_had_are_one_line_each_and_the_rest_is_measured(
    runs, tmp_path, monkeypatch
):
    from torch_fidelity import feature_extractor_inceptionv3

    def refuse(*args: object, **options: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(feature_extractor_inceptionv3, "load_state_dict_from_url", refuse)
    words = ["--lpips", "squeeze", "--lpips-weights", tmp_path / "a.pth", "--fid"]
    words += ["--resnet56-weights", tmp_path / "b.th", "--limit-test", 6, "--refit-steps", 0]
    result = report(runs["ddcl-em"], *words, "--json", tmp_path / "figures.json")
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if line.startswith("not measured: ")]
    assert len(lines) == 3
    named = (
        ("--lpips-weights", "a.pth", "torchvision's"),
        ("--resnet56-weights", "b.th", "ResNet-56"),
        ("--inception-weights", "inception-2015-12-05"),
    )
    for line, parts in zip(lines, named, strict=True):
        assert all(part in line for part in parts)
    figures = json.loads((tmp_path / "figures.json").read_text())
    plain = evaluate_run(runs["ddcl-em"], limit_test=6)
    assert figures["mse_argmax"] == plain["mse_argmax"]
    assert figures["lpips_argmax"] is None
    assert "rfid" not in figures
    assert figures["unavailable"] == [line.removeprefix("not measured: ") for line in lines]


def test_judges_that_are_there_are_in_figures_text_and_definitions(runs, shared):
    judges = Judges(
        lpips="squeeze",
        lpips_weights=shared / "lpips" / "squeezenet1_1_features.pth",
        resnet56_weights=shared / "cifar_resnet" / "resnet56-4bfd9763.th",
    )
    figures = evaluate_run(runs["ddcl-em"], limit_test=12, judges=judges, refit_steps=2)
    opened = open_run(runs["ddcl-em"], limit_test=12)
    images = opened.test_images.float() / 255
    distance = PerceptualDistance("squeeze", judges.lpips_weights)
    for mode in ("soft", "argmax"):
        lpips = distance(opened.model.reconstruct(images, mode), images).mean()
        assert figures[f"lpips_{mode}"] == pytest.approx(lpips.item(), rel=1e-4)
        own = figures[f"psnr_global_{mode}"]
        assert own == pytest.approx(-10 * math.log10(figures[f"mse_{mode}"]))
        assert own <= figures[f"psnr_{mode}"]
    assert set(figures["rfd_resnet56"]) == {"soft", "argmax", "soft_half", "argmax_half", "images"}
    assert figures["rfd_resnet56"]["images"] == 12
    assert all(row["lpips"] is not None for row in figures["gap"])
    named = {"mse", "psnr", "psnr_global", "ssim", "ms_ssim", "lpips", "rfd_resnet56"}
    assert named <= set(figures["definitions"])
    for name, file in judges.files.items():
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        assert figures["weights"][name] == f"{file.name}, SHA-256 {digest}"
    text = format_report(figures)
    assert "LPIPS" in text
    assert "rfd_resnet56" in text
    assert "rfd_resnet56, 12 images" in text
    assert "of every second one" in text
    assert "not measured" not in text


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


def test_every_figure_of_a_report_is_defined(runs):
    figures = evaluate_run(runs["ddcl-em"], limit_test=4)
    described = set(figures["definitions"]) | {"lpips", "rfid", "rfd_resnet56"}
    of_the_run = {"checkpoint", "quantizer", "dataset", "test_images", "step", "codebook_size",
                  "codebook_dim", "parameters", "tokens_per_image", "refit_steps", "definitions",
                  "weights", "unavailable", "versions"}  # fmt: skip
    theory = {"loss_ols", "variance", "usage_kl", "temperature"}  # docs/theory.md
    plain = {name.removesuffix("_soft").removesuffix("_argmax") for name in figures}
    assert plain - of_the_run - theory <= described


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lpips-weights", "x.pth"], "--lpips-weights does nothing without --lpips: give both"),
        (["--lpips-resize", "64"], "--lpips-resize does nothing without --lpips"),
        (["--inception-weights", "x.pth"], "--inception-weights does nothing without --fid"),
        (["--json", "{}/file/x.json"], "--json {}/file/x.json cannot be written"),
        (["--html", "{}/file/x.html"], "--html {}/file/x.html cannot be written"),
    ],
)
def test_options_that_do_nothing_and_files_that_cannot_be_are_told_before_the_work(
    runs, tmp_path, monkeypatch, words, message
):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(report_module, "evaluate_run", lambda *args, **options: pytest.fail("work"))
    result = report(runs["ddcl-em"], *(word.replace("{}", str(tmp_path)) for word in words))
    assert result.exit_code == 2
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert message.replace("{}", str(tmp_path)) in errors[0]


def test_a_diverged_run_has_a_report_and_a_page(runs, tmp_path):
    state = checkpoint(runs["ddcl-em"], "best.pt")
    name = next(name for name in state["model"] if name.startswith("decoder"))
    state["model"][name].fill_(math.nan)
    save_checkpoint(tmp_path / "nan.pt", state)
    words = ("--limit-test", 4, "--refit-steps", 0, "--json", tmp_path / "nan.json")
    result = report(tmp_path / "nan.pt", *words, "--html", tmp_path / "nan.html")
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "nan.json").read_text(), parse_constant=refuse_constant)
    assert figures["mse_argmax"] is None
    assert (
        "NaN" in (tmp_path / "nan.html").read_text()
        or "non finite" in (tmp_path / "nan.html").read_text()
    )


def test_the_worst_images_of_the_page_are_of_all(runs, tmp_path):
    errors = ImageErrors()
    figures = evaluate_run(runs["ddcl-em"], limit_test=30, batch_size=7, observers=[errors])
    values = errors.values()
    assert len(values) == 30
    assert values.mean().item() == pytest.approx(figures["mse_argmax"], rel=1e-5)
