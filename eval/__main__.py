"""The command line: ``python -m eval COMMAND``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from training.errors import UserError


class Group(click.Group):
    """Shows a wrong call as one line, without a traceback."""

    def invoke(self, context: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(context)
        except UserError as error:
            click.echo(f"Error: {error}", err=True)
            context.exit(error.exit_code)
        except OSError as error:
            click.echo(f"Error: {error}", err=True)
            context.exit(1)


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


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Judge what train.py made."""


@main.command()
@RUN
@JSON
@DATA_DIR
@LIMIT_TEST
@DEVICE
@click.option("--batch-size", type=click.IntRange(1), default=256, show_default=True)
def report(
    run: Path,
    json_file: Path | None,
    data_dir: str | None,
    limit_test: int | None,
    device: str,
    batch_size: int,
) -> None:
    """Figures of RUN, a run folder (its best.pt) or a checkpoint, on the test split."""
    from eval.report import evaluate_run, format_report
    from training.checkpoint import write_text

    figures = evaluate_run(
        run, data_dir=data_dir, limit_test=limit_test, device=device, batch_size=batch_size
    )
    click.echo(format_report(figures))
    if json_file is not None:
        text = json.dumps(figures, indent=2) + "\n"
        write_text(json_file, text)
        click.echo(f"written to {json_file}")


@main.command()
@RUN
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The PNG."
)
@click.option("--images", type=click.IntRange(1, 64), default=12, show_default=True)
@click.option("--scale", type=click.IntRange(1, 16), default=3, show_default=True)
@DATA_DIR
def grid(run: Path, out: Path, images: int, scale: int, data_dir: str | None) -> None:
    """Picture of RUN: test images above their soft and argmax reconstructions."""
    from eval.grid import write_grid
    from eval.run import open_run

    write_grid(open_run(run, data_dir=data_dir, limit_test=images), out, scale=scale)
    click.echo(f"written to {out}")


@main.command()
@RUN
@click.argument("images", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The file."
)
@click.option("--levels", type=int, help="Only the first levels: fewer bits, a coarser picture.")
@DEVICE
def compress(
    run: Path, images: tuple[Path, ...], out: Path, levels: int | None, device: str
) -> None:
    """Code IMAGES (files or folders, any size) into one file of tokens, with RUN's best.pt."""
    from eval.compress import compress as write
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


@main.command()
@RUN
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, file_okay=False), required=True,
    help="Folder for the pictures; existing ones are never replaced.",
)  # fmt: skip
@click.option("--levels", type=int, help="Only the first levels of the file.")
@DEVICE
def decompress(run: Path, file: Path, out: Path, levels: int | None, device: str) -> None:
    """Decode FILE, which RUN compressed, into PNG pictures."""
    from eval.compress import decompress as read
    from eval.run import open_model

    pictures = read(open_model(run, device=device), file, out, levels=levels)
    click.echo(f"{len(pictures)} pictures written to {out}")


@main.command()
@RUN
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), required=True,
    help="The safetensors file.",
)  # fmt: skip
@click.option("--split", multiple=True, help="train, val or test; may be repeated; default all.")
@click.option("--limit", type=click.IntRange(1), help="Use only the first N images of a split.")
@DATA_DIR
@DEVICE
def tokens(
    run: Path,
    out: Path,
    split: tuple[str, ...],
    limit: int | None,
    data_dir: str | None,
    device: str,
) -> None:
    """Write the tokens of RUN's data, and its labels, as plain tensors, to train a prior on."""
    from eval.run import open_model
    from eval.tokens import SPLITS, write_tokens

    model = open_model(run, device=device)
    shapes = write_tokens(model, out, splits=split or SPLITS, limit=limit, data_dir=data_dir)
    for name, shape in shapes.items():
        click.echo(f"{name}  {shape}")
    click.echo(f"written to {out}")


@main.command()
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The PNG."
)
@JSON
@LIMIT_TEST
@DATA_DIR
@DEVICE
def rate(
    runs: tuple[Path, ...],
    out: Path,
    json_file: Path | None,
    limit_test: int | None,
    data_dir: str | None,
    device: str,
) -> None:
    """Quality of RUNS over bits per pixel of real files, every prefix, beside JPEG and WebP."""
    from eval.rate import format_rate, plot, rate_distortion, write_json

    result = rate_distortion(runs, limit_test=limit_test, data_dir=data_dir, device=device)
    click.echo(format_rate(result))
    if json_file is not None:
        write_json(result, json_file)
        click.echo(f"written to {json_file}")
    plot(result, out)
    click.echo(f"written to {out}")


@main.command()
@click.option(
    "--quantizers", default="ddcl,vq-ema,vq", show_default=True,
    help="Names of train.py --quantizer, with commas between; ddcl:paper for the other recipe.",
)  # fmt: skip
@click.option("--codebook-size", type=click.IntRange(1), default=512, show_default=True)
@click.option("--codebook-dim", type=click.IntRange(1), default=64, show_default=True)
@click.option("--epochs", type=click.IntRange(1), default=10, show_default=True)
@click.option("--limit-train", type=click.IntRange(1), help="The first N training images only.")
@click.option("--limit-test", type=click.IntRange(1), help="The first N test images only.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="How many.")
@click.option(
    "--lrs", default="0.001,0.002,0.004", show_default=True,
    help="Learning rates to sweep on the first seed; validation images choose for each quantizer.",
)  # fmt: skip
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE",
    help="Any other option of train.py, for all runs; may be repeated.",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="At a time.")
@click.option("--report-only", is_flag=True, help="Train nothing; report what is there.")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, file_okay=False), required=True,
    help="Folder; what is trained there already is not trained again.",
)  # fmt: skip
def compare(
    quantizers: str,
    lrs: str,
    seeds: int,
    settings: tuple[str, ...],
    jobs: int,
    report_only: bool,
    out: Path,
    **options: Any,
) -> None:
    """Train quantizers under one budget, each at its own learning rate; compare their tokens."""
    from eval.compare import compare as run
    from eval.compare import table
    from eval.plan import Plan, parse_settings

    given = {name: value for name, value in options.items() if value is not None}
    try:
        rates = tuple(float(word) for word in lrs.split(","))
    except ValueError as error:
        raise UserError(f"--lrs must be numbers with commas between, got {lrs!r}") from error
    plan = Plan(tuple(quantizers.split(",")), given | parse_settings(settings), rates, seeds, out)
    click.echo(table(run(plan, jobs=jobs, train=not report_only)))
    click.echo(f"written to {out}")


if __name__ == "__main__":
    main(prog_name="python -m eval")
