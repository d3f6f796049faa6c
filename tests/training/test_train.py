"""train.py: what it prints, what it leaves, and how it refuses."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import urllib.error
from pathlib import Path

import pytest
import torch
from PIL import Image
from small_runs import (
    STEPS_PER_EPOCH,
    arguments,
    checkpoint,
    command,
    differences,
    metrics,
    run_small,
    without_figures,
)
from torchvision.datasets import CIFAR10

import train

ROOT = Path(train.__file__).parent


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    without_figures(monkeypatch)


@pytest.fixture
def no_download(monkeypatch):
    def download(self):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(CIFAR10, "download", download)


def test_help_answers_at_once_and_imports_nothing_heavy():
    for words in (["train.py", "--help"], ["-m", "eval", "report", "--help"]):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = subprocess.run(
            [sys.executable, "-X", "importtime", *words], cwd=ROOT, capture_output=True, text=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert result.returncode == 0, result.stderr[-500:]
        assert "Usage: " in result.stdout
        modules = {line.rsplit("|", 1)[-1].strip() for line in result.stderr.splitlines()}
        assert "click" in modules
        heavy = {"torch", "torchvision", "numpy", "tensorboard", "matplotlib", "sklearn", "einops"}
        assert not modules & heavy
        # Processor time, which a busy machine does not stretch.
        seconds = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
        assert seconds < 1.5


def test_a_run_says_what_it_does_and_what_to_do_next(tmp_path):
    out = tmp_path / "run"
    result = command(*arguments(out=out))
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    gradient, *lines = result.stdout.splitlines()
    assert gradient == (
        "ddcl-em: the encoder gets the decoder's gradient straight through, as if the code were "
        "the latent"
    )
    assert lines[0].startswith(
        "256 training, 64 validation and 64 test images of patches (crops of"
    )
    assert lines[1] == f"run folder: {out}"
    assert lines[2] == "placing 16 prototypes by k-means"
    assert lines[4].split()[:4] == ["epoch", "loss", "soft", "argmax"]
    assert [line.split()[0] for line in lines[5:7]] == ["1", "2"]
    assert lines[7] == f"evaluate it: python -m eval report {out}"
    assert lines[8] == f"watch it:    tensorboard --logdir {out}"
    assert len(lines) == 9
    assert json.loads((out / "config.json").read_text())["out"] == str(out)
    test = [line for line in metrics(out) if line["split"] == "test"][-1]
    assert f"{test['mse_soft']:8.5f} {test['mse_argmax']:8.5f}" in lines[6]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"quantizer": "ddcl"}, "exact derivative of the code, in training with .* for 70 % of"),
        ({"quantizer": "ddcl", "noise": 0.0}, "the exact derivative of the code$"),
        ({"quantizer": "vq-ema"}, "straight through"),
        ({"quantizer": "fsq"}, "what its library defines"),
        ({"quantizer": "none"}, "there is no codebook"),
    ],
)
def test_the_first_line_says_which_gradient_the_encoder_gets(tmp_path, options, words):
    result = command(*arguments(out=tmp_path / "run", steps=1, **options))
    assert result.exit_code == 0, result.output
    first = result.stdout.splitlines()[0]
    assert first.startswith(f"{options['quantizer']}: the encoder gets ")
    assert re.search(words, first)


def test_no_codebook_prints_its_table(tmp_path):
    result = command(*arguments(quantizer="none", out=tmp_path / "run"))
    assert result.exit_code == 0, result.output
    header, *rows = result.stdout.splitlines()[4:7]
    assert [len(row) for row in rows] == [len(header)] * 2
    assert all(row.split().count("-") == 7 for row in rows)
    for line in metrics(tmp_path / "run"):
        for key in ("utilization", "dead_codes", "perplexity", "codes_per_token"):
            assert line[key] is None
        assert line["temperature"] is line["temperature_ratio"] is None
        if line["split"] != "train":
            assert line["mse_argmax"] is line["psnr_argmax"] is None
            assert line["mse_soft"] > 0


def test_steps_stop_a_run_within_an_epoch(tmp_path):
    folder = run_small(tmp_path / "run", steps=STEPS_PER_EPOCH + 3, epochs=50)
    steps = [(line["epoch"], line["step"]) for line in metrics(folder) if line["split"] == "test"]
    assert steps == [(1, STEPS_PER_EPOCH), (2, STEPS_PER_EPOCH + 3)]
    assert checkpoint(folder)["step"] == STEPS_PER_EPOCH + 3


def test_a_run_without_out_makes_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = {run_small(None, steps=1) for _ in range(2)}
    assert len(folders) == 2
    for folder in folders:
        assert re.fullmatch(r"runs/ddcl-em-patches-\d{8}-\d{6}(-\d)?", str(folder))
        assert (folder / "last.pt").is_file()


def test_auto_trains_on_patches_where_there_is_no_cifar10(tmp_path, no_download):
    out = tmp_path / "run"
    words = arguments(dataset="auto", data_dir=tmp_path / "data", out=out, steps=1)
    result = command(*words)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].startswith(f"no CIFAR-10 in {tmp_path / 'data'} and the")
    # A resumed run must find the same images, whatever the network says then.
    assert json.loads((out / "config.json").read_text())["dataset"] == "patches"


def test_a_folder_of_images_of_another_size(tmp_path):
    for i in range(12):
        path = tmp_path / "images" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.effect_noise((20, 24), 50 + i).save(path)
    words = arguments(dataset="folder", data_dir=tmp_path / "images", out=tmp_path / "run", steps=1)
    result = command(*words, "--image-size", 16)
    assert result.exit_code == 0, result.output
    assert "12 training images" not in result.stdout  # some validate and some test
    assert metrics(tmp_path / "run")[-1]["split"] == "test"


def test_flat_images_and_a_single_code_train(tmp_path):
    for i in range(4):
        path = tmp_path / "images" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (10, 20, 30)).save(path)
    options = {
        "dataset": "folder",
        "data_dir": str(tmp_path / "images"),
        "image_size": 8,
        "steps": 2,
    }
    folder = run_small(tmp_path / "run", **options, codebook_size=1)
    for line in metrics(folder):
        assert (line["utilization"], line["perplexity"]) == (1.0, 1.0)


@pytest.mark.parametrize("quantizer", ["ddcl-em", "vq"])
def test_equal_seeds_give_equal_weights_and_others_do_not(tmp_path, quantizer):
    torch.manual_seed(123)
    first = checkpoint(run_small(tmp_path / "1", quantizer=quantizer, steps=5, seed=5))
    torch.manual_seed(321)  # what else the process drew must not matter
    second = checkpoint(run_small(tmp_path / "2", quantizer=quantizer, steps=5, seed=5))
    other = checkpoint(run_small(tmp_path / "3", quantizer=quantizer, steps=5, seed=6))
    for part in ("model", "optimizer", "trackers"):
        assert differences(first[part], second[part]) == []
    different = differences(first["model"], other["model"])
    assert {"/encoder.0.weight", "/codebook.codebook", "/decoder.0.weight"} <= set(different)


def test_bf16_trains_the_same_model_to_its_rounding(tmp_path):
    options = {"quantizer": "vq-ema", "steps": 3, "lr": 1e-4}
    plain = metrics(run_small(tmp_path / "plain", **options))
    rounded = metrics(run_small(tmp_path / "bf16", **options, precision="bf16"))
    assert rounded[0]["mse_soft"] == pytest.approx(plain[0]["mse_soft"], rel=0.02)
    assert rounded[0]["mse_soft"] != plain[0]["mse_soft"]
    assert checkpoint(tmp_path / "bf16")["model"]["encoder.0.weight"].dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("quantizer", ["ddcl-em", "vq-ema"])
def test_compile_trains_the_same_model(tmp_path, monkeypatch, quantizer):
    options = {"quantizer": quantizer, "steps": 3}
    plain = metrics(run_small(tmp_path / "plain", **options))
    compiled = []

    def compile_eagerly(model):
        compiled.append(model)
        return real(model, backend="eager")  # captured, without a C++ compiler

    real = torch.compile
    monkeypatch.setattr(torch, "compile", compile_eagerly)
    lines = metrics(run_small(tmp_path / "compiled", **options, compile=True))
    assert len(compiled) == 1
    assert lines[0]["mse_soft"] == pytest.approx(plain[0]["mse_soft"], rel=1e-4)
    # Names without the wrapper's prefix: the checkpoint is that of the plain model.
    states = [checkpoint(tmp_path / name)["model"] for name in ("plain", "compiled")]
    assert states[0].keys() == states[1].keys()
