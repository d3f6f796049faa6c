"""Runs for the doctor, of small images: 64 steps, enough to reconstruct something, in a second."""

from functools import partial

import pytest


@pytest.fixture(scope="session")
def runs(run_of):
    return partial(run_of, epochs=4, image_size=16, batch_size=16, hidden_channels=16)
