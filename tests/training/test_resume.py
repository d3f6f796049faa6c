"""--resume: interrupted and uninterrupted runs end equal, bit for bit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_runs import (
    STEPS_PER_EPOCH,
    arguments,
    at_step,
    checkpoint,
    command,
    differences,
    metrics,
    run_small,
    snapshot,
    untimed,
    without_figures,
)

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
    with pytest.MonkeyPatch.context() as patch:
        without_figures(patch)
        folder = tmp_path_factory.mktemp("whole")
        return {
            quantizer: run_small(folder / quantizer, **options)
            for quantizer, options in OPTIONS.items()
        }


def interrupt(number: int = signal.SIGTERM):
    return lambda: os.kill(os.getpid(), number)


def assert_equal_ends(whole: Path, resumed: Path) -> None:
    for name in ("last.pt", "best.pt"):
        first, second = checkpoint(whole, name), checkpoint(resumed, name)
        for part in ("model", "optimizer", "trackers", "sums", "step", "best", "model_config"):
            assert differences(first[part], second[part], f"{name} {part}") == []
    assert untimed(resumed) == untimed(whole)


@pytest.mark.parametrize(
    ("quantizer", "step"),
    [
        ("ddcl-em", 3),
        ("ddcl-em", STEPS_PER_EPOCH),
        ("ddcl-em", STEPS_PER_EPOCH + 5),
        ("vq", 3),
        ("vq-ema", 3),
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


@pytest.mark.parametrize(
    ("quantizer", "kind"), [("ddcl-em", DDCLEMCodebook), ("vq-ema", VQEMACodebook)]
)
def test_restarts_happen_after_every_interruption(tmp_path, monkeypatch, quantizer, kind):
    """Or the comparison above would say nothing of them."""
    restarted = []

    def replace(self, rows, vectors, size, real=kind._replace):
        restarted.append(int(self.steps))
        real(self, rows, vectors, size)

    monkeypatch.setattr(kind, "_replace", replace)
    run_small(tmp_path / "run", **OPTIONS[quantizer])
    assert restarted[-1] > STEPS_PER_EPOCH + 5


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


def test_a_crash_between_metrics_and_checkpoint_leaves_no_line_twice(tmp_path, monkeypatch, whole):
    out = tmp_path / "run"

    def save(trainer, name):
        if trainer.step > STEPS_PER_EPOCH:
            raise OSError("disk full")
        save_run(trainer, name)

    monkeypatch.setattr(callbacks, "save_run", save)
    with pytest.raises(OSError, match="disk full"):
        run_small(out, **OPTIONS["vq-ema"])
    assert len(metrics(out)) == 6
    assert checkpoint(out)["step"] == STEPS_PER_EPOCH
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "st')  # the crash may also cut a line
    monkeypatch.setattr(callbacks, "save_run", save_run)
    assert command("--resume", "--out", out).exit_code == 0
    assert_equal_ends(whole["vq-ema"], out)


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
        monkeypatch,
        3,
        lambda: (interrupt()(), during.append(signal.getsignal(signal.SIGTERM))),
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


@pytest.mark.parametrize(
    ("number", "status", "quantizer"),
    [(signal.SIGTERM, 143, "ddcl-em"), (signal.SIGINT, 130, "vq-ema")],
)
def test_a_real_signal_saves_and_says_how_to_go_on(tmp_path, whole, number, status, quantizer):
    out = tmp_path / "a run"  # a name that a shell would split
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, *arguments(out=out, **OPTIONS[quantizer])],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())},  # sums in equal order
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert any(line == "step 5\n" for line in process.stdout)
    process.send_signal(number)
    _, stderr = process.communicate("go on\n", timeout=60)
    assert process.returncode == status
    assert "Traceback" not in stderr
    [line] = [line for line in stderr.splitlines() if line.startswith("stopped")]
    assert line.startswith("stopped at step 5 of 16 and saved; continue with: python train.py ")
    words = re.search(r"python train\.py (.*)", line)
    assert words
    assert words[1] == f"--resume --out '{out}'"
    assert checkpoint(out)["step"] == 5
    assert not (out / "metrics.jsonl").exists()
    assert command("--resume", "--out", out).exit_code == 0
    assert_equal_ends(whole[quantizer], out)


def test_a_finished_run_says_so_and_stays_as_it_is(tmp_path):
    out = run_small(tmp_path / "run", epochs=1)
    before = snapshot(out)
    for words in ([], ["--epochs", 1]):
        result = command("--resume", "--out", out, *words)
        assert result.exit_code == 0
        assert result.stdout.startswith(
            f"nothing to train: the run in {out} is at step 8, and 8 were asked for; give more"
        )
        assert snapshot(out) == before


@pytest.mark.parametrize("quantizer", ["vq", "vq-ema"])
def test_more_epochs_go_on_where_the_run_ended(tmp_path, quantizer):
    """Without a schedule a longer run has the same beginning."""
    options = OPTIONS[quantizer] | {"lr_schedule": "constant"}
    whole = run_small(tmp_path / "whole", **options)
    out = run_small(tmp_path / "run", **options, epochs=1)
    result = command("--resume", "--epochs", 2, "--out", out)
    assert result.exit_code == 0, result.output
    assert checkpoint(out)["config"]["epochs"] == 2
    assert_equal_ends(whole, out)


def test_more_epochs_stay_at_the_last_temperature(tmp_path):
    out = run_small(
        tmp_path / "run",
        quantizer="ddcl-em",
        epochs=1,
        temperature_mode="constant",
        temperature_start=2.0,
        temperature_end=0.5,
    )
    assert command("--resume", "--epochs", 2, "--out", out).exit_code == 0
    temperatures = [line["temperature"] for line in metrics(out) if line["split"] == "train"]
    assert temperatures == [0.5, 0.5]


def test_a_run_of_before_there_was_balance_goes_on_without(tmp_path):
    out = run_small(tmp_path / "run", quantizer="ddcl-em")
    state = checkpoint(out)
    assert state["model_config"].pop("balance") > 0
    state["config"] |= {"quantizer": "ddcl", "recipe": "tokens"}  # as it was named then
    torch.save(state, out / "last.pt")
    result = command("--resume", "--out", out, "--epochs", 4)
    assert result.exit_code == 0, result.output
    assert checkpoint(out)["step"] == 4 * STEPS_PER_EPOCH
    assert checkpoint(out)["model_config"]["balance"] == 0


def test_a_run_whose_data_has_changed_is_not_continued(tmp_path):
    out = run_small(tmp_path / "run", quantizer="vq", epochs=1)
    state = checkpoint(out)
    state["images"][0] -= 1
    torch.save(state, out / "last.pt")
    result = command("--resume", "--epochs", 2, "--out", out)
    assert result.exit_code == 2
    assert "the data has changed" in result.stderr


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state["optimizer"]["state"][0].update(exp_avg=torch.zeros(3)),
        lambda state: state.update(sums=None),
        lambda state: state.update(trackers=[]),
    ],
    ids=["moments of another shape", "no sums", "no trackers"],
)
def test_a_damaged_state_is_one_line_of_error(tmp_path, damage):
    out = run_small(tmp_path / "run", quantizer="vq", epochs=1)
    state = checkpoint(out)
    damage(state)
    torch.save(state, out / "last.pt")
    result = command("--resume", "--epochs", 2, "--out", out)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 1


def test_more_epochs_overrule_the_steps_of_the_run(tmp_path):
    out = run_small(tmp_path / "run", quantizer="vq", steps=3)
    assert command("--resume", "--epochs", 1, "--out", out).exit_code == 0
    assert checkpoint(out)["step"] == STEPS_PER_EPOCH
    assert command("--resume", "--steps", 10, "--out", out).exit_code == 0
    assert checkpoint(out)["step"] == 10


def test_resuming_in_a_folder_that_was_moved(tmp_path, monkeypatch, whole):
    at_step(monkeypatch, 3, interrupt())
    with pytest.raises(SystemExit):
        run_small(tmp_path / "old", **OPTIONS["vq"])
    moved = (tmp_path / "old").rename(tmp_path / "new")
    assert command("--resume", "--out", moved).exit_code == 0
    assert not (tmp_path / "old").exists()
    assert_equal_ends(whole["vq"], moved)
