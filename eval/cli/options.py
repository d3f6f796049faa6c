"""Options that several commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from training.config.cli import UserPath


class TargetFile(UserPath):
    """A file that is written at the end of a command, and checked before its work."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the word of a command line; a file that cannot be written is a wrong call."""
        from training.checkpoint import check_target
        from training.errors import UserError

        path = super().convert(value, param, ctx)
        try:
            check_target(path, param.opts[-1] if param else "")
        except UserError as error:
            self.fail(str(error), param, ctx)
        return path


PATH = UserPath(path_type=Path)
FILE = UserPath(path_type=Path, dir_okay=False)
TARGET = TargetFile(path_type=Path, dir_okay=False)
FOLDER = UserPath(path_type=Path, file_okay=False)

RUN = click.argument("run", type=PATH)
DEVICE = click.option(
    "--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:N or mps."
)
DATA_DIR = click.option(
    "--data-dir", help="Folder of the data, when it has moved since the training."
)
LIMIT_TEST = click.option(
    "--limit-test", type=click.IntRange(1), help="Use only the first N test images."
)
JSON = click.option("--json", "json_file", type=TARGET, help="Write the figures to a file.")
SKIP_BAD = click.option(
    "--skip-bad", is_flag=True, help="Leave out images that cannot be read, and list them."
)
OUT = click.option("-o", "--out", type=TARGET, required=True, help="The file to write.")


def save_json(figures: Any, path: Path | None) -> None:
    """Write the figures to the file of ``--json``, where it was given, and say so."""
    from training.checkpoint import write_text

    if path is not None:
        write_text(path, json.dumps(figures, indent=2) + "\n")
        click.echo(f"written to {path}")
