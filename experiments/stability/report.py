"""Results of stability studies: kept on disk after each part, summed up in tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from training.checkpoint import write_text
from training.errors import UserError

# Outcomes of runs that are collapsed at their end.
COLLAPSED = ("collapsed", "never left")


def opened(
    out: Path, data: str, options: dict[str, Any] | None, free: tuple[str, ...] = ()
) -> dict[str, Any]:
    """What a study has so far.

    Args:
        out: Its folder.
        data: Its data.
        options: Of this call; None takes the study as it stands, with its own.
        free: Names of options that may have changed since.

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
    result["options"] = options
    return result


def save(result: dict[str, Any], out: Path) -> None:
    """Write ``stability.json``."""
    write_text(out / "stability.json", json.dumps(result, allow_nan=False) + "\n")


def final(run: dict[str, Any], name: str) -> Any:
    """A figure of a run at its end."""
    return run["history"][name][-1]


def outcome(run: dict[str, Any]) -> str:
    """How a run ended.

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


def runs_of(result: dict[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Runs of all blocks whose names start so."""
    return [run for name, own in result["runs"].items() if name.startswith(prefix) for run in own]


def shares(
    runs: Iterable[dict[str, Any]], axis: str, names: tuple[str, ...] = COLLAPSED
) -> dict[tuple[float, float], float]:
    """Of each (axis, ratio): the share of seeds with one of these outcomes.

    Example:
        >>> run = {"epsilon": 1.0, "ratio": 2.0, "history": {"collapsed": [False, True]}}
        >>> shares([run], "epsilon")
        {(1.0, 2.0): 1.0}
    """
    counts: dict[tuple[float, float], list[bool]] = {}
    for run in runs:
        counts.setdefault((run[axis], run["ratio"]), []).append(outcome(run) in names)
    return {place: sum(own) / len(own) for place, own in counts.items()}


def bracket(found: dict[tuple[float, float], float], at: float) -> tuple[float, float]:
    """The highest ratio up to which no seed collapsed, and the lowest from which all did.

    Args:
        found: Of :func:`shares`.
        at: Value on the axis.

    Returns:
        (0, ...) where a seed collapsed at the lowest ratio, (..., inf) where one lived at the
        highest.

    Example:
        >>> bracket({(1.0, 0.5): 0.0, (1.0, 0.9): 0.5, (1.0, 2.0): 1.0}, at=1.0)
        (0.5, 2.0)
    """
    column = sorted((ratio, share) for (value, ratio), share in found.items() if value == at)
    lower, upper = 0.0, math.inf
    for ratio, share in column:
        if share > 0:
            break
        lower = ratio
    for ratio, share in reversed(column):
        if share < 1:
            break
        upper = ratio
    return lower, upper


def brackets(runs: list[dict[str, Any]], axis: str) -> dict[float, tuple[float, float]]:
    """:func:`bracket` at each value of the axis."""
    found = shares(runs, axis)
    return {value: bracket(found, value) for value in sorted({value for value, _ in found})}


def spread_of(values: list[float]) -> str:
    """Mean, and the range over seeds.

    Example:
        >>> spread_of([1.0, 1.02])
        '1.010 (1.000 to 1.020)'
    """
    return f"{sum(values) / len(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """A study without its histories.

    Returns:
        The study; of each run its settings that vary, its ``outcome`` and its figures at the end;
        and ``worst_identity_residual``, of all records, which the figures at the end do not tell.
    """
    varied = ("seed", "init", "epsilon", "ratio")
    shown = (
        "collapsed", "separation_min", "separation_mean", "distinct", "temperature_ratio",
        "utilization", "soft_perplexity", "argmax_error", "soft_error", "mse_soft", "mse_argmax",
    )  # fmt: skip
    runs = {
        block: [
            {name: run[name] for name in varied}
            | {"outcome": outcome(run)}
            | {name: final(run, name) for name in shown if name in run["history"]}
            for run in own
        ]
        for block, own in result["runs"].items()
    }
    return {**result, "worst_identity_residual": worst_residual(result), "runs": runs}


def worst_residual(result: dict[str, Any]) -> float:
    """The largest |L_q - L_OLS - V| / L_q of all records of all runs; 0 of none."""
    records = (run["history"]["identity_residual"] for run in runs_of(result, ""))
    return max((value for own in records for value in own if value is not None), default=0.0)


def report(result: dict[str, Any]) -> str:
    """Tables, as markdown."""
    lines: list[str] = []
    if result["boundaries"]:
        lines += [
            "| loss on frozen latents | T_c / λ_max, theory | measured / theory |",
            "|---|---|---|",
        ]
        for case in result["boundaries"]:
            measured = spread_of(case["measured_over_predicted"])
            lines.append(f"| {case['name']} | {case['predicted']:g} | {measured} |")
        lines.append("")
    for panel in panels(result):
        lines += table_of(*panel)
    worst = worst_residual(result)
    lines.append(f"largest |L_q - L_OLS - V| / L_q of all records: {worst:.1e}")
    return "\n".join(lines)


def table_of(title: str, axis: str, runs: list[dict[str, Any]]) -> list[str]:
    """A row for each value of the axis: up to where no seed collapsed, from where on all did."""
    ended = [outcome(run) for run in runs]
    diverged, stayed = ended.count("diverged"), ended.count("never left")
    lines = [
        f"| {title}: {axis} | no seed collapsed up to | all collapsed from |",
        "|---|---|---|",
    ]
    for value, (low, high) in brackets(runs, axis).items():
        upper = "none" if math.isinf(high) else f"{high:g}"
        lines.append(f"| {value:g} | {low:g} | {upper} |")
    if stayed:
        collapsed = stayed + ended.count("collapsed")
        lines.append(f"{stayed} of the {collapsed} collapsed runs never left a collapsed start")
    if diverged:
        lines.append(f"{diverged} of {len(runs)} runs diverged")
    return [*lines, ""]


class Panel(NamedTuple):
    """Runs of one phase diagram.

    Attributes:
        title: What they share.
        axis: Name of the setting that varies beside ``ratio``.
        runs: The runs.
    """

    title: str
    axis: str
    runs: list[dict[str, Any]]


def panels(result: dict[str, Any]) -> list[Panel]:
    """Phase diagrams of a study: one for each learner, control and start, and each weight."""
    found: dict[str, Panel] = {}
    for name, runs in result["runs"].items():
        words = name.split("/")
        for run in runs:
            if words[0] == "epsilon":
                title, axis = ", ".join([*words[1:3], run["init"]]), "epsilon"
            elif words[0] == "weight":
                title, axis = f"weights, {words[1]}", words[1]
            else:
                continue
            found.setdefault(title, Panel(title, axis, [])).runs.append(run)
    return list(found.values())
