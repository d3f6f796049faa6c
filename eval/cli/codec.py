"""``python -m eval compress``, ``decompress``, ``tokens`` and ``rate``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click

from eval.cli.options import (
    DATA_DIR,
    DEVICE,
    FILE,
    FOLDER,
    JSON,
    LIMIT_TEST,
    OUT,
    PATH,
    RUN,
    SKIP_BAD,
    save_json,
)


@click.command()
@RUN
@click.argument("images", type=PATH, nargs=-1, required=True)
@OUT
@click.option("--levels", type=int, help="Only the first levels: fewer bits, a coarser picture.")
@SKIP_BAD
@DEVICE
def compress(
    run: Path,
    images: tuple[Path, ...],
    out: Path,
    levels: int | None,
    skip_bad: bool,
    device: str,
) -> None:
    """Code IMAGES (files or folders, any size) into one file of tokens, with RUN's best.pt."""
    from eval.codec.compress import compress as write
    from eval.run import open_model

    model = open_model(run, device=device)
    made = write(model, images, out, levels=levels, skip_bad=skip_bad)
    for error in made.bad:
        click.echo(f"left out: {error}", err=True)
    if made.alphas:
        click.echo(f"transparency of {made.alphas} images is not kept", err=True)
    pictures = made.file.images
    rate = 8 * made.size / sum(picture.width * picture.height for picture in pictures)
    click.echo(
        f"{len(pictures)} images, {made.size:,} bytes, {rate:.4f} bits per pixel; the tokens alone "
        f"cost an ideal coder {made.file.bound() / 8:,.0f} bytes with the file's frequencies"
    )
    click.echo(f"written to {out}")


@click.command()
@RUN
@click.argument("file", type=FILE)
@click.option(
    "-o", "--out", type=FOLDER, required=True,
    help="Folder for the pictures; existing ones are never replaced.",
)  # fmt: skip
@click.option("--levels", type=int, help="Only the first levels of the file.")
@DEVICE
def decompress(run: Path, file: Path, out: Path, levels: int | None, device: str) -> None:
    """Decode FILE, which RUN compressed, into PNG pictures."""
    from eval.codec.compress import decompress as read
    from eval.run import open_model

    pictures = read(open_model(run, device=device), file, out, levels=levels)
    click.echo(f"{len(pictures)} pictures written to {out}")


@click.command()
@RUN
@OUT
@click.option("--split", multiple=True, help="train, val or test; may be repeated; default all.")
@click.option("--limit", type=click.IntRange(1), help="Use only the first N images of a split.")
@SKIP_BAD
@DATA_DIR
@DEVICE
def tokens(run: Path, out: Path, split: tuple[str, ...], device: str, **options: Any) -> None:
    """Write the tokens of RUN's data, and its labels, as plain tensors, to train a prior on."""
    from eval.codec.export import SPLITS, write_tokens
    from eval.run import open_model

    model = open_model(run, device=device)
    options["announce"] = functools.partial(click.echo, err=True)
    for name, shape in write_tokens(model, out, splits=split or SPLITS, **options).items():
        click.echo(f"{name}  {shape}")
    click.echo(f"written to {out}")


@click.command()
@click.argument("runs", type=PATH, nargs=-1, required=True)
@OUT
@JSON
@LIMIT_TEST
@DATA_DIR
@DEVICE
def rate(runs: tuple[Path, ...], out: Path, json_file: Path | None, **options: Any) -> None:
    """Quality of RUNS over bits per pixel of real files, every prefix, beside JPEG and WebP.

    The file to write is a PNG.
    """
    from eval.codec.rate_distortion import format_rate, plot, rate_distortion

    result = rate_distortion(runs, **options)
    click.echo(format_rate(result))
    save_json(result, json_file)
    plot(result, out)
    click.echo(f"written to {out}")
