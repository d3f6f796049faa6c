"""Plans of comparisons of a second."""

from __future__ import annotations

from small_runs import SMALL

from eval.compare.plan import Plan

OPTIONS = SMALL | {"epochs": 1}


def plan_of(tmp_path, *quantizers, lrs=(0.002,), seeds=1, **options):
    return Plan(quantizers, OPTIONS | options, lrs, seeds, tmp_path / "cmp")
