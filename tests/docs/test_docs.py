"""The documentation: python blocks run as they are printed, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from eval.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for number, block in enumerate(
        re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S)
    )
    if (page.name, number) != ("README.md", 0)  # test_readme_example.py runs it
]
assert len(BLOCKS) >= 2


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_runs(block):
    torch.manual_seed(0)
    exec(compile(block, "block", "exec"), {"__name__": "block"})


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
PAGES += (ROOT / "experiments").glob("*/README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = page.read_text("utf-8")
    links = re.findall(r"\]\(([^)#\s]+)", text)
    assert not [p for p in re.findall(r"`(tests/[\w./]+)`", text) if not (ROOT / p).exists()]
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("module", ["eval", "experiments"])
def test_every_command_that_the_readme_shows_exists(module):
    text = (ROOT / "README.md").read_text("utf-8")
    for name in re.findall(rf"python -m {module}[. ](\w+)", text):
        if module == "eval":
            assert name in main.commands
        else:
            assert (ROOT / module / name / "__main__.py").exists()
