"""``python -m eval tokens``."""

from __future__ import annotations

from pathlib import Path

import click

from eval.cli.options import DATA_DIR, DEVICE, RUN


@click.command("tokens")
@RUN
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), required=True,
    help="The safetensors file.",
)  # fmt: skip
@click.option("--split", multiple=True, help="train, val or test; may be repeated; default all.")
@click.option("--limit", type=click.IntRange(1), help="Use only the first N images of a split.")
@DATA_DIR
@DEVICE
def command(
    run: Path,
    out: Path,
    split: tuple[str, ...],
    limit: int | None,
    data_dir: str | None,
    device: str,
) -> None:
    """Write the tokens of RUN's data, and its labels, as plain tensors, to train a prior on."""
    from eval.codec.export import SPLITS, write_tokens
    from eval.run import open_model

    model = open_model(run, device=device)
    shapes = write_tokens(model, out, splits=split or SPLITS, limit=limit, data_dir=data_dir)
    for name, shape in shapes.items():
        click.echo(f"{name}  {shape}")
    click.echo(f"written to {out}")
