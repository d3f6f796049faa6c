"""What a run's metrics say over its epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .layout import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# (label of the axis, what to draw of a line or a level)
PANELS = (
    ("T / T_c", "temperature_ratio"),
    ("V / L_q", "variance_share"),
    ("perplexity", "perplexity"),
    ("codes used", "utilization"),
)
Series = dict[str, list[tuple[int, float]]]


def trajectory_figure(lines: Sequence[dict[str, Any]]) -> Figure | None:
    """Temperature, variance, perplexity and use over epochs, and both errors of validation images.

    Args:
        lines: Of metrics.jsonl. Of several levels each has a line of its own.

    Returns:
        A figure with the panels that there are figures for, or None where there are none.
    """
    panels = [(label, series(lines, key)) for label, key in PANELS]
    panels.append(("MSE, validation", errors(lines)))
    panels = [panel for panel in panels if any(panel[1].values())]
    if not panels:
        return None
    figure = new_figure(1.5 * len(panels) + 0.5)
    rows = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (label, own) in zip(rows, panels, strict=True):
        for name, points in own.items():
            if points:
                # A single epoch is a point, which a line alone would not show.
                axes.plot(*zip(*points, strict=True), marker=".", label=name)
        if label == "T / T_c":
            axes.axhline(1, color="tab:red", linestyle=":", label="collapse above")
            axes.set_yscale("log")
        if label == "codes used":
            axes.set_ylim(0, 1.05)
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    rows[-1].set_xlabel("epoch")
    rows[-1].xaxis.get_major_locator().set_params(integer=True)
    return figure


def series(lines: Sequence[dict[str, Any]], key: str) -> Series:
    """(epoch, value) of a figure in training: of all tokens, or of each level.

    Example:
        >>> lines = [{"epoch": 1, "split": "train", "variance": 1.0, "loss_q": 4.0}]
        >>> series(lines, "variance_share")
        {'train': [(1, 0.25)]}
    """
    train = [line for line in lines if line["split"] == "train"]
    levels = max((len(line.get("levels", ())) for line in train), default=0)
    found: Series = {f"level {number}": [] for number in range(1, levels + 1)} or {"train": []}
    for line in train:
        for name, figures in zip(found, line.get("levels") or [line], strict=True):
            value = _figure(figures, key)
            if value is not None:
                found[name].append((line["epoch"], value))
    return found


def errors(lines: Sequence[dict[str, Any]]) -> Series:
    """(epoch, MSE) of validation images, soft and argmax."""
    val = [line for line in lines if line["split"] == "val"]
    return {
        name: [(line["epoch"], line[key]) for line in val if line.get(key) is not None]
        for name, key in (("soft", "mse_soft"), ("argmax", "mse_argmax"))
    }


def _figure(figures: dict[str, Any], key: str) -> float | None:
    if key != "variance_share":
        return figures.get(key)
    variance, loss_q = figures.get("variance"), figures.get("loss_q")
    return variance / loss_q if variance is not None and loss_q else None
