"""The gap as a curve: error over the number of codes that are mixed for a token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from training.figures.layout import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def gap_figure(report: Mapping[str, Any]) -> Figure | None:
    """Error from the token alone over the k nearest codes to all of them, with the refit decoder.

    Args:
        report: What :func:`eval.report.evaluate.evaluate_run` returns.

    Returns:
        A figure, or None for a codebook whose output is its tokens.
    """
    rows = {row["decode"]: row.get("mse") for row in report.get("gap") or []}
    names = [name for name in ("argmax", "top-2", "top-4", "top-8", "soft") if name in rows]
    if "soft" not in names or any(rows[name] is None for name in names):
        return None
    figure = new_figure(3.2)
    axes = figure.subplots()
    places = range(len(names))
    axes.plot(places, [rows[name] for name in names], marker="o", label="decoder as trained")
    refit = rows.get("argmax, decoder refit")
    if refit is not None:
        steps = report.get("refit_steps")
        axes.plot([0], [refit], marker="s", linestyle="", label=f"decoder refit, {steps} steps")
    axes.set_xticks(places, names)
    axes.set_xlabel("codes mixed for a token")
    axes.set_ylabel("MSE of test images")
    axes.set_ylim(0, 1.15 * max(rows[name] for name in names))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")
    return figure
