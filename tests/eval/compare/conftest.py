"""Comparisons whose runs train in this process."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future

import pytest
from small_runs import without_figures

from eval.compare import plan as plan_module
from eval.compare import report


class InProcess(contextlib.nullcontext):
    """For both pools: signals are caught in the main thread only."""

    def __enter__(self):
        return self

    def map(self, function, items):
        return map(function, items)

    def submit(self, function, *args):
        done = Future()
        done.set_result(function(*args))
        return done


@pytest.fixture
def trained(monkeypatch):
    """Runs train in this process, nothing is drawn; the folders, in order."""
    done = []

    def record(config, **options):
        done.append(config.run.out.rsplit("/", 1)[-1])
        return real(config, **options)

    without_figures(monkeypatch)
    monkeypatch.setattr(report, "plot", lambda *_: None)
    real = plan_module.train
    monkeypatch.setattr(plan_module, "train", record)
    for pool in ("ThreadPoolExecutor", "ProcessPoolExecutor"):
        monkeypatch.setattr(plan_module, pool, lambda *_: InProcess())
    return done
