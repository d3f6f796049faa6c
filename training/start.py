"""What comes before and after the loop: the data, the run folder, and how the run ended."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import TrainConfig

if TYPE_CHECKING:
    from .data.splits import ImageSplits


def default_run_folder(config: TrainConfig, dataset: str) -> str:
    """A folder under runs/ that does not exist yet."""
    stem = f"runs/{config.quantizer.name}-{dataset}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = stem, 1
    while Path(folder).exists():
        number += 1
        folder = f"{stem}-{number}"
    return folder


def load_data(
    config: TrainConfig, announce: Callable[[str], object]
) -> tuple[TrainConfig, ImageSplits]:
    """Load the images of a run.

    Args:
        config: The options.
        announce: Called with what a user may wait for, as a download.

    Returns:
        The config with what was found, and where, which a resumed run or a report must find
        again, and with the run folder filled in; and the images.
    """
    from .data.splits import default_data_dir, load_splits
    from .distributed import main_process_first

    data = config.data
    with main_process_first():
        splits = load_splits(
            data.dataset,
            data.data_dir,
            limit_train=data.limit_train,
            limit_test=data.limit_test,
            image_size=data.image_size,
            skip_bad=data.skip_bad,
            announce=announce,
        )
    data_dir = data.data_dir or (str(default_data_dir()) if splits.name == "cifar10" else None)
    found = config.replace(
        dataset=splits.name,
        data_dir=None if data_dir is None else os.path.abspath(data_dir),
        out=config.run.out or default_run_folder(config, splits.name),
    )
    return found, splits


def write_status(folder: Path, status: str, step: int, message: str = "") -> None:
    """Write how a run stands to ``status.json``.

    Args:
        folder: The run folder.
        status: ``training``, ``stopped`` by a signal, ``diverged`` or ``finished``.
        step: Steps trained so far.
        message: The error of a run that diverged.
    """
    from .checkpoint import write_text

    values = {"status": status, "step": step, "message": message}
    write_text(folder / "status.json", json.dumps(values) + "\n")


def read_status(folder: Path) -> dict[str, Any]:
    """What :func:`write_status` wrote, or a status of None where there is nothing to read.

    Example:
        >>> read_status(Path("nowhere"))
        {'status': None}
    """
    try:
        values: dict[str, Any] = json.loads((folder / "status.json").read_text())
    except (OSError, ValueError):
        return {"status": None}
    return values
