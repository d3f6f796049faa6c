"""Stability studies: outcomes of runs, tables, and the panel of measured boundaries."""

from __future__ import annotations

import numpy as np

from experiments.stability.figures import phase_figure
from experiments.stability.report import bracket, outcome, report, shares


def run_of(epsilon, ratio, collapsed, at_first=False):
    history = {"collapsed": [at_first, collapsed], "identity_residual": [1e-7, None]}
    return {"epsilon": epsilon, "ratio": ratio, "init": "near", "history": history}


def test_the_table_says_where_collapse_begins():
    runs = [run_of(1.0, r, c) for r, c in [(0.1, False), (0.1, False), (0.5, True), (0.5, False)]]
    runs += [run_of(1.0, 2.0, True), run_of(0.1, 0.1, None)]
    assert shares(runs, "epsilon")[1.0, 0.5] == 0.5
    assert bracket(shares(runs, "epsilon"), 1.0) == (0.1, 2.0)
    assert [outcome(run) for run in runs[-2:]] == ["collapsed", "diverged"]
    study = {"boundaries": None, "runs": {"epsilon/codebook/fixed": runs}}
    lines = report(study).splitlines()
    assert "| 1 | 0.1 | 2 |" in lines
    assert "| 0.1 | 0.1 | none |" in lines
    assert "1 of 6 runs diverged" in lines


def test_a_run_that_never_left_collapse_is_told_from_one_that_fell_into_it():
    runs = [run_of(1.0, 0.5, True, at_first=first) for first in (True, False)]
    runs += [run_of(1.0, 0.2, False, at_first=True)]
    assert [outcome(run) for run in runs] == ["never left", "collapsed", "alive"]
    assert shares(runs, "epsilon")[1.0, 0.5] == 1.0
    assert shares(runs, "epsilon", ("never left",))[1.0, 0.5] == 0.5
    text = report({"boundaries": None, "runs": {"epsilon/codebook/fixed": runs}})
    assert "1 of the 2 collapsed runs never left a collapsed start" in text.splitlines()


def test_the_phase_figure_shows_the_measured_boundary_of_every_loss_and_seed():
    measured = [{"name": "L_q", "predicted": 4.0, "measured_over_predicted": [0.98, 1.0, 1.03]}]
    near = [run_of(0.1, 0.95, False, at_first=True), run_of(0.1, 1.05, True, at_first=True)]
    near += [run_of(0.1, 2.0, True, at_first=True)]
    [grid] = [run_of(1.0, 0.5, True)]
    grid["history"]["separation_mean"] = [1.0, 0.0]
    study = {
        "boundaries": measured,
        "runs": {"curve/L_q, near collapse": near, "epsilon/codebook/fixed": [grid]},
    }
    figure = phase_figure(study)
    assert figure is not None
    panel = figure.axes[0]
    seeds, apart, stays, theory = panel.lines
    assert np.asarray(seeds.get_xdata()).tolist() == [0.98, 1.0, 1.03]
    assert len(np.unique(seeds.get_ydata())) == 3
    drawn = {
        str(line.get_label()): np.asarray(line.get_xdata()).tolist() for line in (apart, stays)
    }
    assert drawn == {"comes apart": [0.95], "stays collapsed": [1.05]}
    assert np.asarray(theory.get_xdata()).tolist() == [1, 1]
    assert figure.axes[1].get_title() == "codebook, fixed, near: collapsed at the start"
