"""``python -m experiments.satellites``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from experiments.command import FOLDER, SETTINGS
from training.config.cli import OneLineErrors, UserPath


@click.command(cls=OneLineErrors, context_settings=SETTINGS)
@click.option("-o", "--out", required=True, type=FOLDER, help="Folder of the results.")
@click.option(
    "--data-dir", "path", type=UserPath(path_type=Path),
    help="File of orbits, or the UCS table's folder [default: in $SOFTVQ_SHARED].",
)  # fmt: skip
@click.option("--k", "codebook_size", type=click.IntRange(2), default=4, help="Clusters.")
@click.option("--seeds", type=click.IntRange(1), default=5, help="Repetitions of every fit.")
def main(path: Path | None, out: Path, **options: Any) -> None:
    """Cluster orbits by DDCL, k-means and mixtures, and score the clusters by classes."""
    from eval.packages import require

    packages = ("sklearn", "scipy", "matplotlib", "pandas", "tabulate")
    require(*packages, purpose="clustering satellites")
    from .study import run

    run(path, out, say=partial(click.echo, err=True), **options)
    click.echo((out / "satellites.md").read_text(encoding="utf-8"), nl=False)
    click.echo(f"written to {out}: satellites.json, .md and .png")


if __name__ == "__main__":
    main(prog_name="python -m experiments.satellites")
