"""The runs of a study of the mixture, in blocks that are trained, and kept, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .mixture import INITS, TERMS, Setting

# T / (4 lambda_max) on frozen latents, dense about the critical temperatures.
CURVE = (
    0.05, 0.1, 0.15, 0.2, 0.23, 0.27, 0.35, 0.4, 0.45, 0.48, 0.52, 0.6, 0.75, 0.9, 0.95, 1.05, 1.2,
    1.5, 1.9, 2.1, 2.5,
)  # fmt: skip
# Name of a curve: what it changes.
CURVES: dict[str, dict[str, Any]] = {
    "L_q": {},
    "L_q, near collapse": {"init": "near"},
    "L_OLS + 2 V": {"variance_weight": 2.0},
    "L_OLS + V/2": {"variance_weight": 0.5},
    "soft EM": {"em": True},
}
TERM_RATIOS = (0.25, 0.75, 1.5)


@dataclass(frozen=True)
class MixtureOptions:
    """What a study of the mixture sweeps.

    Attributes:
        epsilons: Encoder's learning rate over the prototypes'.
        ratios: T / (4 lambda_max) at the start.
        weights: Weights of the codebook's loss against the reconstruction, and of V against L_OLS.
        inits: Where prototypes start, for T fixed.
        seeds: Number of seeds, from 0.
        steps: Number of steps of each run with a learning encoder.
        frozen_steps: Number of steps of each run on frozen latents.
        rounds: Number of bisections of the measured critical temperatures.
    """

    epsilons: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    ratios: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.7, 0.95, 1.05, 1.4, 2.0)
    weights: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    inits: tuple[str, ...] = INITS
    seeds: int = 3
    steps: int = 600
    frozen_steps: int = 600
    rounds: int = 8


@dataclass(frozen=True)
class Block:
    """Runs that are trained together.

    Attributes:
        name: Unique name, also in the JSON.
        settings: The runs.
        record_at: Steps at which they are measured.
    """

    name: str
    settings: tuple[Setting, ...]
    record_at: tuple[int, ...]


def mixture_blocks(options: MixtureOptions) -> list[Block]:
    """Plan all blocks, the quick ones first."""
    steps = record_steps(options.steps)
    seeds = range(options.seeds)
    blocks = [
        Block(
            f"curve/{name}",
            tuple(Setting(seed, ratio, rate=4.0, **own) for ratio in CURVE for seed in seeds),
            (0, options.frozen_steps),
        )
        for name, own in CURVES.items()
    ]
    for term in TERMS:
        runs = [Setting(seed, r, rate=2.0, term=term) for r in TERM_RATIOS for seed in seeds]
        blocks.append(Block(f"term/{term}", tuple(runs), record_steps(options.frozen_steps)))
    for weight in options.weights:
        for name in ("commitment", "variance_weight"):
            base = Setting(0, 1.0, learns=True, reconstruction=1.0)
            # A heavier loss has the larger gradients.
            own: dict[str, Any] = {name: weight, "rate": 1 / max(1.0, weight)}
            base = replace(base, **own)
            both = [(ratio, seed) for ratio in options.ratios for seed in seeds]
            runs = [replace(base, seed=seed, ratio=ratio) for ratio, seed in both]
            blocks.append(Block(f"weight/{name}/{weight:g}", tuple(runs), steps))
    for learner, reconstruction in (("codebook", 0.0), ("autoencoder", 1.0)):
        for control, inits in (("fixed", options.inits), ("follows", options.inits[:1])):
            base = Setting(0, 1.0, learns=True, reconstruction=reconstruction, control=control)
            starts = [replace(base, seed=seed, init=init) for init in inits for seed in seeds]
            grid = tuple(run for start in starts for run in epsilon_grid(start, options))
            blocks.append(Block(f"epsilon/{learner}/{control}", grid, steps))
    return blocks


def epsilon_grid(base: Setting, options: MixtureOptions) -> tuple[Setting, ...]:
    """Repeat a setting at each epsilon and temperature; where T follows, at every second."""
    # What follows calls after_step for every run, which takes longer than all else.
    stride = 1 if base.control == "fixed" else 2
    return tuple(
        replace(base, epsilon=epsilon, ratio=ratio)
        for ratio in options.ratios[::stride]
        for epsilon in options.epsilons[::stride]
    )


def record_steps(steps: int) -> tuple[int, ...]:
    """Choose steps to measure at: 0, then by factors of about two, and the last.

    Example:
        >>> record_steps(100)
        (0, 1, 3, 6, 12, 25, 50, 100)
    """
    return tuple(sorted({0, *(steps >> halved for halved in range(steps.bit_length()))}))


def columns(history: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Turn records into a list for each figure, rounded to what a study can tell.

    Example:
        >>> columns([{"step": 0, "a": 0.123456}, {"step": 10, "a": None}])
        {'step': [0, 10], 'a': [0.1235, None]}
    """
    return {name: [rounded(record[name]) for record in history] for name in history[0]}


def rounded(value: Any) -> Any:
    """Round a float to four digits, and leave all else as it is."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
