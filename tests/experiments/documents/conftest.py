"""Fixtures of the tests of documents."""

from __future__ import annotations

from pathlib import Path

import pytest
from text_samples import small_encoder


@pytest.fixture(scope="session")
def texts(shared: Path) -> Path:
    """The folder of the real corpora; without it the test is skipped."""
    return shared / "text"


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory) -> Path:
    """A small encoder, as a Hugging Face folder."""
    return small_encoder(tmp_path_factory.mktemp("encoder"))
