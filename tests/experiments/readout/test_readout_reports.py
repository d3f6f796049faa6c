"""What the readout's two studies say of the results that are committed."""

import json
from pathlib import Path

import pytest

import experiments.readout
from experiments.readout.cost import slopes, tables
from experiments.readout.quality import table

RESULTS = Path(experiments.readout.__file__).with_name("results")


def test_slopes_and_tables_of_the_committed_costs():
    result = json.loads((RESULTS / "cost.json").read_text())
    result["rows"] = [row for row in result["rows"] if row["layer"] != "attention-matrix"]
    found = slopes(result["rows"])
    assert found
    for name, own in found.items():
        assert own == pytest.approx(result["slopes"][name])
    assert "| ddcl forward " in tables(result | {"slopes": found})


def test_the_table_of_the_committed_accuracies():
    rows = json.loads((RESULTS / "quality.json").read_text())["rows"]
    lines = table(rows).splitlines()
    assert len(lines) == 2 + len(rows)
    [mean] = [line for line in lines if line.startswith("| mean ")]
    assert float(mean.split("|")[3]) == pytest.approx(0.792, abs=5e-4)
