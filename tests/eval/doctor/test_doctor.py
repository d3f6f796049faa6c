"""python -m eval doctor: runs made sick on purpose are diagnosed, healthy ones are not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from small_runs import checkpoint, run_small, snapshot, without_figures

from eval.__main__ import main
from eval.doctor import Finding, diagnose, examine, format_findings
from eval.doctor.finding import CHECKS
from training.checkpoint import save_checkpoint
from training.config import TrainConfig
from training.errors import UserError
from training.run_log import RunLog

State = dict[str, Any]

# Small images, so that 64 steps take a second: long enough to reconstruct something.
TRAINED: dict[str, Any] = {"epochs": 4, "image_size": 16, "batch_size": 16, "hidden_channels": 16}
HEALTHY: dict[str, dict[str, Any]] = {
    "ddcl": {},
    "paper": {"quantizer": "ddcl"},
    "vq-ema": {"quantizer": "vq-ema"},
    "shared-scale": {"quantizer": "vq-ema", "shared_scale": True},
    "levels": {"levels": 2},
    "vqvae2": {"architecture": "vqvae2"},
    "none": {"quantizer": "none"},
}
LONGER: dict[str, dict[str, Any]] = {
    "pyramid": {"levels": 2, "level_pool": "2,1", "quantizer": "vq-ema", "level_dropout": 0.2},
    "vqp-ema": {"quantizer": "vqp-ema"},
    "simvq": {"quantizer": "simvq"},
    "vqvae2": {"architecture": "vqvae2", "quantizer": "vq-ema", "level_dropout": 0.2},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Callable[..., Path]:
    """Runs by their options, each trained once."""
    root, made = tmp_path_factory.mktemp("runs"), {}

    def run(**options: Any) -> Path:
        key = repr(sorted(options.items()))
        if key not in made:
            with pytest.MonkeyPatch.context() as patch:
                without_figures(patch)
                patch.setattr(RunLog, "write_pictures", lambda *args: None, raising=False)
                made[key] = run_small(root / str(len(made)), **(TRAINED | options))
        return made[key]

    return run


def look(run: Path, images: int = 256) -> dict[tuple[str, int | None], Finding]:
    """Findings by name and level; whatever is found must be fit to be shown."""
    findings = diagnose(run, device="cpu", images=images)
    options = {"--" + name.replace("_", "-") for name in TrainConfig.kinds()}
    for finding in findings:
        assert finding.name in CHECKS
        assert re.search(r"\d", finding.evidence)
        assert finding.evidence.endswith(".")
        assert finding.advice.endswith(".")
        named = set(re.findall(r"--[a-z][a-z-]*", finding.advice))
        assert named <= options | {"--resume", "--out"}, named - options
        assert not re.search(r"\bnan\b|\binf\b", finding.evidence), finding
    found = {(f.name, f.level): f for f in findings}
    assert len(found) == len(findings)
    order = [("severe", "warning", "note").index(f.severity) for f in findings]
    assert order == sorted(order)
    return found


def severe(found: dict[tuple[str, int | None], Finding]) -> set[str]:
    return {f.name for f in found.values() if f.severity == "severe"}


def edited(run: Path, folder: Path, edit: Callable[[State], object]) -> Path:
    """A copy of a run's best checkpoint, edited."""
    state = checkpoint(run, "best.pt")
    edit(state)
    path = folder / "edited.pt"
    save_checkpoint(path, {key: value for key, value in state.items() if key != "format"})
    return path


@pytest.mark.parametrize("name", HEALTHY)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "sick"),
    [
        ({}, set()),
        ({"quantizer": "ddcl"}, set()),
        ({"quantizer": "vq-ema"}, set()),
        ({"levels": 3}, set()),
        ({"quantizer": "vq"}, {"collapsed", "never-recovered"}),
    ],
)
def test_real_images(tmp_path, monkeypatch, cifar10_dir, options, sick):
    without_figures(monkeypatch)
    monkeypatch.setattr(RunLog, "write_pictures", lambda *args: None, raising=False)
    real = {"dataset": "cifar10", "data_dir": str(cifar10_dir), "limit_train": 2000, "epochs": 5}
    size = {"hidden_channels": 32, "codebook_size": 256, "codebook_dim": 64, "batch_size": 128}
    run = run_small(tmp_path / "run", **real, **size, **options)
    assert severe(look(run, images=600)) == sick


def test_a_temperature_above_the_critical_one(runs):
    hot = {"temperature_mode": "critical", "temperature_start": 1.2, "temperature_end": 1.2}
    found = look(runs(**hot))
    assert severe(found) == {"collapsed"}
    finding = found["collapsed", None]
    assert re.search(r"T is 1\.[12]\d* of the critical", finding.evidence)
    assert "--temperature-start 0.02 --temperature-end 0.002" in finding.advice
    # What follows from it is not said again.
    assert not {"too-soft", "duplicates", "dead-gradient"} & {name for name, _ in found}


def duplicate(state: State, count: int) -> None:
    prototypes = state["model"]["codebook.codebook"]
    prototypes[-count:] = prototypes[:count] + 1e-4


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
COLD = {"quantizer": "ddcl", "temperature_mode": "constant", "temperature_start": 1e-6, "epochs": 1}
MANY = {"codebook_size": 512, "limit_train": 64, "epochs": 1}
STATISTICS = [
    (lambda state: shift_mean(state, 0.6), "warning"),
    (lambda state: shift_mean(state, -3.0), "severe"),
    (lambda state: state["model"]["normalize.running_var"].mul_(2.5), "warning"),
    (lambda state: state["model"]["normalize.running_var"].div_(6), "severe"),
]
# (options, what is done to the checkpoint, finding, severity, evidence as a pattern, advice)
SICK: list[tuple[dict[str, Any], Callable[[State], object] | None, str, str, str, str]] = [
    (WARM, None, "near-collapse", "warning", "", ""),
    (SOFT, None, "too-soft", "", r"ended at [56]\.\d\d codes per token", "--temperature-end 1.3"),
    ({"quantizer": "ddcl", "epsilon": 1.0, "epochs": 1}, None, "epsilon", "severe", "outruns",
     "--epsilon 0.03"),
    ({"quantizer": "ddcl", "epsilon": 0.001, "epochs": 1}, None, "epsilon", "severe",
     "a step of Adam", "--epsilon 0.03"),
    (MANY, None, "too-many-codes", "severe", "1,024 tokens for 512 codes, 2.0 each", ""),
    ({"quantizer": "vq", "codebook_size": 256}, None, "never-recovered", "severe", "",
     "--quantizer vq-ema"),
    (COLD, None, "dead-gradient", "severe", "", "--quantizer ddcl-em"),
    (EMA, lambda state: duplicate(state, 1), "duplicates", "warning", "1 of 16 codes", ""),
    (EMA, lambda state: duplicate(state, 8), "duplicates", "severe", "8 of 16 codes", ""),
    (EMA, lambda state: move_away(state, 2), "far-codes", "warning", "2 of 16 codes", ""),
    (EMA, lambda state: move_away(state, 6), "far-codes", "severe", "6 of 16 codes", ""),
    ({}, lambda state: count_tokens(state, 1000, slice(3, 4), 0, since=2), "starved-codes",
     "warning", "training epoch 4, .* since epoch 3: 3", ""),
    ({}, lambda state: count_tokens(state, 1000, slice(6), 0, since=2), "starved-codes", "severe",
     "training epoch 4, .* since epoch 3: 0, 1, 2, 3, 4, 5", ""),
    ({}, lambda state: count_tokens(state, 10, slice(1), 16_000), "low-perplexity", "severe", "",
     "--balance 0.6"),
    (EMA, flatten, "low-dimension", "warning", r"1\.0 of D = 8", ""),
    ({"quantizer": "none"}, brighten, "worse-than-mean", "severe", "", ""),
    *((options, edit, "norm-statistics", severity, "", "model.calibrate")
      for options in (EMA, SHARED) for edit, severity in STATISTICS),
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


def copied(run: Path, folder: Path, *names: str) -> Path:
    """Some files of a run in a folder of their own."""
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes((run / name).read_bytes())
    return folder


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
        (
            "vq-ema",
            lambda state: starve(state, 0),
            "starved-codes",
            None,
            "--restart-threshold 0.2",
        ),
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
    assert doctor(folder, "--images", 64, "--device", "cpu").exit_code == 1
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
    result = doctor(folder, "--images", 64)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "metrics.jsonl is not text (byte 13)" in line


def test_an_error_that_nobody_foresaw_is_not_a_diagnosis_either(runs, monkeypatch):
    def broken(*args: Any, **options: Any) -> None:
        raise ZeroDivisionError("one\nby two")

    monkeypatch.setattr(examine, "measure", broken)
    result = doctor(runs(), "--images", 64)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "ZeroDivisionError: one by two" in line


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


def doctor(*words: object) -> Result:
    return CliRunner().invoke(main, ["doctor", *(str(word) for word in words)])


def test_the_exit_status_and_the_file_say_whether_it_is_severe(runs, tmp_path):
    well, file = runs(), tmp_path / "out" / "findings.json"
    result = doctor(well, "--images", 64, "--device", "cpu", "--json", file)
    assert result.exit_code == 0, result.output
    findings = diagnose(well, device="cpu", images=64)
    assert result.stdout == f"{format_findings(findings)}\nwritten to {file}\n"
    assert json.loads(file.read_text()) == {"findings": [f._asdict() for f in findings]}
    sick = edited(runs(quantizer="vq-ema"), tmp_path, lambda state: duplicate(state, 8))
    result = doctor(sick, "--images", 64)
    assert result.exit_code == 1
    assert result.stdout.startswith("SEVERE duplicates\n")


def test_a_lone_checkpoint_is_enough_anywhere(runs, tmp_path, monkeypatch):
    lone = tmp_path / "model.pt"
    lone.write_bytes((runs() / "best.pt").read_bytes())
    monkeypatch.chdir(tmp_path)
    found, expected = look(Path("model.pt")), look(runs())
    # That the run went on after its best epoch is what its log alone knows.
    found.pop(("unfinished", None), None)
    assert found == expected


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
    result = doctor(*(word.replace("{}", str(tmp_path)) for word in words))
    assert result.exit_code == 2
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert snapshot(tmp_path) == before


def test_too_few_images_are_an_error_to_callers_too(runs):
    with pytest.raises(UserError, match="at least 2"):
        diagnose(runs(), images=1)


def test_nothing_wrong_says_what_was_checked():
    text = format_findings([])
    assert text.startswith("nothing is wrong. Checked")
    assert all(name in text for name in CHECKS)
