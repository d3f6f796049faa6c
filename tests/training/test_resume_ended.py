"""--resume of runs that ended: longer, of an earlier version, damaged."""

from __future__ import annotations

import pytest
import torch
from small_runs import (
    STEPS_PER_EPOCH,
    assert_equal_ends,
    checkpoint,
    command,
    metrics,
    run_small,
    snapshot,
    without_figures,
)

from training.checkpoint import save_checkpoint


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    without_figures(monkeypatch)


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


def test_more_epochs_go_on_where_the_run_ended(tmp_path):
    """Without a schedule a longer run has the same beginning."""
    options = {"quantizer": "vq-ema", "restart_threshold": 0.5, "decay": 0.7}
    options |= {"lr_schedule": "constant"}
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


@pytest.mark.parametrize(
    ("damage", "status", "words"),
    [
        (lambda s: s["optimizer"]["state"][0].update(exp_avg=torch.zeros(3)), 1, "size mismatch"),
        (lambda s: s.update(sums=None), 1, "does not fit"),
        (lambda s: s.update(trackers=[]), 1, "does not fit"),
        (lambda s: s["images"].append(s["images"].pop() - 1), 2, "the data has changed"),
    ],
    ids=["moments of another shape", "no sums", "no trackers", "other data"],
)
def test_a_damaged_state_or_other_data_is_one_line_of_error(tmp_path, damage, status, words):
    out = run_small(tmp_path / "run", quantizer="vq", epochs=1)
    state = checkpoint(out)
    damage(state)
    save_checkpoint(out / "last.pt", state)
    result = command("--resume", "--epochs", 2, "--out", out)
    assert result.exit_code == status
    assert result.stderr.startswith("Error: ")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_more_epochs_overrule_the_steps_of_the_run(tmp_path):
    out = run_small(tmp_path / "run", quantizer="vq", steps=3)
    assert command("--resume", "--epochs", 1, "--out", out).exit_code == 0
    assert checkpoint(out)["step"] == STEPS_PER_EPOCH
    assert command("--resume", "--steps", 10, "--out", out).exit_code == 0
    assert checkpoint(out)["step"] == 10
