"""``python -m eval decompress``."""

from __future__ import annotations

from pathlib import Path

import click

from eval.cli.options import DEVICE, RUN


@click.command("decompress")
@RUN
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, file_okay=False), required=True,
    help="Folder for the pictures; existing ones are never replaced.",
)  # fmt: skip
@click.option("--levels", type=int, help="Only the first levels of the file.")
@DEVICE
def command(run: Path, file: Path, out: Path, levels: int | None, device: str) -> None:
    """Decode FILE, which RUN compressed, into PNG pictures."""
    from eval.codec.compress import decompress as read
    from eval.run import open_model

    pictures = read(open_model(run, device=device), file, out, levels=levels)
    click.echo(f"{len(pictures)} pictures written to {out}")
