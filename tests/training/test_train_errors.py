"""train.py: wrong calls are one line on stderr, and nothing on disk is lost."""

from __future__ import annotations

import os
import shutil
import urllib.error
from pathlib import Path

import pytest
from small_runs import arguments, checkpoint, command, run_small, snapshot, without_figures
from torchvision.datasets import CIFAR10

from training.checkpoint import save_checkpoint


@pytest.fixture
def no_download(monkeypatch):
    def download(self):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(CIFAR10, "download", download)


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    without_figures(monkeypatch)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        without_figures(patch)
        return run_small(tmp_path_factory.mktemp("finished") / "run", steps=2)


@pytest.fixture
def world(tmp_path, finished) -> Path:
    """A folder with a run, broken runs, and data of the wrong kinds."""
    for name in ("run", "cut", "edited"):
        (tmp_path / name).mkdir()
        for path, data in snapshot(finished).items():
            if "/" not in path:
                (tmp_path / name / path).write_bytes(data)
    last = tmp_path / "cut" / "last.pt"
    last.write_bytes(last.read_bytes()[:-1000])
    state = checkpoint(tmp_path / "edited")
    state["config"]["codebook_size"] = 32
    save_checkpoint(tmp_path / "edited" / "last.pt", state)
    (tmp_path / "no-images").mkdir()
    (tmp_path / "no-images" / "notes.txt").write_text("no image")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("not a folder")
    return tmp_path


# (words, {} is the world; status; parts of the message)
WRONG = {
    "quantizer": ("--quantizer kmeans --out {}/new", 2, ["--quantizer", "kmeans", "vq-ema"]),
    "no codes": ("--codebook-size 0 --out {}/new", 2, ["--codebook-size", "0", "x>=1"]),
    "missing data folder": (
        "--dataset folder --data-dir {}/nowhere --out {}/new", 2, ["no folder", "nowhere"]),
    "no data folder": ("--dataset folder --out {}/new", 2, ["needs --data-dir"]),
    "no images": (
        "--dataset folder --data-dir {}/no-images --out {}/new", 2, ["no images below", ".png"]),
    "no cifar10": (
        "--dataset cifar10 --data-dir {}/empty --out {}/new", 2,
        ["no network", "--data-dir", "$SOFTVQ_DATA", "--dataset patches"]),
    "used folder": ("SMALL --out {}/run", 2, ["already holds a run", "--resume"]),
    "file as folder": ("SMALL --out {}/file", 2, ["file is not a folder"]),
    "folder in a file": ("SMALL --out {}/file/new", 2, ["file is not a folder"]),
    "device": ("SMALL --device toaster --out {}/new", 2, ["'toaster'", "try auto"]),
    "device without memory": ("SMALL --device meta --out {}/new", 2, ["'meta'", "try auto"]),
    "more codes than latents": (
        "SMALL --limit-train 1 --codebook-size 8192 --out {}/new", 2, ["8192", "4096"]),
    "divergence": ("SMALL --lr 1e30 --out {}/new", 2, ["at step ", "; lower --lr"]),
    "resume nowhere": ("--resume", 2, ["--resume needs --out"]),
    "resume what is not there": ("--resume --out {}/nowhere", 1, ["last.pt does not exist"]),
    "resume with a preset": ("--resume --preset quick --out {}/run", 2, ["leave out --preset"]),
    "resume with another seed": (
        "--resume --seed 7 --out {}/run", 2, ["--seed is 7 but the run has 0", "epochs, steps"]),
    "resume with another size": (
        "--resume --codebook-size 8 --out {}/run", 2, ["--codebook-size is 8", "has 16"]),
    "resume a truncated checkpoint": (
        "--resume --out {}/cut", 1, ["cut/last.pt cannot be read", "truncated"]),
    "resume a checkpoint of another shape": (
        "--resume --out {}/edited", 1, ["edited/last.pt does not fit", "16", "32"]),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls_are_one_line_and_change_nothing(world, no_download, case):
    words, status, parts = WRONG[case]
    words = words.replace("SMALL", " ".join(arguments(quantizer="ddcl")))
    before = snapshot(world)
    result = command(*words.replace("{}", str(world)).split())
    assert result.exit_code == status
    assert isinstance(result.exception, SystemExit)  # no traceback
    *usage, error = result.stderr.rstrip("\n").split("\n")
    assert error.startswith("Error: ")
    assert all(not line or line.startswith(("Usage: ", "Try ")) for line in usage)
    for part in parts:
        assert part in error
    if case == "divergence":  # noticed in training only, and nothing saved
        written = {path.name for path in (world / "new").iterdir()}
        assert not written & {"last.pt", "best.pt"}
        shutil.rmtree(world / "new")
    assert snapshot(world) == before
    assert not (world / "new").exists()


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path) != tmp_path and real(path, mode)
    )
    result = command(*arguments(out=tmp_path / "a" / "run"))
    assert result.exit_code == 2
    assert f"{tmp_path} is not a folder that can be written to" in result.stderr
    assert not list(tmp_path.iterdir())
