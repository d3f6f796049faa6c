"""Runs of a second that several files look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_runs import run_small, without_figures


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Gives the run with some options, trained when it is asked for first, without pictures."""
    root, made = tmp_path_factory.mktemp("runs"), {}

    def run(**options: Any) -> Path:
        key = repr(sorted(options.items()))
        if key not in made:
            with pytest.MonkeyPatch.context() as patch:
                without_figures(patch)
                made[key] = run_small(root / str(len(made)), **options)
        return made[key]

    return run
