"""Results of stability studies: kept on disk after each part, summed up in tables."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from tabulate import tabulate

from training.checkpoint import write_text
from training.errors import UserError

# Outcomes of runs that are collapsed at their end.
COLLAPSED = ("collapsed", "never left")
# Title, axis and runs of a phase diagram.
Panel = tuple[str, str, pd.DataFrame]


def opened(
    out: Path, data: str, options: dict[str, Any] | None, free: Sequence[str] = ()
) -> dict[str, Any]:
    """Read what a study has so far.

    Args:
        out: Folder of the study.
        data: ``mixture`` or ``cifar10``.
        options: Options of this call; None takes the study as it stands, with its own.
        free: Names of options that may have changed since.

    Returns:
        ``data``, ``options``, ``boundaries`` and ``runs``, by block: for each run its settings and
        its ``history``, a list for each figure.

    Raises:
        UserError: If the file is damaged or of another study.
    """
    path = out / "stability.json"
    # Through JSON, so that tuples compare as the lists that a file has.
    options = json.loads(json.dumps(options))
    if not path.exists():
        return {"data": data, "options": options or {}, "boundaries": None, "runs": {}}
    try:
        result: dict[str, Any] = json.loads(path.read_text())
        options = result["options"] if options is None else options
        before = result["options"] | {name: options[name] for name in free}
        same = result["data"] == data and before == options
        result["boundaries"], result["runs"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read as a stability study; remove it, or give another -o"
        ) from error
    if not same:
        raise UserError(
            f"{path} holds a study of {result['data']} with options {result['options']}; this call "
            f"asks for {data} with {options}: give another -o"
        )
    return result | {"options": options}


def save(result: dict[str, Any], out: Path) -> None:
    """Write ``stability.json``."""
    write_text(out / "stability.json", json.dumps(result, allow_nan=False) + "\n")


def outcome(run: dict[str, Any]) -> str:
    """Say how a run ended.

    Returns:
        ``alive``; ``collapsed``; ``never left``, collapsed from the first record to the last, so
        that the run tells of escape and not of collapse; or ``diverged``, figures not finite.

    Example:
        >>> outcome({"history": {"collapsed": [False, True]}})
        'collapsed'
        >>> outcome({"history": {"collapsed": [True, True]}})
        'never left'
    """
    records = run["history"]["collapsed"]
    if records[-1] is None:
        return "diverged"
    if not records[-1]:
        return "alive"
    return "never left" if len(records) > 1 and all(records) else "collapsed"


def frame_of(result: dict[str, Any]) -> pd.DataFrame:
    """Put the runs of a study into a table, a row for each.

    Returns:
        Columns of each run's settings and ``history``, and of each figure at the end; ``block``;
        ``outcome``, and ``fell``, 1 where it is one of :data:`COLLAPSED`; and of the runs that
        belong to a phase diagram its ``title``, what they share, and its ``axis``, the setting
        that varies beside ``ratio``.
    """
    rows = []
    for block, runs in result["runs"].items():
        kind, *words = block.split("/")
        axis = {"epsilon": "epsilon", "weight": words[0]}.get(kind)
        for run in runs:
            title = f"weights, {axis}" if kind == "weight" else ", ".join([*words[:2], run["init"]])
            found = {"block": block, "title": title, "axis": axis, "outcome": outcome(run)}
            found["fell"] = float(found["outcome"] in COLLAPSED)
            ended = {name: values[-1] for name, values in run["history"].items()}
            rows.append(run | {"separation_mean": None} | ended | found)
    return pd.DataFrame(rows).astype({"separation_mean": float})


def panels(frame: pd.DataFrame) -> list[Panel]:
    """Part runs into phase diagrams: the title, the axis and the runs of each."""
    found = frame.groupby(["title", "axis"], sort=False)
    return [(title, axis, runs) for (title, axis), runs in found]


def shares(runs: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Return the share of seeds that collapsed: a row for each ratio, a column for each value."""
    return runs.pivot_table("fell", "ratio", axis)


def bracket(found: pd.Series) -> tuple[float, float]:
    """Find the highest ratio up to which no seed collapsed, and the lowest from which all did.

    Args:
        found: Shares of seeds that collapsed, by ratio in ascending order.

    Returns:
        (0, ...) where a seed collapsed at the lowest ratio, (..., inf) where one lived at the
        highest.

    Example:
        >>> bracket(pd.Series({0.5: 0.0, 0.9: 0.5, 2.0: 1.0}))
        (0.5, 2.0)
    """
    alive, fell = found.eq(0).cummin(), found[::-1].eq(1).cummin()
    return max(found.index[alive], default=0.0), min(fell.index[fell], default=math.inf)


def report(result: dict[str, Any]) -> str:
    """Write the tables, as Markdown."""
    parts = []
    if result["boundaries"]:
        rows = []
        for case in result["boundaries"]:
            own = case["measured_over_predicted"]
            spread = f"{sum(own) / len(own):.3f} ({min(own):.3f} to {max(own):.3f})"
            rows.append([case["name"], case["predicted"], spread])
        heads = ["loss on frozen latents", "T_c / λ_max, theory", "measured / theory"]
        parts.append(tabulate(rows, heads, "pipe"))
    frame = frame_of(result)
    for kind in ("curve/", "term/"):
        runs = frame[frame["block"].str.startswith(kind)]
        if len(runs):
            apart = runs.pivot_table("separation_mean", "ratio", "block", sort=False)
            heads = ["mean separation, frozen latents, T / 4 λ_max", *apart.columns]
            parts.append(tabulate(apart, heads, "pipe", floatfmt=("g", *[".2g"] * len(heads))))
    parts += [table_of(*panel) for panel in panels(frame)]
    worst = worst_residual(result)
    parts.append(f"largest |L_q - L_OLS - V| / L_q of all records: {worst:.1e}")
    return "\n\n".join(parts)


def table_of(title: str, axis: str, runs: pd.DataFrame) -> str:
    """Write a row for each value: up to where no seed collapsed, from where on all did."""
    rows = []
    for value, found in shares(runs, axis).items():
        low, high = bracket(found.dropna())
        rows.append([f"{value:g}", f"{low:g}", "none" if math.isinf(high) else f"{high:g}"])
    heads = [f"{title}: {axis}", "no seed collapsed up to", "all collapsed from"]
    lines = [tabulate(rows, heads, "pipe", disable_numparse=True)]
    ended = runs["outcome"].value_counts()
    stayed, diverged = ended.get("never left", 0), ended.get("diverged", 0)
    if stayed:
        collapsed = stayed + ended.get("collapsed", 0)
        lines.append(f"{stayed} of the {collapsed} collapsed runs never left a collapsed start")
    if diverged:
        lines.append(f"{diverged} of {len(runs)} runs diverged")
    return "\n".join(lines)


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Return a study without its histories.

    Returns:
        The study; each run as in :func:`frame_of`, by block; and ``worst_identity_residual``, of
        all records, which the figures at the end do not tell.
    """
    runs = frame_of(result).drop(columns=["history", "title", "axis"]).groupby("block", sort=False)
    found = {block: json.loads(own.to_json(orient="records")) for block, own in runs}
    return result | {"worst_identity_residual": worst_residual(result), "runs": found}


def worst_residual(result: dict[str, Any]) -> float:
    """Return the largest |L_q - L_OLS - V| / L_q of all records of all runs; 0 of none."""
    runs = (run for own in result["runs"].values() for run in own)
    records = (run["history"]["identity_residual"] for run in runs)
    return max((value for own in records for value in own if value is not None), default=0.0)
