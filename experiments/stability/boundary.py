"""Where collapse begins to attract: the measured critical temperature of frozen latents."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from experiments.stability.batch import run_batch
from experiments.stability.measures import TOUCHING
from experiments.stability.mixture import CODES, DIM, Setting

# Steps between which prototypes near collapse must move apart: before, all but the leading axis
# die out.
WATCHED = (100, 200)
# T over the predicted T_c, between which the boundary is looked for.
BRACKET = (0.5, 2.0)


@dataclass(frozen=True)
class Case:
    """A loss on frozen latents, and the critical temperature that the theory gives it.

    Attributes:
        name: For tables.
        factor: T_c over the largest variance of the latents.
        reconstruction: Weight of a reconstruction by a frozen orthonormal decoder, which adds to a.
        variance_weight: b in ``a L_OLS + b V``.
        em: Prototypes by soft EM: the assignment is held.
    """

    name: str
    factor: float
    reconstruction: float = 0.0
    variance_weight: float = 1.0
    em: bool = False


CASES = (
    Case("L_q through q", 4.0),
    Case("L_OLS + V/2", 8.0, variance_weight=0.5),
    Case("L_OLS + 2 V", 2.0, variance_weight=2.0),
    Case("L_OLS + 4 V", 1.0, variance_weight=4.0),
    Case("soft EM (q held)", 2.0, em=True),
    Case("L_q + reconstruction", 8.0, reconstruction=1.0),
    Case("L_q + 4 reconstruction", 20.0, reconstruction=4.0),
)


def setting_of(case: Case, seed: int, relative: float) -> Setting:
    """A run near collapse at ``relative`` times the predicted critical temperature."""
    return Setting(
        seed,
        ratio=relative * case.factor / 4,
        init="near",
        reconstruction=case.reconstruction,
        variance_weight=case.variance_weight,
        em=case.em,
        # Near collapse the curvatures are 2 b (1 - T_c / T) / (K D) along the latents' leading
        # axis and 2 a / (K D) for a shift of all prototypes: this rate overshoots neither.
        rate=CODES * DIM / (2 * max(case.variance_weight, 1 + case.reconstruction)),
        epsilon=1.0,
    )


def boundaries(
    cases: Sequence[Case],
    seeds: Sequence[int],
    rounds: int = 9,
    progress: Callable[[], object] = lambda: None,
) -> list[dict[str, Any]]:
    """The temperature at which a collapsed codebook stops coming apart, by bisection.

    Args:
        cases: What to measure.
        seeds: Each another mixture and another start.
        rounds: Bisections; 9 leave an uncertainty of 0.14 %.
        progress: Called after each round.

    Returns:
        For each case its ``name``, ``predicted`` T_c over lambda_max, and the list
        ``measured_over_predicted``, one for each seed.
    """
    runs = [(case, seed) for case in cases for seed in seeds]
    found: dict[str, list[float]] = {}
    for (case, _), middle in zip(runs, bisect(runs, rounds, progress), strict=True):
        found.setdefault(case.name, []).append(round(middle, 5))
    return [
        {"name": c.name, "predicted": c.factor, "measured_over_predicted": found[c.name]}
        for c in cases
    ]


def bisect(
    runs: Sequence[tuple[Case, int]], rounds: int, progress: Callable[[], object]
) -> list[float]:
    """T over the predicted T_c at which each run turns, all runs side by side."""
    low, high = ([math.log(end)] * len(runs) for end in BRACKET)
    for _ in range(rounds):
        middle = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
        settings = [
            setting_of(*run, relative=math.exp(m)) for run, m in zip(runs, middle, strict=True)
        ]
        history = run_batch(settings, WATCHED, torch.float64)
        for number, (before, after) in enumerate(history):
            apart = after["separation_mean"]
            if apart > before["separation_mean"] or apart > TOUCHING:
                low[number] = middle[number]
            else:
                high[number] = middle[number]
        progress()
    return [math.exp((a + b) / 2) for a, b in zip(low, high, strict=True)]
