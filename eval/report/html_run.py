"""The page of a run: its pictures are drawn, and put beside its figures and findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from eval.report.gap_figure import gap_figure
from eval.report.html import Problem, write_page
from eval.run import splits_of
from training.checkpoint import find_checkpoint, load_checkpoint, load_model
from training.config import TrainConfig
from training.distributed import choose_device
from training.figures import codebook_pictures

# For the pictures alone: enough for rare codes, and a few seconds.
MAX_IMAGES = 1024


def write_run_page(
    path: Path,
    run: Path,
    report: Mapping[str, Any],
    findings: Sequence[Problem] | None = None,
    *,
    data_dir: str | None = None,
    limit_test: int | None = None,
    device: str = "auto",
    errors: Tensor | None = None,
) -> None:
    """Draw the pictures of a run, from at most 1,024 of its test images, and write its page.

    Args:
        path: The HTML file.
        run: Run folder (its best.pt) or checkpoint; metrics.jsonl beside it gives the
            trajectories, where it is there.
        report: What :func:`eval.report.evaluate.evaluate_run` says of the same checkpoint.
        findings: Of the doctor; None where it was not asked.
        data_dir: Folder of the data; where the training found it by default.
        limit_test: Use only the first N test images.
        device: As in train.py.
        errors: (N,), argmax MSE of each test image, to find the worst of all; without them the
            worst are of the images that are drawn.

    Raises:
        UserError: If the checkpoint, the data or the device cannot be used.
    """
    checkpoint = find_checkpoint(run)
    state = load_checkpoint(checkpoint)
    model = load_model(state, str(checkpoint)).to(choose_device(device))
    config = TrainConfig.from_dict(state["config"])
    splits = splits_of(config, data_dir, limit_train=1, limit_test=limit_test)
    if not all(value.isfinite().all() for value in model.state_dict().values()):
        # Nothing can be drawn of such a model; the doctor says so on the page.
        write_page(path, report, {}, findings, state["config"])
        return
    curve = gap_figure(report)
    pictures = {} if curve is None else {"gap": curve}
    pictures |= codebook_pictures(
        model,
        splits.test,
        [tracker["history"] for tracker in state["trackers"]],
        errors=errors,
        max_images=MAX_IMAGES,
    )
    write_page(path, report, pictures, findings, state["config"])
