"""The measured critical temperatures of frozen latents, as a panel of the phase figure."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from experiments.stability.report import COLLAPSED, outcome

NEAR = "L_q, near collapse"
# Around the theory, in T / T_c: what is drawn, and what is shaded.
SHOWN, SHADED = 0.12, 0.05


def boundary_panel(axis: Axes, result: dict[str, Any]) -> None:
    """Measured over predicted T_c of each loss, a point a seed; and the runs next to T_c.

    Args:
        axis: To draw on.
        result: Of a study that has ``boundaries``.
    """
    names = [case["name"] for case in result["boundaries"]]
    for row, case in enumerate(result["boundaries"]):
        found = case["measured_over_predicted"]
        axis.plot(found, spread_rows(row, len(found)), "k.", markersize=7)
    near: dict[tuple[float, bool], list[dict[str, Any]]] = {}
    for run in result["runs"].get(f"curve/{NEAR}", []):
        if abs(run["ratio"] - 1) < SHOWN:
            near.setdefault((run["ratio"], outcome(run) in COLLAPSED), []).append(run)
    for (ratio, stayed), runs in sorted(near.items()):
        colour = "#7f0000" if stayed else "#fdbb84"
        rows = spread_rows(len(names), len(runs))
        label = "stays collapsed" if stayed else "comes apart"
        axis.plot([ratio] * len(runs), rows, "s", color=colour, label=label, markersize=4)
    axis.axvline(1, color="tab:blue", linewidth=2)
    axis.axvspan(1 - SHADED, 1 + SHADED, color="tab:blue", alpha=0.12)
    axis.set_yticks(range(len(names) + bool(near)), [*names, *([NEAR] if near else [])], fontsize=8)
    axis.set(
        xlim=(1 - SHOWN, 1 + SHOWN), ylim=(-0.6, len(names) + bool(near) - 0.4),
        xlabel="T / T_c of the theory; shaded: within 5 %",
    )  # fmt: skip
    axis.set_title("frozen latents: measured T_c, each seed", fontsize=10)
    axis.invert_yaxis()


def spread_rows(row: int, count: int) -> list[float]:
    """Heights of the seeds of a row, so that equal ones do not hide each other.

    Example:
        >>> spread_rows(2, 3)
        [1.75, 2.0, 2.25]
        >>> spread_rows(2, 1)
        [2.0]
    """
    return [round(row + 0.25 * (number - (count - 1) / 2), 3) for number in range(count)]
