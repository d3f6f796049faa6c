"""python -m experiments.stability: results that go on, wrong calls."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner, Result
from scipy.spatial.distance import pdist
from small_runs import SMALL, checkpoint, metrics, refuse_constant, snapshot, without_figures

from experiments.stability import cifar10 as stability_cifar10
from experiments.stability import study as stability_study
from experiments.stability.__main__ import main
from experiments.stability.batch import run_batch
from experiments.stability.blocks import MixtureOptions, mixture_blocks
from experiments.stability.boundary import CASES
from experiments.stability.measures import NAMES
from experiments.stability.results import outcome


def stability(*words: object) -> Result:
    """``python -m experiments.stability WORDS``, in this process."""
    return CliRunner().invoke(main, [str(word) for word in words])


SMALL_STUDY = (
    "--epsilons", "1,0.1", "--ratios", "0.2,2", "--weights", "1", "--inits", "near",
    "--seeds", "1", "--steps", "3", "--frozen-steps", "2",
)  # fmt: skip


@pytest.fixture
def quick(monkeypatch):
    """One critical temperature, roughly; the names of the blocks trained."""
    done = []
    real = run_batch

    def counted(*args, **options):
        done.append(args[0])
        return real(*args, **options)

    monkeypatch.setattr(stability_study, "CASES", CASES[:1])
    monkeypatch.setattr("experiments.stability.blocks.CURVE", (0.2, 2.0))
    monkeypatch.setattr("experiments.stability.boundary.WATCHED", (2, 4))
    monkeypatch.setattr(stability_study, "run_batch", counted)
    return done


def read(folder):
    return json.loads((folder / "stability.json").read_text(), parse_constant=refuse_constant)


def test_the_command_leaves_json_tables_and_pictures_and_goes_on(tmp_path, quick, monkeypatch):
    result = stability(*SMALL_STUDY, "-o", tmp_path / "s")
    assert result.exit_code == 0, result.output
    study = read(tmp_path / "s")
    options = MixtureOptions((0.1, 1.0), (0.2, 2.0), (1.0,), ("near",), 1, 3, 2)
    names = [block.name for block in mixture_blocks(options)]
    assert list(study["runs"]) == names
    run = study["runs"]["epsilon/codebook/fixed"][0]
    assert (run["epsilon"], run["ratio"], run["init"]) == (0.1, 0.2, "near")
    assert run["history"]["step"] == [0, 1, 3]
    assert set(run["history"]) == {"step", *NAMES}
    assert (tmp_path / "s" / "stability.md").read_text() in result.output
    summed = json.loads((tmp_path / "s" / "summary.json").read_text())
    ended = summed["runs"]["epsilon/codebook/fixed"][0]
    assert ended["separation_mean"] == run["history"]["separation_mean"][-1]
    assert (ended["seed"], ended["epsilon"]) == (0, 0.1)
    # Three steps from a start that is collapsed.
    assert ended["outcome"] == outcome(run) == "never left"
    histories = [run["history"] for own in study["runs"].values() for run in own]
    worst = max(max(history["identity_residual"]) for history in histories)
    assert summed["worst_identity_residual"] == worst > 0
    for name in ("phases", "weights", "trajectories"):
        picture = tmp_path / "s" / f"stability-mixture-{name}.png"
        assert picture.read_bytes()[:4] == b"\x89PNG"
        assert f"written to {picture}" in result.output

    # What was lost is trained again, and nothing else.
    monkeypatch.setattr(stability_study, "draw", lambda result, out: [])
    lost = names[-2]
    del study["runs"][lost]
    (tmp_path / "s" / "stability.json").write_text(json.dumps(study))
    quick.clear()
    assert stability(*SMALL_STUDY, "-o", tmp_path / "s").exit_code == 0
    assert len(quick) == 1
    assert {(s.control, s.reconstruction) for s in quick[0]} == {("fixed", 1.0)}
    assert set(read(tmp_path / "s")["runs"]) == set(names)
    quick.clear()
    assert stability("--report-only", "-o", tmp_path / "s").exit_code == 0
    assert quick == []
    again = json.loads((tmp_path / "s" / "summary.json").read_text())
    assert again["options"] == study["options"]

    before = snapshot(tmp_path / "s")
    other = stability(*SMALL_STUDY, "--steps", 4, "-o", tmp_path / "s")
    assert other.exit_code == 2
    assert "holds a study of mixture with options" in other.stderr
    assert snapshot(tmp_path / "s") == before


def test_an_interrupted_study_keeps_what_it_has(tmp_path, quick, monkeypatch):
    real = stability_study.run_batch

    def interrupted(*args, **options):
        if len(quick) == 2:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(stability_study, "run_batch", interrupted)
    assert stability(*SMALL_STUDY, "-o", tmp_path).exit_code == 130
    study = read(tmp_path)
    assert list(study["runs"]) == ["curve/L_q", "curve/L_q, near collapse"]
    assert len(study["boundaries"]) == 1
    drawn = stability("--report-only", "-o", tmp_path)
    assert drawn.exit_code == 0, drawn.output


def test_cifar10_runs_are_trained_by_the_trainer_and_measured_each_epoch(tmp_path, monkeypatch):
    without_figures(monkeypatch)
    monkeypatch.setitem(stability_cifar10.STUDY, "dataset", SMALL["dataset"])
    sizes = {name: value for name, value in SMALL.items() if name not in ("epochs", "dataset")}
    words = [word for name, value in sizes.items() for word in ("--set", f"{name}={value}")]
    words += ["--epochs", "1"]
    call = ("--data", "cifar10", "--epsilons", "0.5", "--ratios", "0.2", *words, "-o", tmp_path)
    result = stability(*call, "--seeds", 1)
    assert result.exit_code == 0, result.output
    study = read(tmp_path)
    assert list(study["runs"]) == [
        f"epsilon/vqvae/{control}/0.5/0.2/0" for control in ("follows", "fixed")
    ]
    for name, [run] in study["runs"].items():
        folder = tmp_path / "runs" / name.replace("/", "-")
        config = json.loads((folder / "config.json").read_text())
        history = run["history"]
        assert history["step"] == [0, 8]
        assert config["epsilon"] == run["epsilon"] == 0.5
        assert (config["quantizer"], config["restart_threshold"]) == ("ddcl", 0)
        line = next(line for line in metrics(folder) if line["split"] == "val")
        assert history["mse_argmax"] == [None, pytest.approx(line["mse_argmax"], rel=1e-3)]
        state = checkpoint(folder)["model"]
        [prototypes] = [value for key, value in state.items() if key.endswith("codebook.codebook")]
        apart = pdist(prototypes.numpy()).mean() / math.sqrt(history["largest_variance"][-1])
        assert history["separation_mean"][-1] == pytest.approx(apart, rel=2e-3)
        temperature = state[next(key for key in state if key.endswith("codebook.temperature"))]
        # Of images that the tracked covariance has not seen.
        assert history["temperature_ratio"][0] == pytest.approx(0.2, rel=0.5)
        if run["control"] == "fixed":
            assert temperature == pytest.approx(config["temperature_start"])
            assert config["normalize_latents"] is False
        else:
            critical = state[next(k for k in state if k.endswith("critical_temperature"))]
            assert (temperature / critical).item() == pytest.approx(0.2, rel=1e-3)
    assert (tmp_path / "stability-cifar10-phases.png").exists()
    # One seed more trains that seed alone.
    monkeypatch.setattr(stability_study, "draw", lambda result, out: [])
    assert stability(*call, "--seeds", 2).exit_code == 0
    assert len(read(tmp_path)["runs"]) == 4


CIFAR = ("--data", "cifar10", "--set")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epsilons", "0.1,no"], "--epsilons must be positive numbers with commas between"),
        (["--ratios", "0"], "--ratios must be positive numbers"),
        (["--ratios", "inf"], "--ratios must be positive numbers"),
        (["--inits", "far"], "--inits takes spread, near, kmeans"),
        (["--seeds", "0"], "'--seeds'"),
        (["--data", "moons"], "'--data'"),
        (["--set", "epochs=3"], "--set is for --data cifar10, not for mixture"),
        (["--data", "cifar10", "--steps", "3"], "--steps is for --data mixture"),
        (["--data", "cifar10", "--controls", "loose"], "--controls takes follows, fixed"),
        ([*CIFAR, "epsilon=3"], "--set epsilon has a meaning of its own"),
        ([*CIFAR, "dataset=patches"], "--set dataset has a meaning of its own"),
        ([*CIFAR, "codebook-size=1"], "--set codebook_size=1: a study"),
        ([*CIFAR, "colour=3"], "train.py has no option 'colour'"),
        ([*CIFAR, "batch_size=0"], "batch_size"),
        (["--report-only"], "holds no run of a stability study"),
    ],
)
def test_wrong_calls_are_one_line_and_write_nothing(tmp_path, words, message):
    result = stability(*words, "-o", tmp_path / "s")
    assert result.exit_code == 2
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert not (tmp_path / "s").exists()
