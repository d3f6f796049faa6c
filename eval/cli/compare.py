"""``python -m eval compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from training.config.cli import UserPath
from training.errors import UserError


@click.command()
@click.option(
    "--quantizers", default="ddcl-em,vq-ema,vq", show_default=True,
    help="Names of train.py --quantizer, with commas between; with options of their own after "
    "colons, as ddcl-em:balance=0:commitment=0.25.",
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
    help="Any other option of train.py, for all runs; may be repeated. "
    "Switches take true or false: augment=false.",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="At a time.")
@click.option("--report-only", is_flag=True, help="Train nothing; report what is there.")
@click.option(
    "-o", "--out", type=UserPath(path_type=Path, file_okay=False), required=True,
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
    from eval.compare.plan import Plan, parse_settings
    from eval.compare.report import compare as run
    from eval.compare.report import table

    given = {name: value for name, value in options.items() if value is not None}
    try:
        rates = tuple(float(word) for word in lrs.split(","))
    except ValueError as error:
        raise UserError(f"--lrs must be numbers with commas between, got {lrs!r}") from error
    names = tuple(name.strip() for name in quantizers.split(","))
    others = parse_settings(settings)
    for name in sorted(options.keys() & others):
        flag = name.replace("_", "-")
        raise UserError(f"compare has an option --{flag}: give that instead of --set {flag}")
    plan = Plan(names, given | others, rates, seeds, out)
    result = run(plan, jobs=jobs, train=not report_only)
    click.echo(table(result))
    click.echo(f"images: {result['dataset']}; written to {out}")
