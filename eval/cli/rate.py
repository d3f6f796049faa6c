"""``python -m eval rate``."""

from __future__ import annotations

from pathlib import Path

import click

from eval.cli.options import DATA_DIR, DEVICE, JSON, LIMIT_TEST


@click.command("rate")
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The PNG."
)
@JSON
@LIMIT_TEST
@DATA_DIR
@DEVICE
def command(
    runs: tuple[Path, ...],
    out: Path,
    json_file: Path | None,
    limit_test: int | None,
    data_dir: str | None,
    device: str,
) -> None:
    """Quality of RUNS over bits per pixel of real files, every prefix, beside JPEG and WebP."""
    from eval.codec.rate_distortion import format_rate, plot, rate_distortion, write_json

    result = rate_distortion(runs, limit_test=limit_test, data_dir=data_dir, device=device)
    click.echo(format_rate(result))
    if json_file is not None:
        write_json(result, json_file)
        click.echo(f"written to {json_file}")
    plot(result, out)
    click.echo(f"written to {out}")
