"""python -m eval compare: sweeps, seeds, intervals; nothing is trained twice."""

from __future__ import annotations

import functools
import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats
from small_plans import plan_of
from small_runs import STEPS_PER_EPOCH

from eval.__main__ import main
from eval.compare import plan as plan_module
from eval.compare.intervals import summary
from eval.compare.plan import diverged
from eval.compare.report import compare, plot, table
from training.callbacks import Callback
from training.errors import DivergedError, UserError


def with_callback(monkeypatch, on_step):
    """Runs call on_step(trainer) after each step."""
    observer = type("Observer", (Callback,), {"on_step": lambda _, trainer: on_step(trainer)})()
    watched = functools.partial(plan_module.train, callbacks=[observer])
    monkeypatch.setattr(plan_module, "train", watched)


def lines_of(plan, *run, split):
    lines = (plan.folder(*run) / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["split"] == split]


def test_a_comparison_by_hand(tmp_path, trained):
    plan = plan_of(tmp_path, "ddcl-em", "none", lrs=(0.001, 0.004), seeds=2)
    result = compare(plan)
    names = set(trained)
    assert len(trained) == len(names) == 2 * 2 + 2  # a sweep each, then the other seed
    for quantizer in plan.quantizers:
        own = result["quantizers"][quantizer]
        key = "mse_soft" if quantizer == "none" else "mse_argmax"
        errors = {lr: lines_of(plan, quantizer, lr, 0, split="val")[-1][key] for lr in plan.lrs}
        assert own["lr"] == min(errors, key=errors.get)
        assert own["sweep"] == {f"{lr:g}": error for lr, error in errors.items()}
        assert f"{quantizer}-lr{own['lr']:g}-seed1" in names
    own = result["quantizers"]["ddcl-em"]
    tests = [lines_of(plan, "ddcl-em", own["lr"], seed, split="test")[-1] for seed in range(2)]
    values = [line["mse_argmax"] for line in tests]
    assert own["mean"]["mse_argmax"] == pytest.approx(np.mean(values))
    low, high = stats.t.interval(0.95, 1, np.mean(values), stats.sem(values))
    assert own["interval"]["mse_argmax"] == pytest.approx((high - low) / 2)
    gaps = [line["mse_argmax"] / line["mse_soft"] for line in tests]
    assert own["mean"]["gap"] == pytest.approx(np.mean(gaps))
    assert result["quantizers"]["none"]["mean"]["mse_argmax"] is None
    rows = table(result).splitlines()
    assert [row.split("|")[1].strip() for row in rows[2:]][-1] == "`none`"
    excess = [row.split("|")[-2].strip() for row in rows]
    floor = result["quantizers"]["none"]["mean"]["mse_soft"]
    assert excess[0] == f"excess over {floor:.5f}"
    assert excess[-1] == "-"
    assert float(excess[2]) == pytest.approx(
        min(own["mean"]["mse_argmax"] or 9 for own in result["quantizers"].values()) - floor,
        abs=1e-5,
    )
    plot(result, plan.out / "compare.png")
    for name in ("compare.json", "compare.md", "compare.png"):
        assert (plan.out / name).stat().st_size > 100
    assert json.loads((plan.out / "compare.json").read_text()) == json.loads(json.dumps(result))


def test_a_finished_run_is_never_trained_again(tmp_path, trained):
    plan = plan_of(tmp_path, "vq-ema", seeds=2)
    first = compare(plan)
    trained.clear()
    assert compare(plan) == first
    assert trained == []
    more = replace(plan, seeds=3)
    compare(more)
    assert trained == ["vq-ema-lr0.002-seed2"]
    # As if it had been killed before its last line.
    folder = plan.folder("vq-ema", 0.002, 1)
    (folder / "metrics.jsonl").write_text("")
    trained.clear()
    with pytest.raises(
        UserError, match=r"1 of 1 runs failed, the first .*seed1, with 'nothing to train"
    ):
        compare(more)
    assert trained == ["vq-ema-lr0.002-seed1"]
    assert "nothing to train" in (folder / "train.log").read_text()


def test_a_stopped_run_goes_on_to_the_same_figures(tmp_path, trained, monkeypatch):
    plan = plan_of(tmp_path, "vq-ema", epochs=2)
    whole = compare(replace(plan, out=tmp_path / "whole"))

    def stop(trainer):
        if trainer.step == STEPS_PER_EPOCH + 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        with_callback(patch, stop)
        with pytest.raises(UserError, match="1 of 1 runs failed"):
            compare(plan)
    folder = plan.folder("vq-ema", 0.002, 0)
    assert f"stopped at step {STEPS_PER_EPOCH + 2} of" in (folder / "train.log").read_text()
    resumed = compare(plan)
    assert trained == ["vq-ema-lr0.002-seed0"] * 3
    assert untimed(resumed) == untimed(whole)


def untimed(result):
    """Without what depends on the machine's mood."""
    if isinstance(result, dict):
        return {name: untimed(part) for name, part in result.items() if name != "milliseconds"}
    return [untimed(part) for part in result] if isinstance(result, list) else result


def test_a_part_of_a_comparison_can_be_reported(tmp_path, trained):
    plan = plan_of(tmp_path, "ddcl-em", "vq-ema", seeds=2)
    compare(replace(plan, quantizers=("ddcl-em",), seeds=1))
    trained.clear()
    result = compare(plan, train=False)
    assert trained == []
    assert set(result["quantizers"]) == {"ddcl-em"}
    assert result["quantizers"]["ddcl-em"]["interval"]["mse_argmax"] is None
    with pytest.raises(UserError, match="leave out --report-only"):
        compare(plan_of(tmp_path / "nothing", "vq"), train=False)
    assert not (tmp_path / "nothing").exists()


def diverge(monkeypatch, which):
    """Runs of these configs lose their numbers in the first step."""

    def lose(trainer):
        if which(trainer.config):
            raise DivergedError("the loss became nan at step 1")

    with_callback(monkeypatch, lose)


def test_a_rate_that_diverges_stops_no_other_and_is_not_tried_again(tmp_path, trained, monkeypatch):
    diverge(monkeypatch, lambda config: config.optimizer.lr == 0.5)
    plan = plan_of(tmp_path, "vq-ema", lrs=(0.5, 0.002))
    own = compare(plan)["quantizers"]["vq-ema"]
    assert own["sweep"]["0.5"] is None
    assert own["lr"] == 0.002
    assert len(own["runs"]) == 1
    assert trained == ["vq-ema-lr0.5-seed0", "vq-ema-lr0.002-seed0"]
    trained.clear()
    compare(plan)
    assert trained == []
    lost = compare(replace(plan, lrs=(0.5,)))["quantizers"]["vq-ema"]
    assert lost["runs"] == []
    assert lost["mean"]["mse_argmax"] is None
    assert trained == []


def spaced(text):
    """Without the padding of columns."""
    return " ".join(text.split())


def test_a_seed_that_diverges_is_said(tmp_path, trained, monkeypatch):
    diverge(monkeypatch, lambda config: config.run.seed == 1)
    result = compare(plan_of(tmp_path, "vq-ema", seeds=3))
    own = result["quantizers"]["vq-ema"]
    assert own["diverged"] == [1]
    assert [run["seed"] for run in own["runs"]] == [0, 2]
    assert "| `vq-ema` | 0.002 | 2, 1 diverged |" in spaced(table(result))


def test_a_figure_that_one_seed_lacks_has_no_mean(tmp_path, trained):
    plan = plan_of(tmp_path, "vq-ema", seeds=2)
    compare(plan)
    metrics = plan.folder("vq-ema", 0.002, 1) / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    for line in lines:
        line["perplexity"] = None
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    own = compare(plan)["quantizers"]["vq-ema"]
    assert own["mean"]["perplexity"] is None
    assert own["mean"]["mse_argmax"] is not None


def test_through_the_command_line(tmp_path, trained):
    words = ["compare", "--quantizers", "ddcl:engine=dense, fsq", "--codebook-size", "16"]
    words += ["--codebook-dim", "8", "--epochs", "1", "--limit-train", "256", "--limit-test", "64"]
    words += ["--seeds", "1", "--lrs", "0.002", "-o", str(tmp_path / "c")]
    for setting in ("dataset=patches", "hidden-channels=8", "residual-channels=8", "batch-size=32"):
        words += ["--set", setting]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert sorted(trained) == ["ddcl-engine-dense-lr0.002-seed0", "fsq-lr0.002-seed0"]
    assert "| `ddcl:engine=dense` | 0.002 | 1 |" in spaced(result.stdout)
    assert "images: patches; written to" in result.stdout
    assert (tmp_path / "c/compare.md").read_text().startswith("Images: patches\n")
    config = json.loads(
        (tmp_path / "c/runs/ddcl-engine-dense-lr0.002-seed0/config.json").read_text()
    )
    assert (config["engine"], config["hidden_channels"], config["batch_size"]) == ("dense", 8, 32)
    trained.clear()
    again = CliRunner().invoke(main, [*words, "--report-only", "--set", f"data-dir={tmp_path}"])
    assert again.exit_code == 0
    # Where the images lie on this machine is nobody else's.
    assert str(tmp_path) not in (tmp_path / "c/compare.json").read_text()
    assert trained == []
    for wrong, message in (
        (["--lrs", "fast"], "--lrs must be numbers"),
        (["--set", "colour=3"], "train.py has no option 'colour': see train.py --help"),
        (["--set", "batch-size=x"], "needs a value of type int"),
        (["--set", "batch-size"], "NAME=VALUE, got 'batch-size'"),
        (["--set", "codebook-dim=4"], "give that instead of --set codebook-dim"),
        (["--quantizers", "kmeans"], "quantizer must be one of"),
    ):
        result = CliRunner().invoke(main, [*words, *wrong])
        assert result.exit_code == 2
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_intervals():
    values = [0.1, 0.4, 0.3, 0.7]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    mean, sd, half = summary(values)
    assert (mean, sd) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert half == pytest.approx((high - low) / 2)
    assert summary([1.0]) == (1.0, None, None)
    assert summary([2.0, 2.0]) == (2.0, 0.0, 0.0)


def test_a_run_trains_in_a_process_of_its_own(tmp_path):
    plan = plan_of(tmp_path, "vq", lrs=(1e30,))
    assert compare(plan)["quantizers"]["vq"]["sweep"] == {"1e+30": None}
    folder = plan.folder("vq", 1e30, 0)
    assert diverged(folder)
    assert "; lower --lr" in (folder / "train.log").read_text()
