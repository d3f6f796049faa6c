"""Where collapse begins to attract: the measured critical temperature of frozen latents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from softvq.functional import critical_factor

from .batch import run_batch
from .measures import TOUCHING
from .mixture import CODES, DIM, Setting

# Steps between which prototypes near collapse must move apart: before, all but the leading axis
# die out.
WATCHED = (100, 200)
# T over the predicted T_c, between which the boundary is looked for.
BRACKET = (0.5, 2.0)


@dataclass(frozen=True)
class Case:
    """A loss on frozen latents, and the critical temperature that the theory gives it.

    Attributes:
        name: Name of the loss, for tables.
        factor: T_c over the largest variance of the latents.
        own: Fields of :class:`Setting` that make the loss. A reconstruction is by a frozen
            orthonormal decoder, so that its weight adds to a.
    """

    name: str
    factor: float
    own: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("L_q through q", critical_factor()),
    Case("L_OLS + V/2", critical_factor(1, 0.5), {"variance_weight": 0.5}),
    Case("L_OLS + 2 V", critical_factor(1, 2), {"variance_weight": 2.0}),
    Case("L_OLS + 4 V", critical_factor(1, 4), {"variance_weight": 4.0}),
    Case("soft EM (q held)", critical_factor(held=True), {"em": True}),
    Case("L_q + reconstruction", critical_factor(1 + 1), {"reconstruction": 1.0}),
    Case("L_q + 4 reconstruction", critical_factor(1 + 4), {"reconstruction": 4.0}),
)


def setting_of(case: Case, seed: int, relative: float) -> Setting:
    """Place a run near collapse, at ``relative`` times the predicted critical temperature."""
    # Near collapse the curvatures are 2 b (1 - T_c / T) / (K D) along the latents' leading axis
    # and 2 a / (K D) for a shift of all prototypes: this rate overshoots neither.
    steepest = max(case.own.get("variance_weight", 1.0), 1 + case.own.get("reconstruction", 0.0))
    rate, ratio = CODES * DIM / (2 * steepest), relative * case.factor / 4
    return Setting(seed, ratio, init="near", rate=rate, epsilon=1.0, **case.own)


def boundaries(
    cases: Sequence[Case], seeds: Sequence[int], rounds: int = 9
) -> list[dict[str, Any]]:
    """Find the temperature at which a collapsed codebook stops coming apart, by bisection.

    Args:
        cases: The losses to measure.
        seeds: Each stands for another mixture and another start.
        rounds: Number of bisections; 9 leave an uncertainty of 0.14 %.

    Returns:
        For each case its ``name``, ``predicted`` T_c over lambda_max, and the list
        ``measured_over_predicted``, one for each seed.
    """
    runs = [(case, seed) for case in cases for seed in seeds]
    low, high = ([math.log(end)] * len(runs) for end in BRACKET)
    for _ in range(rounds):
        middle = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
        settings = [setting_of(*run, math.exp(m)) for run, m in zip(runs, middle, strict=True)]
        history = run_batch(settings, WATCHED, torch.float64)
        for number, (before, after) in enumerate(history):
            apart = after["separation_mean"]
            fell = apart <= before["separation_mean"] and apart <= TOUCHING
            (high if fell else low)[number] = middle[number]
    found = [round(math.exp((a + b) / 2), 5) for a, b in zip(low, high, strict=True)]
    of_case = [found[n : n + len(seeds)] for n in range(0, len(found), len(seeds))]
    return [
        {"name": case.name, "predicted": case.factor, "measured_over_predicted": own}
        for case, own in zip(cases, of_case, strict=True)
    ]
