"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

RUN = click.argument("run", type=click.Path(path_type=Path))
DEVICE = click.option(
    "--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:N or mps."
)
DATA_DIR = click.option(
    "--data-dir", help="Folder of the data, when it has moved since the training."
)
LIMIT_TEST = click.option(
    "--limit-test", type=click.IntRange(1), help="Use only the first N test images."
)
JSON = click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the figures to a file.",
)
