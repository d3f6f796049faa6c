"""``python -m experiments.readout cost`` and ``python -m experiments.readout quality``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from experiments.command import FOLDER, SETTINGS
from training.checkpoint import check_target, write_text
from training.config.cli import OneLineErrors, UserPath

LENGTHS = tuple(2**power for power in range(9, 16))
COUNT = click.IntRange(1)
JSON = click.option(
    "--json", "path", type=UserPath(path_type=Path), help="Write all figures to this file."
)


@click.group(context_settings=SETTINGS)
def main() -> None:
    """Measure what a readout costs, or how well it classifies sentences."""


@main.command(cls=OneLineErrors)
@JSON
@click.option("--seconds", type=click.FloatRange(0.01), default=1.5, help="Least time of a case.")
@click.option("--quick", is_flag=True, help="Lengths of 512 and 4,096, half a second each.")
def cost(path: Path | None, seconds: float, quick: bool) -> None:
    """Measure time and memory over the length of a document; ten minutes."""
    from .cost import measure_all, tables

    check_target(path, "--json")
    result = measure_all(LENGTHS[::3][:2] if quick else LENGTHS, 0.5 if quick else seconds)
    finish(result, tables(result), path)


@main.command(cls=OneLineErrors)
@JSON
@click.option("--data", type=FOLDER, help="Folder with text/ and the encoder.")
@click.option("--cache", type=FOLDER, default="runs/embeddings", help="Folder of embeddings.")
@click.option("--limit", type=COUNT, default=2048, help="Sentences of a split, at most.")
@click.option("--epochs", type=COUNT, default=4, help="Epochs of each run.")
@click.option("--seeds", type=COUNT, default=5, help="Seeds of each readout.")
@click.option("--workers", type=COUNT, default=2, help="Processes of one thread each.")
def quality(path: Path | None, data: Path | None, cache: Path, limit: int, **budget: Any) -> None:
    """Tune, train and evaluate every readout on SST-2; half an hour."""
    from .quality import compare_all, read, table

    check_target(path, "--json")
    result = compare_all(read(data, cache, limit), **budget)
    finish(result, table(result["rows"]), path)


def finish(result: dict[str, Any], text: str, path: Path | None) -> None:
    """Print the tables, and write the figures where they are wanted."""
    click.echo(text)
    if path:
        write_text(path, json.dumps(result) + "\n")


if __name__ == "__main__":
    main(prog_name="python -m experiments.readout")
