"""RunLog: what a run leaves for people and programs, metrics.jsonl, TensorBoard and a table."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from .checkpoint import write_text
from .errors import UserError

SPLITS = ("train", "val", "test")

# TensorBoard groups by prefix: (prefix, keys of a metrics line).
GROUPS = {
    "reconstruction": ("loss", "mse_soft", "mse_argmax", "psnr_soft", "psnr_argmax", "lpips"),
    "codebook": (
        "loss_q", "loss_ols", "variance", "variance_share", "usage_kl", "codebook_loss",
        "commitment_loss", "utilization", "dead_codes", "perplexity", "codes_per_token",
    ),
    "temperature": ("temperature", "temperature_ratio"),
    "speed": ("images_per_second",),
}  # fmt: skip

# (heading, split, key, format)
COLUMNS = (
    ("loss", "train", "loss", "8.4f"),
    ("soft", "test", "mse_soft", "8.5f"),
    ("argmax", "test", "mse_argmax", "8.5f"),
    ("PSNR", "test", "psnr_argmax", "6.2f"),
    ("used", "train", "utilization", "6.1%"),
    ("dead", "train", "dead_codes", "5d"),
    ("perpl.", "train", "perplexity", "7.1f"),
    ("codes/token", "train", "codes_per_token", "11.2f"),
    ("T/T_c", "train", "temperature_ratio", "7.4f"),
    ("images/s", "train", "images_per_second", "8.0f"),
)


class RunLog:
    """Appends metrics lines and writes TensorBoard events.

    Args:
        folder: The run folder.
        step: Steps already done, when resuming: later lines and events of a run that died after
            its last checkpoint are dropped.
    """

    def __init__(self, folder: Path, step: int = 0) -> None:
        self.path = folder / "metrics.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        resumed = self.path.exists()
        if resumed:
            kept = [line for line in read_metrics(self.path) if line["step"] <= step]
            text = "".join(json.dumps(line) + "\n" for line in kept)
            write_text(self.path, text)
        purge_step = step + 1 if resumed else None
        # A writer for each split: TensorBoard then draws the splits into one chart.
        self.writers = {
            split: SummaryWriter(str(folder / split), purge_step=purge_step) for split in SPLITS
        }

    def write(self, lines: list[dict[str, Any]]) -> None:
        """Append the lines of one epoch, and their scalars; what is not finite is null."""
        lines = [{key: finite(value) for key, value in line.items()} for line in lines]
        with self.path.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        for line in lines:
            self._write_scalars(line, line, "")
            for number, level in enumerate(line.get("levels", []), start=1):
                self._write_scalars(line, level, f"_level_{number}")

    def _write_scalars(self, line: dict[str, Any], figures: dict[str, Any], suffix: str) -> None:
        if figures.get("loss_q"):
            figures = {**figures, "variance_share": figures["variance"] / figures["loss_q"]}
        for prefix, keys in GROUPS.items():
            for key in keys:
                if figures.get(key) is not None:
                    writer = self.writers[line["split"]]
                    writer.add_scalar(f"{prefix}{suffix}/{key}", figures[key], line["step"])

    def close(self) -> None:
        """Flush and close the event files."""
        for writer in self.writers.values():
            writer.close()


def finite(value: Any) -> Any:
    """None for what JSON has no number for, in lists and dicts, too."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# What every line has. By type, not isinstance: true is no number of an epoch.
HEAD = {"epoch": int, "step": int, "split": str}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Lines of a metrics file; what is not one, such as a line that a crash cut off, is left out.

    Args:
        path: The file.

    Returns:
        Dicts, each with at least ``epoch`` and ``step``, whole numbers, and ``split``.

    Raises:
        UserError: If the file is not text.
    """
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not text (byte {error.start}): it is damaged, or not a log of train.py; "
            "move it away, or restore it"
        ) from error
    lines = []
    for text in texts:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict) and all(type(line.get(k)) is kind for k, kind in HEAD.items()):
            lines.append(line)
    return lines


def table_header() -> str:
    """The heading of the table on the terminal."""
    cells = (title.rjust(_width(form)) for title, _, _, form in COLUMNS)
    legend = (
        "soft, argmax, PSNR (mean over images): test split; T/T_c: last step; all else: training, "
        "whole epoch"
    )
    return "\n".join([legend, " ".join(["epoch", *cells])])


def table_row(epoch: int, lines: list[dict[str, Any]]) -> str:
    """A row of the table, from the lines of one epoch."""
    by_split = {line["split"]: line for line in lines}
    cells = [f"{epoch:5d}"]
    for _, split, key, form in COLUMNS:
        value = by_split[split].get(key)
        cells.append("-".rjust(_width(form)) if value is None else format(value, form))
    return " ".join(cells)


def _width(form: str) -> int:
    return len(format(0, form))
