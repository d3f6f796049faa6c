"""Temperature schedules and the controllers that follow them.

A controller is a value without state: the step count, the temperature and the statistics it reads
are buffers of the codebook, which asks for the next temperature in ``after_step``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..functional import assignment


@dataclass(frozen=True)
class Schedule:
    """A positive value that holds, moves geometrically from ``start`` to ``end``, and stays.

    Args:
        start: Value of the first ``hold`` steps, > 0.
        end: Value from step ``steps`` on, > 0; ``start`` when None.
        steps: Step at which ``end`` is reached.
        hold: Steps before the value starts to move, at most ``steps``.

    Raises:
        ValueError: If a value is not positive, or ``hold`` lies outside [0, steps].

    Example:
        >>> schedule = Schedule(4.0, 1.0, steps=10, hold=5)
        >>> [round(schedule(step), 3) for step in (0, 5, 10, 99)]
        [4.0, 4.0, 1.0, 1.0]
    """

    start: float
    end: float | None = None
    steps: int = 0
    hold: int = 0

    def __post_init__(self) -> None:
        end = self.start if self.end is None else self.end
        if not (0 < self.start < math.inf and 0 < end < math.inf):
            raise ValueError(
                f"schedule values must be positive and finite, got {self.start} to {self.end}"
            )
        if not 0 <= self.hold <= self.steps:
            raise ValueError(f"hold must lie in [0, steps={self.steps}], got {self.hold}")

    def __call__(self, step: int) -> float:
        """Value at a step, counted from zero."""
        end = self.start if self.end is None else self.end
        if step >= self.steps:
            return end
        if step < self.hold:
            return self.start
        share = (step - self.hold) / (self.steps - self.hold)
        return self.start * (end / self.start) ** share


@dataclass(frozen=True)
class TemperatureController:
    """Base of the controllers: what a codebook asks of its temperature.

    Args:
        schedule: What the controller follows.

    Raises:
        TypeError: If the schedule is something else, as a number.
    """

    schedule: Schedule

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, Schedule):
            raise TypeError(
                f"a controller follows a schedule, as Schedule(2.0), got {self.schedule!r}"
            )

    @property
    def before_data(self) -> float:
        """Temperature until the codebook is initialised."""
        return 1.0

    def first(self, z: Tensor, codebook: Tensor, critical_temperature: float) -> float:
        """Temperature to start from, given (N, D) latents and (K, D) prototypes.

        That of the first step, unless the controller looks at the latents.
        """
        return self.next(0, self.before_data, 1.0, critical_temperature)

    def next(
        self, step: int, temperature: float, codes_per_token: float, critical_temperature: float
    ) -> float:
        """Temperature for the coming step, from what the last one measured."""
        raise NotImplementedError


@dataclass(frozen=True)
class ConstantTemperature(TemperatureController):
    """The schedule's value is the temperature, in units of squared distance.

    Args:
        schedule: T over the steps.

    Example:
        >>> ConstantTemperature(Schedule(2.0)).next(0, 1.0, 1.0, 1.0)
        2.0
    """

    @property
    def before_data(self) -> float:
        """The schedule's first value."""
        return self.schedule(0)

    def next(
        self, step: int, temperature: float, codes_per_token: float, critical_temperature: float
    ) -> float:
        """The schedule's value."""
        return self.schedule(step)


@dataclass(frozen=True)
class CriticalFraction(TemperatureController):
    """The schedule's value is T / T_c: the temperature follows the scale of the latents.

    Args:
        schedule: T / T_c over the steps; below 1 keeps collapse a saddle, not an attractor.

    Example:
        >>> CriticalFraction(Schedule(0.1)).next(0, 1.0, 1.0, critical_temperature=40.0)
        4.0
    """

    def next(
        self, step: int, temperature: float, codes_per_token: float, critical_temperature: float
    ) -> float:
        """The schedule's fraction of the tracked critical temperature."""
        return self.schedule(step) * critical_temperature


@dataclass(frozen=True)
class CodesPerToken(TemperatureController):
    """The schedule's value is a target of effective codes per token, reached by feedback.

    The target means the same at every vector size, codebook size and latent scale.

    Args:
        schedule: Target of ``exp(mean entropy)`` over the steps, at least 1.
        gain: Change of log temperature per gap in log entropy, in (0, 1]; a step moves the
            temperature by at most a factor of exp(0.5).
        ceiling: Largest T / T_c that the feedback may reach.

    Raises:
        ValueError: If a target lies below 1, or ``gain`` outside (0, 1].

    Example:
        >>> hotter = CodesPerToken(Schedule(2.0)).next(0, 1.0, 1.5, critical_temperature=40.0)
        >>> hotter > 1.0
        True
    """

    gain: float = 0.2
    ceiling: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        end = self.schedule.start if self.schedule.end is None else self.schedule.end
        if min(self.schedule.start, end) < 1:
            raise ValueError(
                "a token cannot have fewer than 1 code: codes per token goes "
                f"{self.schedule.start} to {end}; give values of 1 or more"
            )
        if not 0 < self.gain <= 1:
            raise ValueError(f"gain must lie in (0, 1], got {self.gain}")

    def first(self, z: Tensor, codebook: Tensor, critical_temperature: float) -> float:
        """The temperature at which these latents have the first target of codes."""
        solved = temperature_for(self.schedule(0), z, codebook)
        return min(solved, self.ceiling * critical_temperature)

    def next(
        self, step: int, temperature: float, codes_per_token: float, critical_temperature: float
    ) -> float:
        """One step of multiplicative feedback towards the target's entropy."""
        # Entropy, not codes: its logarithm answers the temperature's at both ends. The floor keeps
        # a target of exactly one code, which no finite temperature has, from running away.
        wanted = max(math.log(self.schedule(step)), 1e-3)
        measured = max(math.log(max(codes_per_token, 1.0)), 1e-6)
        change = max(-0.5, min(0.5, self.gain * math.log(wanted / measured)))
        return min(temperature * math.exp(change), self.ceiling * critical_temperature)


@torch.no_grad()
def temperature_for(codes_per_token: float, z: Tensor, codebook: Tensor) -> float:
    """Temperature at which latents have a given ``exp(mean entropy)``, by bisection.

    Args:
        codes_per_token: Target, in (1, K).
        z: (N, D) latents.
        codebook: (K, D) prototypes.

    Returns:
        T > 0, to a relative 1e-3.

    Example:
        >>> line = torch.linspace(0, 1, 9)[:, None]
        >>> T = temperature_for(3.0, line, line)
        >>> round(torch.special.entr(assignment(line, line, T)).sum(1).mean().exp().item(), 1)
        3.0
    """
    spread = latent_spread(z, codebook)
    low, high = math.log(spread) - 20.0, math.log(spread) + 5.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        q = assignment(z, codebook, math.exp(middle))
        measured = torch.special.entr(q).sum(dim=1).mean().exp().item()
        low, high = (middle, high) if measured < codes_per_token else (low, middle)
    return math.exp((low + high) / 2)


def latent_spread(z: Tensor, codebook: Tensor) -> float:
    """Mean squared distance of latents to the mean prototype, a scale for temperatures.

    Args:
        z: (N, D) latents.
        codebook: (K, D) prototypes.

    Returns:
        A positive number.

    Example:
        >>> latent_spread(torch.tensor([[1.0], [-1.0]]), torch.zeros(3, 1))
        1.0
    """
    spread = (z - codebook.mean(dim=0)).square().sum(dim=1).mean().item()
    return max(spread, 1e-12)
