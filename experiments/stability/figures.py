"""Pictures of a stability study: phase diagrams, and trajectories."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from softvq.functional import critical_factor
from training.checkpoint import write_atomic

from .results import Panel, frame_of, panels, shares

TRAJECTORIES = {
    "separation_mean": "mean separation / $\\sqrt{\\lambda_{max}}$",
    "separation_min": "minimum separation / $\\sqrt{\\lambda_{max}}$",
    "temperature_ratio": "$T / T_c$",
    "utilization": "utilization (argmax)",
    "soft_perplexity": "soft perplexity",
    "argmax_error": "argmax error / tr C",
}
LIMITS = {"separation_mean": 4, "separation_min": 4, "argmax_error": 2}
# Label and style of a line, and the arguments of softvq.functional.critical_factor at a place on
# the axis.
Line = tuple[str, str, Callable[[float], tuple[Any, ...]]]
HELD = "2 $\\lambda_{max}$ (q held)"
THROUGH = "4 $\\lambda_{max}$ a/b (gradient through q)"
DECODED = "4 $\\lambda_{max}$ a/b, reconstruction counted in a"
THEORY: dict[str, list[Line]] = {
    "epsilon": [
        (THROUGH, "-", lambda x: (1, 1)), (DECODED, "--", lambda x: (2, 1)),
        (HELD, ":", lambda x: (1, 1, True)),
    ],
    "commitment": [(THROUGH, "-", lambda x: (x, x)), (DECODED, "--", lambda x: (x + 1, x))],
    "variance_weight": [(THROUGH, "-", lambda x: (1, x)), (DECODED, "--", lambda x: (2, x))],
}  # fmt: skip
AXES = {
    "epsilon": "$\\epsilon$ = encoder rate / prototype rate",
    "commitment": "weight of the codebook's loss (reconstruction: 1)",
    "variance_weight": "b, weight of V against L_OLS",
}


def draw(result: dict[str, Any], out: Path) -> list[Path]:
    """Draw all pictures that the runs so far allow, and return the files written."""
    wanted = panels(frame_of(result))
    on_epsilon = [panel for panel in wanted if panel[1] == "epsilon"]
    weights = [panel for panel in wanted if panel[1] != "epsilon"]
    figures = {"phases": (phase_figure, on_epsilon), "weights": (phase_figure, weights)}
    figures["trajectories"] = (trajectory_figure, on_epsilon)
    written = []
    for name, (figure_of, own) in figures.items():
        if own:
            path = out / f"stability-{result['data']}-{name}.png"
            write_atomic(path, partial(figure_of(own).savefig, format="png", dpi=100))
            written.append(path)
    return written


def phase_figure(wanted: list[Panel]) -> Figure:
    """Draw phase diagrams of collapse in rows of three."""
    columns = min(3, len(wanted))
    rows = math.ceil(len(wanted) / columns)
    figure = Figure(figsize=(4.6 * columns + 1, 4.4 * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    known: dict[str, Any] = {}
    for axis, (title, name, runs) in zip(axes, wanted, strict=False):
        image = _phase(axis, runs, name)
        starts = ": collapsed at the start" if title.endswith(", near") else ""
        axis.set_title(title + starts, fontsize=10)
        known |= {line.get_label(): line for line in axis.lines}
    for axis in axes[len(wanted) :]:
        axis.axis("off")
    figure.colorbar(image, ax=figure.axes, label="share of seeds collapsed at the end")
    figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=3)
    return figure


def _phase(axis: Axes, runs: pd.DataFrame, name: str) -> Any:
    """Draw the share of seeds that collapsed, the final separation, and theory's lines."""
    found = shares(runs, name)
    xs, ys = found.columns.to_numpy(), found.index.to_numpy()
    image = axis.pcolormesh(
        range(len(xs)), range(len(ys)), found, cmap="OrRd", vmin=0, vmax=1, edgecolors="white"
    )
    for (ratio, value), own in runs.groupby(["ratio", name])["separation_mean"]:
        apart = own.mean()
        text = "div." if math.isnan(apart) else "0" if apart < 0.01 else f"{apart:.2g}"
        dark = "white" if found.loc[ratio, value] > 0.6 else "black"
        place = (list(xs).index(value), list(ys).index(ratio))
        axis.text(*place, text, ha="center", va="center", fontsize=8, color=dark, zorder=3)
    decoded = "reconstruction" in runs and runs["reconstruction"].any()
    dense = np.geomspace(xs[0], xs[-1], 201)
    for label, style, weights in THEORY[name]:
        if decoded or label != DECODED:
            heights = [critical_factor(*weights(x)) / 4 for x in dense.tolist()]
            place = _among(xs, dense), _among(ys, heights)
            axis.plot(*place, color="tab:blue", linestyle=style, label=label, linewidth=2)
    axis.set(
        xlabel=AXES[name], ylabel="$T / 4\\lambda_{max}$ at the start", ylim=(-0.5, len(ys) - 0.5)
    )
    axis.set_xticks(range(len(xs)), [f"{x:g}" for x in xs])
    axis.set_yticks(range(len(ys)), [f"{y:g}" for y in ys])
    return image


def _among(cells: Any, values: Any) -> Any:
    """Find where values lie among cells of equal size, by their logarithms; NaN beyond them."""
    places = range(len(cells))
    return np.interp(np.log(values), np.log(cells), places, left=math.nan, right=math.nan)


def trajectory_figure(wanted: list[Panel]) -> Figure:
    """Draw figures over steps: a column for each, a row for each panel, a line for each epsilon."""
    # k-means starts as a spread one does.
    wanted = [panel for panel in wanted if not panel[0].endswith("kmeans")] or wanted
    rows = [
        (title, ratio, runs[runs["ratio"] == ratio])
        for title, _, runs in wanted
        for ratio in shown_ratios(sorted(runs["ratio"].unique()))
    ]
    shape = len(rows), len(TRAJECTORIES)
    figure = Figure(figsize=(3.4 * shape[1], 2.7 * shape[0] + 0.5), layout="constrained")
    axes = figure.subplots(*shape, squeeze=False)
    for row, (title, ratio, runs) in zip(axes, rows, strict=True):
        _trajectories(row, runs)
        row[0].set_ylabel(
            f"{title}\n$T = {ratio:g} \\cdot 4\\lambda_{{max}}$ at the start", fontsize=8
        )
    for axis, label in zip(axes[0], TRAJECTORIES.values(), strict=True):
        axis.set_title(label, fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("step")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def shown_ratios(ratios: list[float]) -> list[float]:
    """Choose the temperatures whose trajectories are drawn: all of few, else one below T_c."""
    below = [ratio for ratio in ratios if ratio < 0.5]
    return ratios if len(ratios) < 4 or not below else below[-1:]


def _trajectories(row: Sequence[Axes], runs: pd.DataFrame) -> None:
    """Draw the mean over seeds as a line and their range as a band, for up to four epsilons."""
    epsilons = list(runs.groupby("epsilon")["history"])
    for axis, key in zip(row, TRAJECTORIES, strict=True):
        for number, (epsilon, own) in enumerate(epsilons[:: 2 if len(epsilons) > 4 else 1]):
            steps, lines = own.iloc[0]["step"], [history[key] for history in own]
            values = np.ma.masked_invalid(np.array(lines, dtype=float))  # (seeds, steps)
            axis.plot(steps, values.mean(axis=0), f"C{number}", label=f"$\\epsilon$ = {epsilon:g}")
            axis.fill_between(
                steps, values.min(axis=0), values.max(axis=0), color=f"C{number}", alpha=0.2
            )
        axis.set_xscale("symlog", linthresh=1)
        axis.grid(alpha=0.3)
        if key == "temperature_ratio":
            axis.axhline(1, color="black", linewidth=0.8)
            axis.set_yscale("log")
        elif key in LIMITS:
            axis.set_ylim(0, LIMITS[key])
