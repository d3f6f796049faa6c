"""``python -m eval grid``."""

from __future__ import annotations

from pathlib import Path

import click

from eval.cli.options import DATA_DIR, RUN


@click.command("grid")
@RUN
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The PNG."
)
@click.option("--images", type=click.IntRange(1, 64), default=12, show_default=True)
@click.option("--scale", type=click.IntRange(1, 16), default=3, show_default=True)
@DATA_DIR
def command(run: Path, out: Path, images: int, scale: int, data_dir: str | None) -> None:
    """Picture of RUN: test images above their soft and argmax reconstructions."""
    from eval.report.grid import write_grid
    from eval.run import open_run

    write_grid(open_run(run, data_dir=data_dir, limit_test=images), out, scale=scale)
    click.echo(f"written to {out}")
