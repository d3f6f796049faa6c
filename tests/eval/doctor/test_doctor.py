"""python -m eval doctor: runs made sick on purpose are diagnosed, healthy ones are not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from patients import HEALTHY, State, duplicate, edited, look, severe

from eval.doctor import examine

LONGER: dict[str, dict[str, Any]] = {
    "pyramid": {"levels": 2, "level_pool": "2,1", "quantizer": "vq-ema", "level_dropout": 0.2},
    "vqp-ema": {"quantizer": "vqp-ema"},
    "simvq": {"quantizer": "simvq"},
    "vqvae2": {"architecture": "vqvae2", "quantizer": "vq-ema", "level_dropout": 0.2},
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ("paper", "shared-scale")))
        for name in HEALTHY
    ],
)
def test_a_healthy_run_has_no_severe_finding(runs, name):
    assert severe(look(runs(**HEALTHY[name]))) == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", LONGER)
def test_healthy_runs_of_other_kinds_have_no_severe_finding(runs, name):
    assert severe(look(runs(**LONGER[name], epochs=8))) == set()


@pytest.mark.slow
@pytest.mark.parametrize("quantizer", ["fsq", "lfq"])
def test_a_lattice_is_not_judged_by_where_its_codes_lie(runs, quantizer):
    found = look(runs(quantizer=quantizer, epochs=2))
    assert not {"collapsed", "near-collapse", "duplicates", "far-codes", "epsilon"} & {
        name for name, _ in found
    }
    assert ("dead-gradient", None) not in found


def test_a_temperature_above_the_critical_one(runs):
    hot = {"temperature_mode": "critical", "temperature_start": 1.2, "temperature_end": 1.2}
    found = look(runs(**hot))
    assert severe(found) == {"collapsed"}
    finding = found["collapsed", None]
    assert re.search(r"T is 1\.[12]\d* of the critical", finding.evidence)
    assert "--temperature-start 0.02 --temperature-end 0.002" in finding.advice
    # What follows from it is not said again.
    assert not {"too-soft", "duplicates", "dead-gradient"} & {name for name, _ in found}


def move_away(state: State, count: int) -> None:
    state["model"]["codebook.codebook"][:count] += 100.0


def count_tokens(state: State, each: int, codes: slice, others: int, since: int = 0) -> None:
    history = torch.full((4, 16), each)
    history[since:, codes] = others
    state["trackers"][0]["history"] = history


def flatten(state: State) -> None:
    name = [n for n in state["model"] if re.fullmatch(r"encoder\.\d+\.weight", n)][-1]
    state["model"][name][1:] = state["model"][name][:1]
    for statistic in ("running_mean", "running_var"):
        value = state["model"][f"normalize.{statistic}"]
        value[1:] = value[0]


def brighten(state: State) -> None:
    names = [name for name in state["model"] if re.fullmatch(r"decoder\.\d+\.bias", name)]
    state["model"][names[-1]] += 4.0


def shift_mean(state: State, deviations: float) -> None:
    norm = {name: state["model"][f"normalize.{name}"] for name in ("running_mean", "running_var")}
    norm["running_mean"] += deviations * norm["running_var"].sqrt()


EMA = {"quantizer": "vq-ema"}
SHARED = EMA | {"shared_scale": True}
WARM = {"temperature_mode": "critical", "temperature_start": 0.9, "temperature_end": 0.9}
SOFT = {"quantizer": "ddcl", "temperature_start": 6.0, "temperature_end": 6.0, "epochs": 2}
COLD = {
    "quantizer": "ddcl", "noise": 0.0, "temperature_mode": "constant", "temperature_start": 1e-6,
    "epochs": 1,
}  # fmt: skip
MANY = {"codebook_size": 512, "limit_train": 64, "epochs": 1}
# (options, what is done to the checkpoint, finding, severity, evidence as a pattern, advice)
SICK: list[tuple[dict[str, Any], Callable[[State], object] | None, str, str, str, str]] = [
    (WARM, None, "near-collapse", "warning", "", ""),
    (SOFT, None, "too-soft", "", r"ended at [56]\.\d\d codes per token", "--temperature-end 1.05"),
    ({"quantizer": "ddcl", "pull": 0.0, "epsilon": 1.0, "epochs": 1}, None, "epsilon", "severe",
     "outruns", "--epsilon 0.03"),
    (MANY, None, "too-many-codes", "severe", "1,024 tokens for 512 codes, 2.0 each", ""),
    ({"quantizer": "vq", "codebook_size": 256}, None, "never-recovered", "severe", "",
     "--quantizer vq-ema"),
    (COLD, None, "dead-gradient", "severe", "", "--quantizer ddcl-em"),
    (EMA, lambda state: duplicate(state, 8), "duplicates", "severe", "8 of 16 codes", ""),
    (EMA, lambda state: move_away(state, 6), "far-codes", "severe", "6 of 16 codes", ""),
    ({}, lambda state: count_tokens(state, 1000, slice(6), 0, since=2), "starved-codes", "severe",
     "training epoch 4, .* since epoch 3: 0, 1, 2, 3, 4, 5", ""),
    ({}, lambda state: count_tokens(state, 10, slice(1), 16_000), "low-perplexity", "severe", "",
     "--balance 0.6"),
    (EMA, flatten, "low-dimension", "warning", r"1\.0 of D = 8", ""),
    ({"quantizer": "none"}, brighten, "worse-than-mean", "severe", "", ""),
    (EMA, lambda state: shift_mean(state, -3), "norm-statistics", "severe", "", "model.calibrate"),
    (SHARED, lambda state: state["model"]["normalize.running_var"].mul_(2.5), "norm-statistics",
     "warning", "", "model.calibrate"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "edit", "name", "severity", "evidence", "advice"), SICK)
def test_sick_runs_are_diagnosed(runs, tmp_path, options, edit, name, severity, evidence, advice):
    run = runs(**options)
    if edit is not None:
        assert (name, None) not in look(run)
        run = edited(run, tmp_path, edit)
    found = look(run)
    finding = found[name, None]
    assert finding.severity == severity or not severity
    assert re.search(evidence, finding.evidence)
    assert advice in finding.advice
    if name in ("too-many-codes", "never-recovered"):  # they explain it, and so may chance
        assert ("starved-codes", None) not in found
    if name == "worse-than-mean":
        assert severe(found) == {name}


def test_the_exact_gradient_of_a_healthy_run_is_not_dead(runs):
    assert ("dead-gradient", None) not in look(runs(quantizer="ddcl"))


def test_weights_that_are_not_finite_are_all_that_is_said(runs, tmp_path):
    def edit(state: State) -> None:
        state["model"]["codebook.codebook"][3, 1] = float("nan")

    found = look(edited(runs(), tmp_path, edit))
    assert set(found) == {("non-finite", None)}
    assert "codebook.codebook" in found["non-finite", None].evidence


def test_findings_name_the_level(runs, tmp_path):
    def edit(state: State) -> None:
        prototypes = state["model"]["codebook.levels.1.codebook"]
        prototypes[1] = prototypes[0] + 1e-4
        prototypes[2] = 100

    found = look(edited(runs(**HEALTHY["levels"]), tmp_path, edit))
    assert {level for (name, level) in found if name in ("duplicates", "far-codes")} == {2}

    def disturb(state: State) -> None:
        state["model"]["normalize_bottom.running_mean"] += 30

    found = look(edited(runs(**HEALTHY["vqvae2"]), tmp_path, disturb))
    assert {level for name, level in found if name == "norm-statistics"} == {2}


def test_the_test_split_is_not_looked_at(runs, monkeypatch):
    real = examine.splits_of

    def without_test(*args: Any, **options: Any) -> Any:
        splits = real(*args, **options)
        splits.test.fill_(255)
        return splits

    expected = look(runs())
    monkeypatch.setattr(examine, "splits_of", without_test)
    assert look(runs()) == expected
