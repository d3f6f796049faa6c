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
def cifar10_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds an official, unpacked ``cifar-10-batches-py``."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    shared = Path(os.environ.get("SOFTVQ_SHARED") or beside)
    script = shared / "cifar10" / "unpack_cifar10.py"
    if not script.is_file():
        reason = f"no CIFAR-10 for tests: {script} is missing (set SOFTVQ_SHARED)"
        if os.environ.get("SOFTVQ_REQUIRE_DATA") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    out = tmp_path_factory.mktemp("cifar10")
    subprocess.run([sys.executable, script, script.parent, out], check=True, capture_output=True)
    return out
