"""CONTRIBUTING.md: the worked example passes the contract suite, and the paths exist."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "conformance"))

import forward_checks  # noqa: E402, F401
import graph_checks  # noqa: E402, F401
import training_checks  # noqa: E402, F401
from adapters import Ours  # noqa: E402
from registry import CHECKS  # noqa: E402
from table import outcome  # noqa: E402

# Folders inside a room, under the room's name in the table.
ROOMS = {
    "codebooks/",
    "documents/",
    "report/",
    "compare/",
    "codec/",
    "doctor/",
    "cli/",
    "conformance/",
}
TEXT = (ROOT / "CONTRIBUTING.md").read_text()


@pytest.fixture(scope="module")
def example():
    source = re.search(r"```python\n(.*?)```", TEXT, flags=re.DOTALL).group(1)
    names = {"__name__": __name__}
    exec(source, names)
    globals()["OnlineKMeansCodebook"] = names["OnlineKMeansCodebook"]  # where pickle looks for it
    return names["OnlineKMeansCodebook"]


@pytest.mark.slow
@pytest.mark.parametrize("row", CHECKS)
def test_the_worked_example_passes_the_contract_suite(row, example):
    assert outcome(row, Ours(example)) == ("yes", "")


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(\w+/[\w./]*)`", TEXT)) - ROOMS))
def test_every_path_exists(path):
    assert (ROOT / path).exists()
