"""Models of one level and of several, each of a run of an epoch."""

import pytest

from eval.run import open_model

KINDS = {
    "one": {},
    "residual": {"levels": 2, "quantizer": "vq-ema"},
    "pyramid": {"levels": 3, "level_pool": "4,2,1", "level_sizes": "5,16,30"},
    "odd": {"levels": 3, "level_pool": "5,3,2"},
    "vqvae2": {"architecture": "vqvae2", "level_dropout": 0.5},
}


@pytest.fixture(scope="session")
def runs(run_of):
    return {name: run_of(**kind, epochs=1) for name, kind in KINDS.items()}


@pytest.fixture(scope="session")
def models(runs):
    return {name: open_model(run, device="cpu") for name, run in runs.items()}
