"""The python blocks of the documentation run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for number, block in enumerate(
        re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S)
    )
]


def test_there_are_blocks():
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_runs(block):
    torch.manual_seed(0)
    exec(compile(block, "block", "exec"), {"__name__": "block"})
