"""Fixtures of the tests of documents."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def texts(shared: Path) -> Path:
    """The folder of the real corpora; without it the test is skipped."""
    return shared / "text"
