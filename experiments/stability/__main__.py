"""``python -m experiments.stability``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from experiments.command import FOLDER, SETTINGS
from training.config.cli import OneLineErrors

COUNT = click.IntRange(1)
POSITIVE = click.FloatRange(0, min_open=True)


@click.command(cls=OneLineErrors, context_settings=SETTINGS)
@click.option("--data", type=click.Choice(["mixture", "cifar10"]), default="mixture")
@click.option("--epsilons", help="Encoder's over prototypes' learning rate; default 0.01 to 10.")
@click.option("--ratios", help="T / 4 lambda_max of the latents at the start; default 0.05 to 2.")
@click.option("--weights", help="mixture: of L_q and of V; default 0.1 to 10.")
@click.option("--inits", help="mixture: spread, near (collapse), kmeans; default all.")
@click.option("--steps", type=COUNT, help="mixture: steps of each run; default 600.")
@click.option("--frozen-steps", type=COUNT, help="mixture: with frozen latents; default 600.")
@click.option("--controls", help="cifar10: follows (T/T_c is held), fixed (T is); default both.")
@click.option("--epochs", type=COUNT, help="cifar10: epochs of each run; default 4.")
@click.option("--lr", type=POSITIVE, help="cifar10: the encoder's learning rate; default 0.002.")
@click.option("--set", "settings", multiple=True, help="cifar10: NAME=VALUE of train.py; repeat.")
@click.option("--seeds", type=COUNT, help="Number of seeds; default 3, cifar10 2.")
@click.option("--report-only", is_flag=True, help="Train nothing; report and draw what is there.")
@click.option("-o", "--out", type=FOLDER, required=True, help="Folder; a study there goes on.")
def main(data: str, report_only: bool, out: Path, **given: Any) -> None:
    """Find out when prototypes collapse: time scales, temperature, weights, start.

    The data are a Gaussian mixture with a linear encoder (minutes), or CIFAR-10 with the VQ-VAE of
    train.py. Lists have commas between. Writes stability.json after each part, tables, and
    pictures with the theory drawn on them.
    """
    from .study import options_of, study, write_results

    given = {name: value for name, value in given.items() if value not in (None, ())}
    result = study(data, options_of(data, given), out, train=not report_only)
    text, files = write_results(result, out)
    click.echo(text)
    for path in files:
        click.echo(f"written to {path}")


if __name__ == "__main__":
    main(prog_name="python -m experiments.stability")
