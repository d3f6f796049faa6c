"""torchrun train.py: processes share the batches out and leave one run folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from training.distributed import main_process_first, mean_over_processes, sum_over_processes

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = [
    *("--dataset", "patches", "--limit-train", "256", "--limit-test", "65", "--batch-size", "64"),
    *("--hidden-channels", "8", "--residual-channels", "8"),
    *("--codebook-size", "16", "--codebook-dim", "8"),
]


def torchrun(*options: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*launcher, "--nproc-per-node", "2", "train.py", *OPTIONS, *options],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def last(folder: Path) -> dict:
    return torch.load(folder / "last.pt", weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("quantizer", ["ddcl-em", "vq-ema"])
def test_two_processes_leave_one_run_that_resumes(tmp_path, quantizer):
    folder = tmp_path / "run"
    options = ["--quantizer", quantizer, "--out", str(folder)]
    result = torchrun(*options, "--epochs", "1")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("run folder:") == 1
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["split"] for line in lines] == ["train", "val", "test"]
    # Every token of every image of the epoch is counted once, whatever process saw it.
    assert last(folder)["trackers"][0]["history"].sum().item() == 256 * 64
    assert last(folder)["step"] == 256 // 64
    result = torchrun("--resume", "--out", str(folder), "--epochs", "2")
    # The options of the run may be given again, as they are equal.
    assert result.returncode == 0, result.stderr
    assert last(folder)["step"] == 2 * 256 // 64
    assert last(folder)["trackers"][0]["history"].shape == (2, 16)


@pytest.mark.slow
def test_a_batch_that_cannot_be_shared_out_is_one_line_of_error(tmp_path):
    result = torchrun("--out", str(tmp_path / "run"), "--batch-size", "63")
    assert result.returncode != 0
    assert "cannot be shared out evenly among 2 processes" in result.stderr
    assert not (tmp_path / "run").exists()


def test_one_process_needs_no_group():
    with main_process_first():
        pass
    assert mean_over_processes([1.0, 2.0], torch.device("cpu")) == [1.0, 2.0]
    assert sum_over_processes({"mse": 2.0}) == {"mse": 2.0}
