"""Runs of a soft, a hard and no codebook."""

import pytest


@pytest.fixture(scope="session")
def runs(run_of):
    return {name: run_of(quantizer=name, epochs=1) for name in ("ddcl-em", "vq-ema", "none")}
