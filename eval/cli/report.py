"""``python -m eval report``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from eval.cli.options import DATA_DIR, DEVICE, FILE, JSON, LIMIT_TEST, RUN, TARGET, save_json


@click.command()
@RUN
@JSON
@click.option("--html", "html_file", type=TARGET, help="Write one page with pictures and advice.")
@DATA_DIR
@LIMIT_TEST
@DEVICE
@click.option("--batch-size", type=click.IntRange(1), default=256, show_default=True)
@click.option(
    "--refit-steps", type=click.IntRange(0), default=200, show_default=True,
    help="Refit a copy of the decoder to the tokens for so many steps; 0 leaves it out.",
)  # fmt: skip
@click.option(
    "--lpips", type=click.Choice(["squeeze", "alex", "vgg"]), help="Measure LPIPS with this net."
)
@click.option("--lpips-weights", type=FILE, help="Its torchvision weights; else downloaded.")
@click.option(
    "--lpips-resize", type=click.IntRange(16), metavar="SIDE", help="Scale images for it."
)
@click.option("--fid", is_flag=True, help="Measure rFID.")
@click.option("--inception-weights", type=FILE, help="FID's InceptionV3; else downloaded.")
@click.option(
    "--resnet56-weights", type=FILE, help="A CIFAR-10 ResNet-56: measure rfd_resnet56 with it."
)
def report(
    run: Path,
    json_file: Path | None,
    html_file: Path | None,
    data_dir: str | None,
    limit_test: int | None,
    device: str,
    batch_size: int,
    refit_steps: int,
    **judges: Any,
) -> None:
    """Figures of RUN, a run folder (its best.pt) or a checkpoint, on the test split."""
    from eval.doctor import diagnose
    from eval.report.evaluate import ImageErrors, evaluate_run
    from eval.report.html import write_run_page
    from eval.report.judges import Judges
    from eval.report.tables import format_report

    where: dict[str, Any] = {"data_dir": data_dir, "device": device}
    part, errors = where | {"limit_test": limit_test}, ImageErrors()
    figures = evaluate_run(
        run, **part, batch_size=batch_size, refit_steps=refit_steps, judges=Judges(**judges),
        observers=[errors],
    )  # fmt: skip
    click.echo(format_report(figures))
    save_json(figures, json_file)
    if html_file is not None:
        findings = diagnose(run, **where)
        write_run_page(html_file, run, figures, findings, **part, errors=errors.values())
        click.echo(f"written to {html_file}")
