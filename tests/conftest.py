"""Fixtures that more than one test file needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

# Thousands of tiny operations: threads would only wait for each other, the more so beside others.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and weights that tests need and nobody commits."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("SOFTVQ_SHARED") or beside)
    if not (folder / "cifar10" / "unpack_cifar10.py").is_file():
        reason = f"no data for tests in {folder} (set SOFTVQ_SHARED)"
        if os.environ.get("SOFTVQ_REQUIRE_DATA") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def cifar10_dir(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds an official, unpacked ``cifar-10-batches-py``."""
    script = shared / "cifar10" / "unpack_cifar10.py"
    out = tmp_path_factory.mktemp("cifar10")
    subprocess.run([sys.executable, script, script.parent, out], check=True, capture_output=True)
    return out
