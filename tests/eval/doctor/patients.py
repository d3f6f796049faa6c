"""Runs to examine: healthy ones, ways to make them sick, and what is found in them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from small_runs import checkpoint

from eval.doctor import Finding, diagnose
from eval.doctor.finding import CHECKS
from training.checkpoint import save_checkpoint
from training.config import TrainConfig

State = dict[str, Any]
HEALTHY: dict[str, dict[str, Any]] = {
    "ddcl": {},
    "paper": {"quantizer": "ddcl"},
    "vq-ema": {"quantizer": "vq-ema"},
    "shared-scale": {"quantizer": "vq-ema", "shared_scale": True},
    "levels": {"levels": 2},
    "vqvae2": {"architecture": "vqvae2"},
    "none": {"quantizer": "none"},
}


def look(run: Path, images: int = 256) -> dict[tuple[str, int | None], Finding]:
    """Findings by name and level; whatever is found must be fit to be shown."""
    findings = diagnose(run, device="cpu", images=images)
    options = {"--" + name.replace("_", "-") for name in TrainConfig.kinds()}
    for finding in findings:
        assert finding.name in CHECKS
        assert re.search(r"\d", finding.evidence)
        assert finding.evidence.endswith(".")
        assert finding.advice.endswith(".")
        named = set(re.findall(r"--[a-z][a-z-]*", finding.advice))
        assert named <= options | {"--resume", "--out"}, named - options
        assert not re.search(r"\bnan\b|\binf\b", finding.evidence), finding
    found = {(f.name, f.level): f for f in findings}
    assert len(found) == len(findings)
    order = [("severe", "warning", "note").index(f.severity) for f in findings]
    assert order == sorted(order)
    return found


def severe(found: dict[tuple[str, int | None], Finding]) -> set[str]:
    return {f.name for f in found.values() if f.severity == "severe"}


def edited(run: Path, folder: Path, edit: Callable[[State], object]) -> Path:
    """A copy of a run's best checkpoint, edited."""
    state = checkpoint(run, "best.pt")
    edit(state)
    path = folder / "edited.pt"
    save_checkpoint(path, {key: value for key, value in state.items() if key != "format"})
    return path


def copied(run: Path, folder: Path, *names: str) -> Path:
    """Some files of a run in a folder of their own."""
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes((run / name).read_bytes())
    return folder


def duplicate(state: State, count: int) -> None:
    prototypes = state["model"]["codebook.codebook"]
    prototypes[-count:] = prototypes[:count] + 1e-4
