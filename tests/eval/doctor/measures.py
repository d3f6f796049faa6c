"""What several tests of the doctor need."""

from __future__ import annotations

import torch

from eval.doctor.finding import Finding


def severity(finding: Finding | None) -> str | None:
    return finding and finding.severity


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
