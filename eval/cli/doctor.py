"""``python -m eval doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from eval.cli.options import DATA_DIR, DEVICE, JSON, RUN, save_json
from training.errors import UserError


@click.command()
@RUN
@JSON
@DATA_DIR
@DEVICE
@click.option(
    "--images", type=click.IntRange(2), default=1000, show_default=True,
    help="Sample of the data: half of it training, half validation images.",
)  # fmt: skip
@click.pass_context
def doctor(context: click.Context, /, run: Path, json_file: Path | None, **options: Any) -> None:
    """Say what is wrong with the codebook of RUN, a run folder or a checkpoint, and what to change.

    Exit status 1 when something is severe, 0 otherwise, 2 for a wrong call.
    """
    from eval.doctor import diagnose, format_findings, is_severe

    try:
        findings = diagnose(run, **options)
        click.echo(format_findings(findings))
        save_json({"findings": [finding._asdict() for finding in findings]}, json_file)
    except (UserError, OSError) as error:
        # Status 1 is a diagnosis, and a damaged checkpoint is none.
        raise UserError(str(error)) from error
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{run} cannot be examined ({type(error).__name__}: {reason:.200}); if it is a run of "
            "this version, this is a defect of the doctor: please report it"
        ) from error
    context.exit(int(is_severe(findings)))
