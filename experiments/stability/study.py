"""Stability studies: options, training, tables and pictures."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from eval.compare.plan import parse_settings
from experiments.stability.batch import run_batch
from experiments.stability.blocks import MixtureOptions, columns, mixture_blocks
from experiments.stability.boundary import CASES, boundaries
from experiments.stability.cifar10 import CONTROLS, RESERVED, Cifar10Options, study_cifar10
from experiments.stability.figures import draw
from experiments.stability.mixture import INITS
from experiments.stability.report import opened, report, save, summary
from training.checkpoint import write_text
from training.errors import UserError

NAMES = {"inits": INITS, "controls": CONTROLS}


def study(
    data: str, options: MixtureOptions | Cifar10Options, out: Path, *, train: bool = True
) -> dict[str, Any]:
    """A study: trained where it is not there yet, or, with ``train`` false, as it stands.

    Raises:
        UserError: If the folder holds a study of other options, or there is nothing to report.
    """
    if not train:
        result = opened(out, data, None)
        if not result["runs"]:
            raise UserError(f"{out} holds no run of a stability study: leave out --report-only")
        return result
    if isinstance(options, MixtureOptions):
        return study_mixture(options, out)
    return study_cifar10(options, out)


def options_of(data: str, given: dict[str, Any]) -> MixtureOptions | Cifar10Options:
    """Options as they are written on the command line.

    Args:
        data: ``mixture`` or ``cifar10``.
        given: Texts of lists, with commas between; numbers; and ``settings``, NAME=VALUE.

    Raises:
        UserError: If a list does not hold what it should.

    Example:
        >>> options_of("mixture", {"epsilons": "0.1,1", "seeds": 2}).epsilons
        (0.1, 1.0)
    """
    own: dict[str, Any] = {}
    for name, value in given.items():
        if name in NAMES:
            own[name] = names_of(name, value)
        elif name in ("epsilons", "ratios", "weights"):
            own[name] = numbers_of(name, value)
        elif name == "settings":
            for setting in value:
                option = setting.partition("=")[0].replace("-", "_")
                if option in RESERVED:
                    raise UserError(
                        f"--set {option} has a meaning of its own here; see stability --help"
                    )
            own[name] = parse_settings(value)
        else:
            own[name] = value
    return MixtureOptions(**own) if data == "mixture" else Cifar10Options(**own)


def numbers_of(name: str, text: str) -> tuple[float, ...]:
    """Positive numbers, each once, ascending.

    Raises:
        UserError: If they are not.
    """
    try:
        numbers = tuple(sorted({float(word) for word in text.split(",")}))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 < number < float("inf") for number in numbers):
        raise UserError(f"--{name} must be positive numbers with commas between, got {text!r}")
    return numbers


def names_of(name: str, text: str) -> tuple[str, ...]:
    """Names, each one that is known.

    Raises:
        UserError: If one is not.
    """
    words = tuple(dict.fromkeys(text.split(",")))
    if not set(words) <= set(NAMES[name]):
        raise UserError(
            f"--{name} takes {', '.join(NAMES[name])}, with commas between; got {text!r}"
        )
    return words


def write_results(result: dict[str, Any], out: Path) -> tuple[str, list[Path]]:
    """Tables in ``stability.md``, figures at the end in ``summary.json``, and pictures.

    Returns:
        The text of the tables, and the files written.
    """
    text = report(result)
    write_text(out / "summary.json", json.dumps(summary(result), allow_nan=False) + "\n")
    write_text(out / "stability.md", text + "\n")
    return text, [
        out / "stability.json",
        out / "summary.json",
        out / "stability.md",
        *draw(result, out),
    ]


def study_mixture(options: MixtureOptions, out: Path) -> dict[str, Any]:
    """Train what is not there yet; what ends is kept, whatever stops the rest.

    Args:
        options: What to sweep.
        out: Folder; gets ``stability.json``.

    Returns:
        ``data``, ``options``, ``boundaries`` and ``runs``, by block: for each run its settings and
        its ``history``, a list for each figure.

    Raises:
        UserError: If the folder holds a study of other options.
    """
    result = opened(out, "mixture", asdict(options))
    blocks = [b for b in mixture_blocks(options) if b.name not in result["runs"]]
    total = sum(block.record_at[-1] + 1 for block in blocks)
    seeds = range(options.seeds)
    with tqdm(total=total, unit="step", desc="critical temperatures", disable=None) as bar:
        if result["boundaries"] is None:
            result["boundaries"] = boundaries(CASES, seeds, options.rounds)
            save(result, out)
        for block in blocks:
            bar.set_description(block.name)
            histories = run_batch(block.settings, block.record_at, progress=bar.update)
            result["runs"][block.name] = [
                asdict(setting) | {"history": columns(history)}
                for setting, history in zip(block.settings, histories, strict=True)
            ]
            save(result, out)
    return result
