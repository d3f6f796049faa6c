"""Pictures of a stability study: phase diagrams, curves on frozen latents, trajectories."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.stability.blocks import CURVES, TERM_RATIOS
from experiments.stability.boundary_figure import boundary_panel
from experiments.stability.report import Panel, final, outcome, panels, runs_of, shares
from training.checkpoint import write_atomic

TRAJECTORIES = (
    ("separation_mean", "mean separation / $\\sqrt{\\lambda_{max}}$"),
    ("separation_min", "minimum separation / $\\sqrt{\\lambda_{max}}$"),
    ("temperature_ratio", "$T / T_c$"),
    ("utilization", "utilization (argmax)"),
    ("soft_perplexity", "soft perplexity"),
    ("argmax_error", "argmax error / tr C"),
)


def draw(result: dict[str, Any], out: Path) -> list[Path]:
    """All pictures that the runs so far allow.

    Args:
        result: Of a study.
        out: Folder.

    Returns:
        The files written.
    """
    wanted = {
        "frozen": frozen_figure, "phases": phase_figure, "weights": weight_figure,
        "trajectories": trajectory_figure,
    }  # fmt: skip
    written = []
    for name, make in wanted.items():
        figure = make(result)
        if figure is not None:
            path = out / f"stability-{result['data']}-{name}.png"
            write_atomic(path, partial(figure.savefig, format="png", dpi=100))
            written.append(path)
    return written


def frozen_figure(result: dict[str, Any]) -> Figure | None:
    """Separation on frozen latents over T; and what each term of L_q alone does to it."""
    if not runs_of(result, "curve/"):
        return None
    figure = Figure(figsize=(13, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, name in enumerate(CURVES):
        # A study that was stopped lacks some.
        runs = result["runs"].get(f"curve/{name}", [])
        ratios = sorted({run["ratio"] for run in runs})
        columns = [[final(r, "separation_mean") for r in runs if r["ratio"] == x] for x in ratios]
        band(left, ratios, columns, f"C{number}", name)
    for place, style in ((1.0, "-"), (0.5, ":"), (2.0, "--")):
        label = f"theory: {4 * place:g} $\\lambda_{{max}}$"
        left.axvline(place, color="black", linestyle=style, linewidth=1, label=label)
    left.set(
        xlabel="$T / 4\\lambda_{max}$", xscale="log",
        ylabel="final mean separation / $\\sqrt{\\lambda_{max}}$", title="frozen latents",
    )  # fmt: skip
    left.legend(fontsize=8)
    names = {"loss": "L_q", "loss_ols": "L_OLS alone", "variance": "V alone"}
    for number, (term, name) in enumerate(names.items()):
        for ratio, style in zip(TERM_RATIOS, ("-", "--", ":"), strict=True):
            runs = [r for r in runs_of(result, f"term/{term}") if r["ratio"] == ratio]
            runs = [r for r in runs if r["term"] == term]
            if runs:
                lines = [run["history"]["separation_mean"] for run in runs]
                steps = [max(step, 0.5) for step in runs[0]["history"]["step"]]
                means = [mean(column) for column in zip(*lines, strict=True)]
                label = f"{name}, $T = {ratio:g} \\cdot 4\\lambda_{{max}}$"
                right.plot(steps, means, color=f"C{number}", linestyle=style, label=label)
    right.set(
        xlabel="step (0 drawn at 0.5)", xscale="log",
        ylabel="mean separation / $\\sqrt{\\lambda_{max}}$",
        title="each term alone, frozen latents, spread start",
    )  # fmt: skip
    right.set_yscale("symlog", linthresh=1)
    if right.lines:
        right.legend(fontsize=8)
    return figure


def band(axis: Axes, x: Sequence[float], columns: Any, colour: str, label: str) -> None:
    """The mean of columns as a line, their range as a band; None are left out."""
    kept = [(a, [v for v in c if v is not None]) for a, c in zip(x, columns, strict=True)]
    kept = [(a, c) for a, c in kept if c]
    places = [a for a, _ in kept]
    axis.plot(places, [mean(c) for _, c in kept], color=colour, label=label)
    lows, highs = [min(c) for _, c in kept], [max(c) for _, c in kept]
    axis.fill_between(places, lows, highs, color=colour, alpha=0.2)


def mean(values: Sequence[float | None]) -> float:
    """Of the values that are numbers; NaN of none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def phase_figure(result: dict[str, Any]) -> Figure | None:
    """A phase diagram of collapse over (epsilon, T / T_c) for each learner, control and start.

    Before them, where they were measured, the critical temperatures of frozen latents.
    """
    first = partial(boundary_panel, result=result) if result["boundaries"] else None
    return _phases([panel for panel in panels(result) if panel.axis == "epsilon"], first)


def weight_figure(result: dict[str, Any]) -> Figure | None:
    """Phase diagrams over the weights of the losses."""
    return _phases([panel for panel in panels(result) if panel.axis != "epsilon"])


def _phases(wanted: list[Panel], first: Callable[[Axes], object] | None = None) -> Figure | None:
    """Phase diagrams in rows of three, behind another panel if there is one."""
    if not wanted:
        return None
    count = len(wanted) + (first is not None)
    columns = min(3, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(4.6 * columns + 1, 4.4 * rows + 0.6), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[count:]:
        axis.axis("off")
    if first is not None:
        first(axes.pop(0))
    for axis, panel in zip(axes, wanted, strict=False):
        image = _phase(axis, panel.runs, panel.axis)
        starts_collapsed = panel.title.endswith(", near")
        axis.set_title(
            panel.title + (": collapsed at the start" if starts_collapsed else ""), fontsize=10
        )
    figure.colorbar(image, ax=figure.axes, label="share of seeds collapsed at the end")
    known: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            known.setdefault(label, handle)
    figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=3)
    return figure


def _phase(axis: Axes, runs: list[dict[str, Any]], name: str) -> Any:
    """Cells of the share of seeds that collapsed, the final separation in them, theory's lines."""
    found, diverged = shares(runs, name), shares(runs, name, ("diverged",))
    xs, ys = (sorted({place[i] for place in found}) for i in (0, 1))
    cells = [[found.get((x, y), math.nan) for x in xs] for y in ys]
    image = axis.pcolormesh(
        range(len(xs)), range(len(ys)), cells, cmap="OrRd", vmin=0, vmax=1, edgecolors="white"
    )
    for x, y in found:
        own = [r for r in runs if (r[name], r["ratio"]) == (x, y) and outcome(r) != "diverged"]
        value = mean([final(run, "separation_mean") for run in own])
        text = "div." if diverged[x, y] == 1 else "-" if math.isnan(value) else cell_text(value)
        dark = "white" if found[x, y] > 0.6 else "black"
        place = (xs.index(x), ys.index(y))
        axis.text(*place, text, ha="center", va="center", fontsize=8, color=dark, zorder=3)
    decoded = any(run.get("reconstruction") for run in runs)
    for label, style, line in THEORY[name]:
        if label == DECODED and not decoded:
            continue
        dense = [xs[0] * (xs[-1] / xs[0]) ** (step / 200) for step in range(201)]
        across, heights = ([between(xs, x) for x in dense], [between(ys, line(x)) for x in dense])
        axis.plot(across, heights, color="tab:blue", linestyle=style, label=label, linewidth=2)
    axis.set(xlabel=AXES[name], ylabel="$T / 4\\lambda_{max}$ at the start")
    axis.set_xticks(range(len(xs)), [f"{x:g}" for x in xs])
    axis.set_yticks(range(len(ys)), [f"{y:g}" for y in ys])
    axis.set_ylim(-0.5, len(ys) - 0.5)
    return image


def cell_text(value: float) -> str:
    """A separation in two digits; what is below a hundredth is 0.

    Example:
        >>> cell_text(1.234), cell_text(1e-7), cell_text(1234.0)
        ('1.2', '0', '1.2e+03')
    """
    return "0" if value < 0.01 else f"{value:.2g}"


def between(values: Sequence[float], value: float) -> float:
    """Where a value lies among cells of equal height, by its logarithm; NaN beyond them.

    Example:
        >>> between([0.1, 1.0, 10.0], 1.0), round(between([0.1, 1.0], 0.316), 2)
        (1.0, 0.5)
        >>> between([0.1, 1.0], 5.0)
        nan
    """
    for number, (low, high) in enumerate(pairwise(values)):
        # A ten-millionth, so that rounding does not put the last value beyond itself.
        if low * (1 - 1e-7) <= value <= high * (1 + 1e-7):
            return number + math.log(value / low) / math.log(high / low)
    return math.nan


# Critical temperatures over 4 lambda_max of the start, as functions of the axis.
Line = tuple[str, str, Callable[[float], float]]
HELD = "2 $\\lambda_{max}$ (q held)"
THROUGH = "4 $\\lambda_{max}$ a/b (gradient through q)"
DECODED = "4 $\\lambda_{max}$ a/b, reconstruction counted in a"
THEORY: dict[str, list[Line]] = {
    "epsilon": [
        (THROUGH, "-", lambda x: 1.0), (DECODED, "--", lambda x: 2.0), (HELD, ":", lambda x: 0.5),
    ],
    "commitment": [(THROUGH, "-", lambda x: 1.0), (DECODED, "--", lambda x: (x + 1) / x)],
    "variance_weight": [(THROUGH, "-", lambda x: 1 / x), (DECODED, "--", lambda x: 2 / x)],
}  # fmt: skip
AXES = {
    "epsilon": "$\\epsilon$ = encoder rate / prototype rate",
    "commitment": "weight of the codebook's loss (reconstruction: 1)",
    "variance_weight": "b, weight of V against L_OLS",
}


def trajectory_figure(result: dict[str, Any]) -> Figure | None:
    """A column for each figure over steps, a row for each panel, a line for each epsilon."""
    wanted = [panel for panel in panels(result) if panel.axis == "epsilon"]
    # k-means starts as a spread one does.
    wanted = [panel for panel in wanted if not panel.title.endswith("kmeans")] or wanted
    if not wanted:
        return None
    rows = [(panel, ratio) for panel in wanted for ratio in shown_ratios(panel)]
    shape = len(rows), len(TRAJECTORIES)
    figure = Figure(figsize=(3.4 * shape[1], 2.7 * shape[0] + 0.5), layout="constrained")
    axes = figure.subplots(*shape, squeeze=False)
    for row, (panel, ratio) in zip(axes, rows, strict=True):
        _trajectories(row, [run for run in panel.runs if run["ratio"] == ratio])
        start = f"$T = {ratio:g} \\cdot 4\\lambda_{{max}}$ at the start"
        row[0].set_ylabel(f"{panel.title}\n{start}", fontsize=8)
    for axis, (_, label) in zip(axes[0], TRAJECTORIES, strict=True):
        axis.set_title(label, fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("step")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def shown_ratios(panel: Panel) -> list[float]:
    """Temperatures of which the trajectories are drawn: all of few, else one below T_c."""
    ratios = sorted({run["ratio"] for run in panel.runs})
    below = [ratio for ratio in ratios if ratio < 0.5]
    return ratios if len(ratios) < 4 or not below else below[-1:]


def _trajectories(row: Sequence[Axes], runs: list[dict[str, Any]]) -> None:
    epsilons = sorted({run["epsilon"] for run in runs})
    chosen = epsilons[:: 2 if len(epsilons) > 4 else 1]
    for axis, (key, _) in zip(row, TRAJECTORIES, strict=True):
        for number, epsilon in enumerate(chosen):
            own = [run["history"] for run in runs if run["epsilon"] == epsilon]
            columns = list(zip(*(history[key] for history in own), strict=True))
            band(axis, own[0]["step"], columns, f"C{number}", f"$\\epsilon$ = {epsilon:g}")
        axis.set_xscale("symlog", linthresh=1)
        if key == "temperature_ratio":
            axis.axhline(1, color="black", linewidth=0.8)
            axis.set_yscale("log")
        if key == "argmax_error":
            axis.set_ylim(0, 2)
        if key.startswith("separation"):
            axis.set_ylim(0, 4)
        axis.grid(alpha=0.3)
