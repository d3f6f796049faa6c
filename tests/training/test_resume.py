"""--resume: interrupted and uninterrupted runs end equal, bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_runs import (
    STEPS_PER_EPOCH,
    arguments,
    assert_equal_ends,
    at_step,
    checkpoint,
    command,
    metrics,
    run_small,
    without_figures,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import train
from softvq import DDCLEMCodebook, VQEMACodebook
from training import callbacks
from training import metrics as training_metrics
from training.state import save_run

ROOT = Path(train.__file__).parent
# High thresholds, so that restarts happen within the few steps of these runs.
OPTIONS = {
    "ddcl-em": {"quantizer": "ddcl-em", "restart_threshold": 0.9},
    "vq": {"quantizer": "vq"},
    "vq-ema": {"quantizer": "vq-ema", "restart_threshold": 0.5, "decay": 0.7},
}


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    without_figures(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, Path]:
    """Runs that nothing interrupted."""
    restarted = {}
    with pytest.MonkeyPatch.context() as patch:
        without_figures(patch)
        for kind in (DDCLEMCodebook, VQEMACodebook):

            def replace(self, rows, vectors, size, real=kind._replace):
                restarted[type(self)] = int(self.steps)
                real(self, rows, vectors, size)

            patch.setattr(kind, "_replace", replace)
        folder = tmp_path_factory.mktemp("whole")
        runs = {name: run_small(folder / name, **options) for name, options in OPTIONS.items()}
    # Restarts happen after every interruption, or the comparisons would say nothing of them.
    assert min(restarted[kind] for kind in (DDCLEMCodebook, VQEMACodebook)) > STEPS_PER_EPOCH + 5
    return runs


def interrupt(number: int = signal.SIGTERM):
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("quantizer", "step"),
    [
        ("ddcl-em", 3),
        ("ddcl-em", STEPS_PER_EPOCH),
        ("ddcl-em", STEPS_PER_EPOCH + 5),
        ("vq", 3),
        ("vq-ema", STEPS_PER_EPOCH + 5),
    ],
)
def test_an_interrupted_run_ends_like_an_uninterrupted_one(
    tmp_path, monkeypatch, whole, quantizer, step
):
    out = tmp_path / "run"
    at_step(monkeypatch, step, interrupt())
    with pytest.raises(SystemExit) as stopped:
        run_small(out, **OPTIONS[quantizer])
    assert stopped.value.code == 128 + signal.SIGTERM
    assert checkpoint(out)["step"] == step
    epochs = step // STEPS_PER_EPOCH
    assert len(metrics(out) if epochs else []) == 3 * epochs
    torch.manual_seed(99)  # no generator of the process may matter
    result = command("--resume", "--out", out)
    assert result.exit_code == 0, result.output
    assert_equal_ends(whole[quantizer], out)


def test_two_interruptions_and_a_kill_between_checkpoints(tmp_path, monkeypatch, whole):
    out = tmp_path / "run"
    at_step(monkeypatch, 2, interrupt(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        run_small(out, **OPTIONS["ddcl-em"])
    at_step(monkeypatch, 5, interrupt())
    assert command("--resume", "--out", out).exit_code == 143

    def kill() -> None:
        raise MemoryError

    at_step(monkeypatch, 11, kill)  # as good as kill -9: nothing is saved
    assert isinstance(command("--resume", "--out", out).exception, MemoryError)
    assert checkpoint(out)["step"] == STEPS_PER_EPOCH
    assert command("--resume", "--out", out).exit_code == 0
    assert_equal_ends(whole["ddcl-em"], out)


def test_a_crash_between_metrics_and_checkpoint_leaves_nothing_twice(tmp_path, monkeypatch, whole):
    def save(trainer, name):
        if trainer.step > STEPS_PER_EPOCH:
            raise OSError("disk full")
        save_run(trainer, name)

    out = tmp_path / "run"
    monkeypatch.setattr(callbacks, "save_run", save)
    result = command(*arguments(out=out, **OPTIONS["vq-ema"]))
    assert (result.exit_code, result.stderr) == (1, "Error: disk full\n")
    assert len(metrics(out)) == 6
    assert checkpoint(out)["step"] == STEPS_PER_EPOCH
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "st')  # the crash may also cut a line
    monkeypatch.setattr(callbacks, "save_run", save_run)
    assert command("--resume", "--out", out).exit_code == 0
    assert_equal_ends(whole["vq-ema"], out)
    points = EventAccumulator(str(out / "test")).Reload().Scalars("reconstruction/mse_argmax")
    test = [line for line in metrics(out) if line["split"] == "test"]
    assert [point.step for point in points] == [STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH]
    assert [p.value for p in points] == pytest.approx([line["mse_argmax"] for line in test])


def test_the_best_epoch_so_far_outlives_an_interruption(tmp_path, monkeypatch):
    errors = iter([0.1, 0.5, 0.3, 0.5, 0.2, 0.5])  # validation and test of three epochs
    real = training_metrics.evaluate_split

    def evaluate_split(*args):
        return real(*args) | {"mse_argmax": next(errors)}

    monkeypatch.setattr(training_metrics, "evaluate_split", evaluate_split)
    at_step(monkeypatch, STEPS_PER_EPOCH + 1, interrupt())
    with pytest.raises(SystemExit):
        run_small(tmp_path / "run", quantizer="vq", epochs=3)
    assert command("--resume", "--out", tmp_path / "run").exit_code == 0
    assert checkpoint(tmp_path / "run", "best.pt")["step"] == STEPS_PER_EPOCH
    assert checkpoint(tmp_path / "run")["best"] == 0.1


def test_a_signal_is_handled_once_and_the_handlers_are_given_back(tmp_path, monkeypatch):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    during = []
    at_step(
        monkeypatch, 3, lambda: (interrupt()(), during.append(signal.getsignal(signal.SIGTERM)))
    )
    with pytest.raises(SystemExit):
        run_small(tmp_path / "run")
    assert during == [signal.SIG_DFL]  # a second one ends the process at once
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


INTERRUPTED = """
import os, signal, sys
from training import trainer
from training.callbacks import Callback, standard_callbacks

class Wait(Callback):
    def on_step(self, trainer):
        if trainer.step == 5:
            print("step 5", flush=True)
            sys.stdin.readline()  # until the signal was sent

trainer.standard_callbacks = lambda rank: [Wait(), *standard_callbacks(rank)]
import train
train.main()
"""


def assert_stopped_and_resumable(whole: Path, out: Path, stderr: str) -> None:
    assert "Traceback" not in stderr
    [line] = [line for line in stderr.splitlines() if line.startswith("stopped")]
    assert line == (
        f"stopped at step 5 of 16 and saved; continue with: python train.py --resume --out '{out}'"
    )
    assert checkpoint(out)["step"] == 5
    assert not (out / "metrics.jsonl").exists()
    assert command("--resume", "--out", out).exit_code == 0
    assert_equal_ends(whole, out)


def test_a_real_signal_saves_and_says_how_to_go_on(tmp_path, whole):
    out = tmp_path / "a run"  # a name that a shell would split
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, *arguments(out=out, **OPTIONS["ddcl-em"])],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())},  # sums in equal order
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert any(line == "step 5\n" for line in process.stdout)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate("go on\n", timeout=60)
    assert process.returncode == 143
    assert_stopped_and_resumable(whole["ddcl-em"], out, stderr)


def test_control_c_saves_and_says_how_to_go_on(tmp_path, monkeypatch, whole):
    out = tmp_path / "a run"
    at_step(monkeypatch, 5, interrupt(signal.SIGINT))
    result = command(*arguments(out=out, **OPTIONS["vq-ema"]))
    assert result.exit_code == 130
    assert_stopped_and_resumable(whole["vq-ema"], out, result.stderr)


def test_resuming_in_a_folder_that_was_moved(tmp_path, monkeypatch, whole):
    at_step(monkeypatch, 3, interrupt())
    with pytest.raises(SystemExit):
        run_small(tmp_path / "old", **OPTIONS["vq"])
    moved = (tmp_path / "old").rename(tmp_path / "new")
    assert command("--resume", "--out", moved).exit_code == 0
    assert not (tmp_path / "old").exists()
    assert_equal_ends(whole["vq"], moved)
