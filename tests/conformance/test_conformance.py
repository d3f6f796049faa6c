"""softvq passes every check, and docs/conformance.md says what the others do."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from adapters import OURS, Ours, Unavailable
from peers import PACKAGE, PEERS
from registry import CHECKS
from table import outcome, versions

from softvq import VQCodebook

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "conformance.md").read_text("utf-8")


def recorded():
    """Marks of the page by column and row."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("|")]
    names, _, *rows = lines
    return {
        name: {row[0]: row[column] for row in rows} for column, name in enumerate(names, start=1)
    }


def named(adapters):
    return pytest.mark.parametrize("adapter", adapters, ids=lambda adapter: adapter.name)


@pytest.mark.parametrize("row", CHECKS)
@named(OURS)
def test_softvq_passes(row, adapter):
    try:
        CHECKS[row](adapter)
    except Unavailable as error:
        pytest.skip(str(error))


def test_the_page_has_every_check_and_says_that_softvq_passes_them_all():
    table = recorded()
    for adapter in OURS:
        assert table[adapter.name] == dict.fromkeys(CHECKS, "yes")


@pytest.mark.skipif(not PEERS, reason=f"{PACKAGE} is not installed")
@pytest.mark.parametrize("row", CHECKS)
@named(PEERS)
def test_the_page_says_what_this_run_finds(row, adapter):
    try:
        installed = versions()
    except PackageNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    if f"with {installed}." not in PAGE:
        pytest.skip(f"docs/conformance.md is of other versions than {installed}")
    assert outcome(row, adapter)[0] == recorded()[adapter.name][row]


