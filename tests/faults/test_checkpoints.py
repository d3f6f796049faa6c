"""Checkpoints that were edited by hand, or that lie about their sizes."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch
from small_runs import arguments, assert_refused, command

from training.checkpoint import load_checkpoint, load_model, save_checkpoint
from training.errors import CheckpointError


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    assert command(*arguments(out=folder, steps=1)).exit_code == 0
    return folder


def edited(run: Path, folder: Path, **changes: object) -> Path:
    state = load_checkpoint(run / "last.pt")
    del state["digest"], state["format"]
    save_checkpoint(folder / "last.pt", {**state, **changes})
    return folder


@pytest.mark.parametrize(
    "key",
    ["config", "model_config", "model", "optimizer", "trackers", "step", "sums", "seconds", "best"],
)
@pytest.mark.parametrize("value", [None, "text", [1], {"a": torch.zeros(2)}, float("nan"), -1])
def test_a_value_of_another_kind_is_one_line_on_resume(run, tmp_path, key, value):
    folder = edited(run, tmp_path, **{key: value})
    result = command("--resume", "--out", folder, "--steps", 2)
    if result.exit_code == 0:
        assert (key, value) == ("best", -1)
        return
    assert result.exit_code in (1, 2)
    assert [line[:6] for line in result.stderr.splitlines()].count("Error:") == 1
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "name", ["codebook_size", "codebook_dim", "hidden_channels", "residual_blocks"]
)
def test_sizes_that_lie_take_no_memory(run, tmp_path, name):
    state = load_checkpoint(run / "last.pt")
    state["model_config"] = {**state["model_config"], name: 10**8}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=r"size mismatch|residual_blocks"):
        load_model(state)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB


def test_numbers_where_words_belong_are_refused(run, tmp_path):
    config = load_checkpoint(run / "last.pt")["config"]
    for name in ("device", "data_dir", "quantizer", "hidden_channels"):
        folder = edited(run, tmp_path / name, config={**config, name: True})
        result = command("--resume", "--out", folder, "--steps", 2)
        assert_refused(result, 2, f"{name} must be")
