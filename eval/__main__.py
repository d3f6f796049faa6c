"""The command line: ``python -m eval COMMAND``."""

from __future__ import annotations

import json
from pathlib import Path

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


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Judge what train.py made."""


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the figures to a file.",
)
@click.option("--data-dir", help="Folder of the data, when it has moved since the training.")
@click.option("--limit-test", type=click.IntRange(1), help="Use only the first N test images.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:N or mps.")
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
    from training.checkpoint import write_atomic

    figures = evaluate_run(
        run, data_dir=data_dir, limit_test=limit_test, device=device, batch_size=batch_size
    )
    click.echo(format_report(figures))
    if json_file is not None:
        text = json.dumps(figures, indent=2) + "\n"
        write_atomic(json_file, lambda file: file.write(text.encode()))
        click.echo(f"written to {json_file}")


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The PNG."
)
@click.option("--images", type=click.IntRange(1, 64), default=12, show_default=True)
@click.option("--scale", type=click.IntRange(1, 16), default=3, show_default=True)
@click.option("--data-dir", help="Folder of the data, when it has moved since the training.")
def grid(run: Path, out: Path, images: int, scale: int, data_dir: str | None) -> None:
    """Picture of RUN: test images above their soft and argmax reconstructions."""
    from eval.grid import write_grid
    from eval.run import open_run

    write_grid(open_run(run, data_dir=data_dir, limit_test=images), out, scale=scale)
    click.echo(f"written to {out}")


if __name__ == "__main__":
    main(prog_name="python -m eval")
