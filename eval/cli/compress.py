"""``python -m eval compress``."""

from __future__ import annotations

from pathlib import Path

import click

from eval.cli.options import DEVICE, RUN


@click.command("compress")
@RUN
@click.argument("images", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The file."
)
@click.option("--levels", type=int, help="Only the first levels: fewer bits, a coarser picture.")
@DEVICE
def command(
    run: Path, images: tuple[Path, ...], out: Path, levels: int | None, device: str
) -> None:
    """Code IMAGES (files or folders, any size) into one file of tokens, with RUN's best.pt."""
    from eval.codec.compress import compress as write
    from eval.run import open_model

    made = write(open_model(run, device=device), images, out, levels=levels)
    if made.alphas:
        click.echo(f"transparency of {made.alphas} images is not kept", err=True)
    rate = 8 * made.size / made.pixels
    click.echo(
        f"{made.images} images, {made.size:,} bytes, {rate:.4f} bits per pixel; the tokens alone "
        f"cost an ideal coder {made.bound:,.0f} bytes with the file's frequencies"
    )
    click.echo(f"written to {out}")
