"""Options of ``train.py`` that advice gives: computed from the run's own, and never what it has."""

from __future__ import annotations

import math
from typing import Any

from training.config import TrainConfig
from training.config.quantizers import SOFT
from training.config.train_config import END_CODES

# Codes per token that a run may start from and end at; T / T_c likewise.
START_CODES, COLD_START_CODES = 3.0, 2.0
START_RATIO, END_RATIO = 0.02, 0.002
# A code used by half of the mean is not starved, so no threshold above it makes sense.
HIGHEST_RESTART = 0.5
# What textbook prototypes are given to leave their start (docs/doctor.md).
FAST_EPSILON = 0.03
# What Adam moves a coordinate of a prototype by in a step, in standard deviations of the latents.
STEP = 0.25


def flags(config: TrainConfig, **changes: Any) -> str:
    """Options of the command line, without those that change nothing in the run.

    Args:
        config: The run's own options.
        changes: Values by the options' names.

    Example:
        >>> flags(TrainConfig.from_options(lr=0.1), lr=0.1, epochs=3, shared_scale=True)
        '--epochs 3 --shared-scale'
    """
    own = config.options(defaults=True) | {
        "epsilon": config.timescale_ratio,
        "init": "kmeans" if config.quantizer.kmeans_init else "random",
    }
    words = []
    for name, value in changes.items():
        if name in own and own[name] != value:
            text = f" {value:.4g}" if isinstance(value, float) else f" {value}"
            words.append(f"--{name.replace('_', '-')}" + ("" if value is True else text))
    return " ".join(words)


def longer(config: TrainConfig) -> str:
    """Twice the training, in the unit that the run was given.

    Example:
        >>> longer(TrainConfig.from_options(epochs=7)), longer(TrainConfig.from_options(steps=100))
        ('--epochs 14', '--steps 200')
    """
    own = config.optimizer
    return f"--steps {2 * own.steps}" if own.steps else f"--epochs {2 * own.epochs}"


def slower(config: TrainConfig) -> str:
    """Half the learning rate."""
    return f"--lr {config.optimizer.lr / 2:g}"


def schedule(mode: str, start: float, end: float, config: TrainConfig) -> str:
    """A schedule of the temperature: both ends, for one alone is of the mode that a run had.

    Args:
        mode: The ``temperature_mode``.
        start: First value.
        end: Last value.
        config: The run's own options; its mode is not said again.

    Example:
        >>> schedule("codes", 3, 1.05, TrainConfig.from_options(temperature_mode="critical"))
        '--temperature-mode codes --temperature-start 3 --temperature-end 1.05'
    """
    if mode == "codes":
        most = max(config.model.codebook_sizes)
        start, end = min(start, most), min(end, most)
    ends = f"--temperature-start {start:.4g} --temperature-end {end:.4g}"
    return f"{flags(config, temperature_mode=mode)} {ends}".strip()


def follow_latents(config: TrainConfig) -> str:
    """The default schedule in codes per token."""
    return schedule("codes", START_CODES, END_CODES, config)


def lower(value: float, usual: float, floor: float = 0.0) -> float:
    """The usual target where the value is above it, else half of what it has over the floor.

    Example:
        >>> lower(6.0, 3.0, 1.0), lower(3.0, 3.0, 1.0)
        (3.0, 2.0)
    """
    return usual if value > usual else floor + (value - floor) / 2


def colder(config: TrainConfig, start_codes: float = START_CODES) -> str:
    """A schedule that is colder from its start, in the mode's own unit.

    Args:
        config: The run's own options.
        start_codes: Codes per token to start from, where the run starts from more.
    """
    start, end = config.temperatures
    mode = config.quantizer.temperature_mode
    if mode == "constant":
        return schedule(mode, start / 2, end / 2, config)
    if mode == "critical":
        start, end = lower(start, START_RATIO), lower(end, END_RATIO)
    else:
        start, end = lower(start, start_codes, 1.0), min(end, END_CODES)
    return schedule(mode, start, min(start, end), config)


def size(config: TrainConfig, number: int, codes: int) -> str | None:
    """Another K for one level; None where it would be no smaller.

    Args:
        config: The run's own options.
        number: Number of the level, from 0.
        codes: K.

    Example:
        >>> size(TrainConfig.from_options(levels=3, codebook_size=512), 1, 64)
        '--level-sizes 512,64,512'
    """
    sizes = list(config.model.codebook_sizes)
    if not 1 <= codes < sizes[number]:
        return None
    sizes[number] = codes
    flag = f"--codebook-size {codes}"
    if len(sizes) > 1:
        flag = f"--level-sizes {','.join(map(str, sizes))}"
    start, end = config.temperatures
    own = config.quantizer
    # train.py refuses more codes a token than there are.
    if own.name in SOFT and own.temperature_mode == "codes" and max(start, end) > max(sizes):
        flag += " " + schedule("codes", min(start, max(sizes)), min(end, max(sizes)), config)
    return flag


def power_of_two(codes: float) -> int:
    """The smallest power of two that holds so many codes.

    Example:
        >>> power_of_two(9), power_of_two(16), power_of_two(0)
        (16, 16, 1)
    """
    return int(2 ** math.ceil(math.log2(max(1.0, codes))))


def restarts_below(config: TrainConfig) -> float:
    """Share of the mean use below which codes are restarted; 0 where the quantizer has none."""
    return float(config.quantizer.settings.get("restart_threshold", 0.0))


def more_restarts(config: TrainConfig) -> str | None:
    """A higher threshold of restarts; None where it is high already."""
    threshold = restarts_below(config)
    if threshold >= HIGHEST_RESTART:
        return None
    return flags(config, restart_threshold=min(max(0.02, 2 * threshold), HIGHEST_RESTART))


def start_on_latents(config: TrainConfig) -> str:
    """What makes hard prototypes start on the latents and stay there, beyond what the run has."""
    changes: dict[str, Any] = {"init": "kmeans"}
    if restarts_below(config) < 0.1:
        changes["restart_threshold"] = 0.1
    fast = config.optimizer.lr / FAST_EPSILON >= STEP
    if config.quantizer.name == "vq" and config.timescale_ratio > FAST_EPSILON and not fast:
        # Textbook prototypes start in one point, and their rate is too low to leave it soon.
        changes["epsilon"] = FAST_EPSILON
    return flags(config, **changes)


def either(*clauses: str | None, begin: str = "") -> str:
    """Alternatives, those that there are, as one sentence.

    Example:
        >>> either("take --epochs 2", None, "--lr 0.1")
        'Take --epochs 2, or --lr 0.1.'
    """
    told = begin + ", or ".join(clause for clause in clauses if clause)
    return f"{told[0].upper()}{told[1:]}."


def vq_alternatives(config: TrainConfig) -> str:
    """What helps a textbook codebook that does not use its codes."""
    return either("--quantizer vq-ema", start_on_latents(config), begin="take ")
