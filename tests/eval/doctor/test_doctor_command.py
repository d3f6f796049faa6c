"""python -m eval doctor: logs, checkpoints and calls of every kind."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from patients import HEALTHY, State, copied, duplicate, edited, look, severe
from small_runs import assert_refused, checkpoint, evaluate, snapshot

from eval.doctor import diagnose, examine, format_findings
from eval.doctor.finding import CHECKS
from training.errors import UserError


def test_a_training_that_was_cut_off_is_noted(runs, tmp_path):
    def edit(state: State) -> None:
        state["config"]["epochs"] = 9
        state["model_config"]["temperature_steps"] = 65

    folder = copied(runs(), tmp_path / "run", "metrics.jsonl")
    lone = edited(runs(), tmp_path, edit)
    (folder / "best.pt").write_bytes(lone.read_bytes())
    finding = look(folder)["unfinished", None]
    assert finding.severity == "note"
    assert "This is of step 64 of 144" in finding.evidence
    assert "1.05 codes per token at step 65" in finding.evidence
    assert "--resume" in finding.advice
    # Without its log nobody knows whether the run has stopped.
    finding = look(lone)["unfinished", None]
    step = checkpoint(runs(), "best.pt")["step"]
    assert f"The checkpoint is of step {step} of 144" in finding.evidence
    assert "--resume" not in finding.advice


def starve(state: State, tracker: int) -> None:
    history = torch.full((5, 16), 1000)
    history[3:, 1:] = 0
    state["trackers"][tracker]["history"] = history


def heat(state: State) -> None:
    state["model"]["codebook.levels.1.temperature"].fill_(1e3)


@pytest.mark.parametrize(
    ("name", "edit", "sick", "level", "advice"),
    [
        ("ddcl", lambda state: starve(state, 0), "starved-codes", None, "--restart-threshold 0.04"),
        ("vq-ema", lambda state: starve(state, 0), "starved-codes", None, "-threshold 0.2"),
        ("levels", lambda state: starve(state, 1), "starved-codes", 2, "--restart-threshold"),
        ("levels", heat, "collapsed", 2, "--temperature-start"),
    ],
)
def test_a_collapse_after_the_best_epoch_is_severe(runs, tmp_path, name, edit, sick, level, advice):
    source = runs(**HEALTHY[name])
    folder = copied(source, tmp_path / "run", "best.pt", "metrics.jsonl")

    def later(state: State) -> None:
        state["step"] += 32
        edit(state)

    edited(source, folder, later).rename(folder / "last.pt")
    found = look(folder)
    finding = found["later-collapse", level]
    assert finding.severity == "severe"
    assert f"at step {checkpoint(folder)['step']}, it is {sick}" in finding.evidence
    assert "eval doctor RUN/last.pt" in finding.advice
    assert advice in finding.advice
    assert severe(found) == {"later-collapse"}
    assert evaluate("doctor", folder, "--images", 64, "--device", "cpu").exit_code == 1
    # What is worse at the end is of the end: the checkpoint alone has none of it.
    assert severe(look(edited(source, tmp_path, lambda state: None))) == set()


def test_lines_of_a_log_that_are_none_are_left_out(runs, tmp_path):
    folder = copied(runs(), tmp_path / "run", "best.pt", "metrics.jsonl")
    expected = look(folder)
    log = folder / "metrics.jsonl"
    foreign = [
        "", "{", "[1]", "3", "null", '{"epoch": 9}', '{"loss": 3.0}', "[" * 100_000,
        '{"epoch": "9", "step": 999, "split": "train", "temperature_ratio": 9}',
        '{"epoch": 9, "step": null, "split": "train", "temperature_ratio": 9}',
        '{"epoch": 9, "step": 999, "split": ["train"], "temperature_ratio": 9}',
    ]  # fmt: skip
    # These are lines, of figures that are none.
    odd = [
        '{"epoch": 4, "step": 64, "split": "train", "levels": 3, "temperature_ratio": "9"}',
        '{"epoch": 4, "step": 64, "split": "train", "dead_codes": {}, "perplexity": NaN}',
    ]
    log.write_text("\n".join([*foreign, log.read_text().strip(), *foreign, *odd]) + "\n")
    assert look(folder) == expected


def test_a_log_that_is_no_text_is_a_wrong_call_and_not_a_diagnosis(runs, tmp_path):
    folder = copied(runs(), tmp_path / "run", "best.pt")
    (folder / "metrics.jsonl").write_bytes(b'{"epoch": 1}\n\xff\xfe\x00')
    result = evaluate("doctor", folder, "--images", 64)
    assert len(result.stderr.splitlines()) == 1
    assert_refused(result, 2, "metrics.jsonl is not text (byte 13)")


def test_an_error_that_nobody_foresaw_is_not_a_diagnosis_either(runs, monkeypatch):
    def broken(*args: Any, **options: Any) -> None:
        raise ZeroDivisionError("one\nby two")

    monkeypatch.setattr(examine, "measure", broken)
    result = evaluate("doctor", runs(), "--images", 64)
    assert len(result.stderr.splitlines()) == 1
    assert_refused(result, 2, "ZeroDivisionError: one by two")


def test_a_run_that_ended_worse_than_it_was(runs, tmp_path):
    source = runs()
    folder = copied(source, tmp_path / "run", "best.pt", "last.pt")
    lines = [json.loads(line) for line in (source / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["epoch"] == 4 and line["split"] == "val":
            line["mse_argmax"] *= 3
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    finding = look(folder)["got-worse", None]
    assert finding.severity == "warning"
    assert "after epoch 4" in finding.evidence
    # A checkpoint of another name is not of the log that lies beside it.
    (folder / "lone.pt").write_bytes((source / "best.pt").read_bytes())
    assert ("got-worse", None) not in look(folder / "lone.pt")


def test_the_exit_status_and_the_file_say_whether_it_is_severe(runs, tmp_path):
    well, file = runs(), tmp_path / "out" / "findings.json"
    result = evaluate("doctor", well, "--images", 64, "--device", "cpu", "--json", file)
    assert result.exit_code == 0, result.output
    findings = diagnose(well, device="cpu", images=64)
    assert result.stdout == f"{format_findings(findings)}\nwritten to {file}\n"
    assert json.loads(file.read_text()) == {"findings": [f._asdict() for f in findings]}
    sick = edited(runs(quantizer="vq-ema"), tmp_path, lambda state: duplicate(state, 8))
    result = evaluate("doctor", sick, "--images", 64)
    assert result.exit_code == 1
    assert result.stdout.startswith("SEVERE duplicates\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{}/nowhere"], "nowhere does not exist"),
        (["{}"], "holds no best.pt or last.pt"),
        (["{}/cut.pt"], "cut.pt cannot be read as a checkpoint"),
        (["{}/good.pt", "--device", "toaster"], "device 'toaster' cannot be used here"),
        (["{}/good.pt", "--images", "1"], "'--images'"),
        (["{}/good.pt", "--json", "{}/good.pt/x"], "good.pt"),
    ],
)
def test_wrong_calls_have_status_2_and_one_line(runs, tmp_path, words, message):
    good = (runs() / "best.pt").read_bytes()
    (tmp_path / "good.pt").write_bytes(good)
    (tmp_path / "cut.pt").write_bytes(good[:5000])
    before = snapshot(tmp_path)
    result = evaluate("doctor", *(word.replace("{}", str(tmp_path)) for word in words))
    assert_refused(result, 2, message)
    assert snapshot(tmp_path) == before


def test_too_few_images_are_an_error_to_callers_too(runs):
    with pytest.raises(UserError, match="at least 2"):
        diagnose(runs(), images=1)


def test_nothing_wrong_says_what_was_checked():
    text = format_findings([])
    assert text.startswith("nothing is wrong. Checked")
    assert all(name in text for name in CHECKS)
