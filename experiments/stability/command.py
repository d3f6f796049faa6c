"""``python -m eval stability``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from training.errors import UserError

# Options of one kind of data alone.
ONLY = {"weights": "mixture", "inits": "mixture", "steps": "mixture", "frozen_steps": "mixture",
        "controls": "cifar10",
        "epochs": "cifar10", "lr": "cifar10", "settings": "cifar10"}  # fmt: skip


@click.command("stability")
@click.option(
    "--data", type=click.Choice(["mixture", "cifar10"]), default="mixture", show_default=True,
    help="A Gaussian mixture and a linear encoder (minutes), or train.py's VQ-VAE on CIFAR-10.",
)  # fmt: skip
@click.option(
    "--epsilons", help="Encoder's over prototypes' learning rate, with commas between; default "
    "0.01 to 10.",
)  # fmt: skip
@click.option(
    "--ratios", help="T over 4 times the largest variance of the latents at the start; default "
    "0.05 to 2.",
)  # fmt: skip
@click.option(
    "--weights", help="mixture: of the codebook's loss against the reconstruction, and of V "
    "against L_OLS; default 0.1 to 10.",
)  # fmt: skip
@click.option("--inits", help="mixture: spread, near (collapse), kmeans; default all.")
@click.option("--steps", type=click.IntRange(1), help="mixture: of each run; default 600.")
@click.option(
    "--frozen-steps", type=click.IntRange(1), help="mixture: with frozen latents; default 600."
)
@click.option(
    "--controls", help="cifar10: follows (T/T_c held, latents standardised), fixed (T held, "
    "latents free); default both.",
)  # fmt: skip
@click.option("--epochs", type=click.IntRange(1), help="cifar10: of each run; default 4.")
@click.option(
    "--lr", type=click.FloatRange(0, min_open=True),
    help="cifar10: encoder's and decoder's rate (Adam); default 0.002.",
)  # fmt: skip
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE",
    help="cifar10: any other option of train.py, for all runs; may be repeated.",
)  # fmt: skip
@click.option("--seeds", type=click.IntRange(1), help="How many; default 3, cifar10 2.")
@click.option("--report-only", is_flag=True, help="Train nothing; report and draw what is there.")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, file_okay=False), required=True,
    help="Folder; what is there already is not trained again.",
)  # fmt: skip
def command(data: str, report_only: bool, out: Path, **given: Any) -> None:
    """Find out when prototypes collapse: time scales, temperature, weights, start.

    Writes stability.json after each part, tables, and pictures with the theory drawn on them.
    """
    from experiments.stability.study import options_of, study, write_results

    given = {name: value for name, value in given.items() if value not in (None, ())}
    for name in given:
        if ONLY.get(name, data) != data:
            flag = "set" if name == "settings" else name.replace("_", "-")
            raise UserError(f"--{flag} is for --data {ONLY[name]}, not for {data}; leave it out")
    result = study(data, options_of(data, given), out, train=not report_only)
    text, files = write_results(result, out)
    click.echo(text)
    for path in files:
        click.echo(f"written to {path}")
