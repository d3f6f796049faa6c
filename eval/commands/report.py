"""``python -m eval report``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from .options import DATA_DIR, DEVICE, JSON, LIMIT_TEST, RUN


@click.command("report")
@RUN
@JSON
@DATA_DIR
@LIMIT_TEST
@DEVICE
@click.option("--batch-size", type=click.IntRange(1), default=256, show_default=True)
def command(
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
