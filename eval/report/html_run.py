"""The page of a run: its pictures are drawn, and put beside its figures and findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from eval.doctor.finding import Finding
from eval.report.html import write_page
from eval.run import open_run
from training.figures import codebook_pictures

# For the pictures alone: enough for rare codes, and a few seconds.
MAX_IMAGES = 1024


def write_run_page(
    path: Path,
    run: Path,
    report: Mapping[str, Any],
    findings: Sequence[Finding] | None = None,
    *,
    data_dir: str | None = None,
    limit_test: int | None = None,
    device: str = "auto",
    errors: Tensor | None = None,
) -> None:
    """Draw the pictures of a run, from at most 1,024 of its test images, and write its page.

    Args:
        path: The HTML file.
        run: Run folder (its best.pt) or checkpoint.
        report: What :func:`eval.report.evaluate.evaluate_run` says of the same checkpoint.
        findings: What the doctor found; None where it was not asked.
        data_dir: Folder of the data; where the training found it by default.
        limit_test: Use only the first N test images.
        device: As in train.py.
        errors: (N,), argmax MSE of each test image, to find the worst of all; without them the
            worst are of the images that are drawn.

    Raises:
        UserError: If the checkpoint, the data or the device cannot be used.
    """
    opened = open_run(run, data_dir=data_dir, limit_test=limit_test, device=device)
    pictures = {}
    # Nothing can be drawn of a model that diverged; the doctor says so on the page.
    if all(value.isfinite().all() for value in opened.model.state_dict().values()):
        pictures = codebook_pictures(
            opened.model,
            opened.test_images,
            histories=[tracker["history"] for tracker in opened.state["trackers"]],
            errors=errors,
            max_images=MAX_IMAGES,
        )
    write_page(path, report, pictures, findings, opened.state["config"])
