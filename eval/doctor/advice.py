"""Options of ``train.py`` that advice gives: computed from the run's own, and never what it has."""

from __future__ import annotations

import math

from training.config import TrainConfig

# Codes per token that a run may start from and end at; T / T_c likewise.
START_CODES, COLD_START_CODES = 3.0, 2.0
START_RATIO, END_RATIO = 0.02, 0.002
# Below it a lower T / T_c changes no token.
FLOOR_RATIO = 1e-4
# A code used by half of the mean is not starved, so no threshold above it makes sense.
HIGHEST_RESTART = 0.5
# What textbook prototypes are given to leave their start (docs/doctor.md).
FAST_EPSILON = 0.03
# What Adam moves a coordinate of a prototype by in a step, in standard deviations of the latents.
STEP = 0.25


def longer(config: TrainConfig) -> str:
    """Twice the training, in the unit that the run was given.

    Example:
        >>> longer(TrainConfig(epochs=7)), longer(TrainConfig(steps=100))
        ('--epochs 14', '--steps 200')
    """
    return f"--steps {2 * config.steps}" if config.steps else f"--epochs {2 * config.epochs}"


def slower(config: TrainConfig) -> str:
    """Half the learning rate.

    Example:
        >>> slower(TrainConfig(lr=0.01))
        '--lr 0.005'
    """
    return f"--lr {config.lr / 2:g}"


def schedule(mode: str, start: float, end: float, config: TrainConfig) -> str:
    """A schedule of the temperature: both ends, for one alone is of the mode that a run had.

    Args:
        mode: ``temperature_mode``.
        start: First value.
        end: Last value.
        config: Of the run; its mode is not said again.

    Example:
        >>> schedule("codes", 3, 1.05, TrainConfig(temperature_mode="critical"))
        '--temperature-mode codes --temperature-start 3 --temperature-end 1.05'
    """
    change = "" if mode == config.temperature_mode else f"--temperature-mode {mode} "
    if mode == "codes":
        most = max(config.codebook_sizes)
        start, end = min(start, most), min(end, most)
    return f"{change}--temperature-start {start:.4g} --temperature-end {end:.4g}"


def end_codes(config: TrainConfig) -> float:
    """Codes per token at which the run's recipe ends."""
    return 1.05 if config.recipe == "tokens" else 1.3


def follow_latents(config: TrainConfig) -> str:
    """The schedule in codes per token that the recipe has by default."""
    return schedule("codes", START_CODES, end_codes(config), config)


def lower_codes(value: float, usual: float) -> float:
    """The usual target where the value is above it, else half of what it has over one code.

    Example:
        >>> lower_codes(6.0, 3.0), lower_codes(3.0, 3.0)
        (3.0, 2.0)
    """
    return usual if value > usual else 1 + (value - 1) / 2


def colder(config: TrainConfig, start_codes: float = START_CODES) -> str:
    """A schedule that is colder from its start, in the mode's own unit.

    Args:
        config: Of the run.
        start_codes: Codes per token to start from, where the run starts from more.
    """
    start, end = config.temperatures
    if config.temperature_mode == "constant":
        return schedule("constant", start / 2, end / 2, config)
    if config.temperature_mode == "critical":
        start = START_RATIO if start > START_RATIO else start / 2
        end = END_RATIO if end > END_RATIO else end / 2
    else:
        start = lower_codes(start, start_codes)
        end = min(end, end_codes(config))
    return schedule(config.temperature_mode, start, min(start, end), config)


def size(config: TrainConfig, number: int, codes: int) -> str | None:
    """Another K for one level; None where it would be no smaller.

    Args:
        config: Of the run.
        number: Of the level, from 0.
        codes: K.

    Example:
        >>> size(TrainConfig(levels=3, codebook_size=512), 1, 64)
        '--level-sizes 512,64,512'
    """
    sizes = list(config.codebook_sizes)
    if not 1 <= codes < sizes[number]:
        return None
    sizes[number] = codes
    flag = f"--codebook-size {codes}"
    if len(sizes) > 1:
        flag = f"--level-sizes {','.join(map(str, sizes))}"
    if config.quantizer == "ddcl" and config.temperature_mode == "codes":
        start, end = config.temperatures
        if max(start, end) > max(sizes):  # train.py refuses more codes a token than there are
            most = max(sizes)
            flag += " " + schedule("codes", min(start, most), min(end, most), config)
    return flag


def power_of_two(codes: float) -> int:
    """The smallest power of two that holds so many codes.

    Example:
        >>> power_of_two(9), power_of_two(16), power_of_two(0)
        (16, 16, 1)
    """
    return int(2 ** math.ceil(math.log2(max(1.0, codes))))


def more_restarts(config: TrainConfig, least: float) -> str | None:
    """A higher threshold of restarts; None where it is high already.

    Args:
        config: Of the run, of a quantizer that has restarts.
        least: To start from.
    """
    threshold = config.restarts_below
    if threshold >= HIGHEST_RESTART:
        return None
    return f"--restart-threshold {min(max(least, 2 * threshold), HIGHEST_RESTART):g}"


def start_on_latents(config: TrainConfig) -> list[str]:
    """What makes hard prototypes start on the latents and stay there, beyond what the run has."""
    flags = [] if config.kmeans_init else ["--init kmeans"]
    if config.restarts_below < 0.1:
        flags.append("--restart-threshold 0.1")
    small = config.lr / FAST_EPSILON < STEP
    if config.quantizer == "vq" and config.timescale_ratio > FAST_EPSILON and small:
        # Textbook prototypes start in one point, and their rate is too low to leave it soon.
        flags.append(f"--epsilon {FAST_EPSILON:g}")
    return flags


def either(*clauses: str | None) -> str:
    """Alternatives, those that there are.

    Example:
        >>> either("--epochs 2", None, "--lr 0.1")
        '--epochs 2, or --lr 0.1'
    """
    return ", or ".join(clause for clause in clauses if clause)


def vq_alternatives(config: TrainConfig) -> str:
    """What helps a textbook codebook that does not use its codes."""
    return "Take " + either("--quantizer vq-ema", " ".join(start_on_latents(config))) + "."
