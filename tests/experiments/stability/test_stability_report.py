"""Stability studies: outcomes of runs, tables, and phase diagrams."""

from __future__ import annotations

import pytest

from experiments.stability.figures import phase_figure
from experiments.stability.results import bracket, frame_of, opened, outcome, panels, report, shares
from training.errors import UserError


def study_of(*runs, boundaries=None):
    """A study of (epsilon, ratio, collapsed at the end, collapsed at first)."""
    found = [
        {
            "epsilon": epsilon, "ratio": ratio, "init": "near",
            "history": {"collapsed": [first, collapsed], "identity_residual": [1e-7, None]},
        }
        for epsilon, ratio, collapsed, first in runs
    ]  # fmt: skip
    return {"boundaries": boundaries, "runs": {"epsilon/codebook/fixed": found}}


def lines_of(study):
    """Lines of the report, without the spaces that align its columns."""
    return [" ".join(line.split()) for line in report(study).splitlines()]


def test_the_table_says_where_collapse_begins():
    runs = [(1.0, r, c, False) for r, c in [(0.1, False), (0.1, False), (0.5, True), (0.5, False)]]
    study = study_of(*runs, (1.0, 2.0, True, False), (0.1, 0.1, None, False))
    found = shares(frame_of(study), "epsilon")
    assert found.loc[0.5, 1.0] == 0.5
    assert bracket(found[1.0]) == (0.1, 2.0)
    ended = [outcome(run) for run in study["runs"]["epsilon/codebook/fixed"]]
    assert ended[-2:] == ["collapsed", "diverged"]
    lines = lines_of(study)
    assert "| 1 | 0.1 | 2 |" in lines
    assert "| 0.1 | 0.1 | none |" in lines
    assert "1 of 6 runs diverged" in lines


def test_a_run_that_never_left_collapse_is_told_from_one_that_fell_into_it():
    study = study_of(*[(1.0, 0.5, True, first) for first in (True, False)], (1.0, 0.2, False, True))
    frame = frame_of(study)
    assert list(frame["outcome"]) == ["never left", "collapsed", "alive"]
    assert shares(frame, "epsilon").loc[0.5, 1.0] == 1.0
    assert "1 of the 2 collapsed runs never left a collapsed start" in lines_of(study)
    [axis, *_] = phase_figure(panels(frame)).axes
    assert axis.get_title() == "codebook, fixed, near: collapsed at the start"


def test_the_measured_boundary_of_every_loss_stands_beside_the_theory():
    measured = {"name": "L_q", "predicted": 4.0, "measured_over_predicted": [0.98, 1.0, 1.03]}
    study = study_of((1.0, 0.5, True, False), boundaries=[measured])
    assert "| L_q | 4 | 1.003 (0.980 to 1.030) |" in lines_of(study)


@pytest.mark.parametrize("text", ["{", "[]", '{"data": "mixture"}'])
def test_a_damaged_file_is_not_written_over(tmp_path, text):
    (tmp_path / "stability.json").write_text(text)
    with pytest.raises(UserError, match="cannot be read as a stability study"):
        opened(tmp_path, "mixture", {})
    assert (tmp_path / "stability.json").read_text() == text
