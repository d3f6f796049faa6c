"""The networks that judge reconstructions, in a report."""

from __future__ import annotations

import hashlib
import json
import math

import pytest
from small_runs import assert_refused, evaluate

from eval.report import evaluate as report_module
from eval.report.evaluate import evaluate_run
from eval.report.judges import Judges
from eval.report.tables import format_report
from eval.run import open_run
from training.losses import PerceptualDistance


def test_judges_that_cannot_be_had_are_one_line_each_and_the_rest_is_measured(
    runs, tmp_path, monkeypatch
):
    from torch_fidelity import feature_extractor_inceptionv3

    def refuse(*args: object, **options: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(feature_extractor_inceptionv3, "load_state_dict_from_url", refuse)
    words = ["--lpips", "squeeze", "--lpips-weights", tmp_path / "a.pth", "--fid"]
    words += ["--resnet56-weights", tmp_path / "b.th", "--limit-test", 6, "--refit-steps", 0]
    result = evaluate("report", runs["ddcl-em"], *words, "--json", tmp_path / "figures.json")
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
    result = evaluate(
        "report", runs["ddcl-em"], *(word.replace("{}", str(tmp_path)) for word in words)
    )
    assert_refused(result, 2, message.replace("{}", str(tmp_path)))


def test_every_figure_of_a_report_is_defined(runs):
    figures = evaluate_run(runs["ddcl-em"], limit_test=4)
    described = set(figures["definitions"]) | {"lpips", "rfid", "rfd_resnet56"}
    of_the_run = {"checkpoint", "quantizer", "dataset", "test_images", "step", "codebook_size",
                  "codebook_dim", "parameters", "tokens_per_image", "refit_steps", "definitions",
                  "weights", "unavailable", "versions"}  # fmt: skip
    theory = {"loss_ols", "variance", "usage_kl", "temperature"}  # docs/theory.md
    plain = {name.removesuffix("_soft").removesuffix("_argmax") for name in figures}
    assert plain - of_the_run - theory <= described
