"""Stability studies: options, training, tables and pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from eval.compare.plan import parse_settings
from training.checkpoint import write_text
from training.errors import UserError

from .batch import run_batch
from .blocks import Block, MixtureOptions, columns, mixture_blocks
from .boundary import CASES, boundaries
from .cifar10 import CONTROLS, Cifar10Options, cifar10_runs
from .figures import draw
from .mixture import INITS
from .results import opened, report, save, summary

Options = MixtureOptions | Cifar10Options
KINDS: dict[str, type[Options]] = {"mixture": MixtureOptions, "cifar10": Cifar10Options}
NAMES = {"inits": INITS, "controls": CONTROLS}


def study(data: str, options: Options, out: Path, *, train: bool = True) -> dict[str, Any]:
    """Train what is not there yet; what ends is kept, whatever stops the rest.

    Args:
        data: ``mixture`` or ``cifar10``.
        options: What to sweep.
        out: Folder that gets ``stability.json``, and the run folders of CIFAR-10.
        train: False takes the study as it stands.

    Returns:
        The study; see :func:`opened`.

    Raises:
        UserError: If an option is out of range, data is missing, the folder holds a study of other
            options, or there is nothing to report.
        KeyboardInterrupt: After Ctrl-C.
    """
    if not train:
        result = opened(out, data, None)
        if not result["runs"]:
            raise UserError(f"{out} holds no run of a stability study: leave out --report-only")
        return result
    runs: Mapping[str, Callable[[], list[dict[str, Any]]]]
    if isinstance(options, MixtureOptions):
        result = opened(out, data, asdict(options))
        runs = {block.name: partial(train_block, block) for block in mixture_blocks(options)}
        if result["boundaries"] is None:
            result["boundaries"] = boundaries(CASES, range(options.seeds), options.rounds)
            save(result, out)
    else:
        runs = cifar10_runs(options, out)
        result = opened(out, data, asdict(options), free=("seeds",))
    waiting = [name for name in runs if name not in result["runs"]]
    for name in tqdm(waiting, desc=data, disable=None):
        result["runs"][name] = runs[name]()
        save(result, out)
    return result


def train_block(block: Block) -> list[dict[str, Any]]:
    """Train the runs of a block; return the settings and the history of each."""
    return [
        asdict(setting) | {"history": columns(history)}
        for setting, history in zip(
            block.settings, run_batch(block.settings, block.record_at), strict=True
        )
    ]


def options_of(data: str, given: Mapping[str, Any]) -> Options:
    """Read options as they are written on the command line.

    Args:
        data: ``mixture`` or ``cifar10``.
        given: Texts of lists, with commas between; numbers; and ``settings``, NAME=VALUE.

    Raises:
        UserError: If an option is for other data, or a list does not hold what it should.

    Example:
        >>> options_of("mixture", {"epsilons": "0.1,1", "seeds": 2}).epsilons
        (0.1, 1.0)
    """
    own: dict[str, Any] = {}
    for name, value in given.items():
        if name not in KINDS[data].__dataclass_fields__:
            flag = "set" if name == "settings" else name.replace("_", "-")
            other = "cifar10" if data == "mixture" else "mixture"
            raise UserError(f"--{flag} is for --data {other}, not for {data}; leave it out")
        if name in NAMES:
            value = tuple(dict.fromkeys(value.split(",")))
            if not set(value) <= set(NAMES[name]):
                known = ", ".join(NAMES[name])
                raise UserError(
                    f"--{name} takes {known}, with commas between; got {','.join(value)!r}"
                )
        elif name in ("epsilons", "ratios", "weights"):
            value = numbers_of(name, value)
        elif name == "settings":
            value = parse_settings(value)
        own[name] = value
    return KINDS[data](**own)


def numbers_of(name: str, text: str) -> tuple[float, ...]:
    """Read positive numbers, each once, ascending.

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


def write_results(result: dict[str, Any], out: Path) -> tuple[str, list[Path]]:
    """Write tables into ``stability.md``, figures at the end into ``summary.json``, and pictures.

    Returns:
        The text of the tables, and the files written.
    """
    text = report(result)
    write_text(out / "summary.json", json.dumps(summary(result), allow_nan=False) + "\n")
    write_text(out / "stability.md", text + "\n")
    files = [out / name for name in ("stability.json", "summary.json", "stability.md")]
    return text, [*files, *draw(result, out)]
