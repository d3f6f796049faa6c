"""Quantizers under one budget: learning-rate sweeps, seeds, intervals, a table, a picture."""

from __future__ import annotations

import contextlib
import json
import math
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from eval.compare.intervals import summary
from eval.compare.plan import FREE, Plan, diverged, finished, lines_of, saved_config, train_all
from training.checkpoint import write_atomic, write_text
from training.config.sections import DataConfig, OptimizerConfig
from training.errors import UserError
from training.run_log import finite

# What a run is compared by: (heading, key, format).
FIGURES = (
    ("argmax MSE", "mse_argmax", ".5f"),
    ("soft MSE", "mse_soft", ".5f"),
    ("PSNR", "psnr_argmax", ".2f"),
    ("argmax / soft", "gap", ".3f"),
    ("perplexity", "perplexity", ".1f"),
    ("used, train, worst epoch", "worst_utilization", ".1%"),
    ("T/T_c", "temperature_ratio", ".4f"),
    ("ms a step", "milliseconds", ".0f"),
)

TRAIN_CURVES = ("utilization", "perplexity", "temperature_ratio")
TEST_FIGURES = ("mse_argmax", "mse_soft", "psnr_argmax", "perplexity", "temperature_ratio")


def compare(plan: Plan, *, jobs: int = 1, train: bool = True) -> dict[str, Any]:
    """Train what is not trained yet, and sum up what is there.

    Args:
        plan: The comparison.
        jobs: Runs at a time; the cores are shared out among them.
        train: Whether to train at all; without, a part of a comparison is reported as it stands.

    Returns:
        ``dataset``, ``options``, ``lrs``, ``versions`` (of the packages here, now) and
        ``quantizers``: for each its ``lr``, the ``sweep`` (validation MSE of each rate), ``runs``,
        the seeds that ``diverged`` at this rate, and ``mean`` and ``interval`` (half of the 95 %
        interval of the mean, by Student's t) of the figures over the others, None where one of
        them lacks it.

    Raises:
        UserError: If a run folder holds another run, or a run failed.
    """
    plan.check()
    if train:
        train_all([(q, lr, 0) for q in plan.quantizers for lr in plan.lrs], plan, jobs)
    sweeps = {q: errors for q in plan.quantizers if (errors := sweep(plan, q))}
    if train:
        best = {q: min(errors, key=errors.__getitem__) for q, errors in sweeps.items()}
        train_all([(q, lr, s) for q, lr in best.items() for s in range(1, plan.seeds)], plan, jobs)
    if not sweeps:
        raise UserError(f"no run below {plan.out / 'runs'} is finished: leave out --report-only")
    result = {
        "dataset": data_of(plan, sweeps),
        "options": {name: v for name, v in plan.options.items() if name not in FREE},
        "lrs": list(plan.lrs),
        "versions": versions(),
        "quantizers": {q: own_result(plan, q, errors) for q, errors in sweeps.items()},
    }
    write_results(result, plan.out)
    return result


def versions() -> dict[str, str]:
    """Of what decides the figures and is installed."""
    found = {}
    for package in ("softvq", "torch", "vector-quantize-pytorch", "diveq"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def data_of(plan: Plan, sweeps: dict[str, dict[float, float]]) -> str:
    """The data set of the runs, which ``auto`` leaves open.

    Raises:
        UserError: If it gave them different ones.
    """
    folders = [plan.folder(q, lr, 0) for q, errors in sweeps.items() for lr in errors]
    names = {
        saved_config(folder)["dataset"] for folder in folders if (folder / "config.json").exists()
    }
    if len(names) > 1:
        raise UserError(
            f"the runs in {plan.out} are of different images, {' and '.join(sorted(names))}: give "
            "--set dataset=NAME and another --out"
        )
    return str(next(iter(names), plan.options.get("dataset", DataConfig.dataset)))


def validation_error(folder: Path) -> float:
    """What a learning rate is chosen by: the last epoch's error, soft where there are no tokens."""
    last = lines_of(folder, "val")[-1]
    error = last["mse_soft"] if last["mse_argmax"] is None else last["mse_argmax"]
    return math.inf if error is None else error


def sweep(plan: Plan, quantizer: str) -> dict[float, float]:
    """Validation errors of the rates whose first seed has ended, infinite where it diverged."""
    errors = {}
    for lr in plan.lrs:
        folder = plan.folder(quantizer, lr, 0)
        if finished(plan, quantizer, lr, 0):
            errors[lr] = validation_error(folder)
        elif diverged(folder):
            errors[lr] = math.inf
    return errors


def own_result(plan: Plan, quantizer: str, errors: dict[float, float]) -> dict[str, Any]:
    """The finished runs of a quantizer at the best rate of its sweep."""
    lr = min(errors, key=errors.__getitem__)
    seeds = [seed for seed in range(plan.seeds) if finished(plan, quantizer, lr, seed)]
    lost = [seed for seed in range(plan.seeds) if diverged(plan.folder(quantizer, lr, seed))]
    runs = [figures_of(plan.folder(quantizer, lr, seed), plan) | {"seed": seed} for seed in seeds]
    known = {}
    for _, key, _ in FIGURES:
        values = [run[key] for run in runs]
        known[key] = summary(values) if values and None not in values else None
    return {
        "lr": lr,
        "sweep": {f"{rate:g}": finite(error) for rate, error in errors.items()},
        "runs": runs,
        "diverged": lost,
        "mean": {key: own and own.mean for key, own in known.items()},
        "interval": {key: own and own.interval for key, own in known.items()},
    }


def figures_of(folder: Path, plan: Plan) -> dict[str, Any]:
    """What the table and the pictures show of a run."""
    test, train = lines_of(folder, "test"), lines_of(folder, "train")
    pairs = [(line["mse_argmax"], line["mse_soft"]) for line in test]
    batch = plan.options.get("batch_size", OptimizerConfig.batch_size)
    curves = {
        **{key: [line[key] for line in train] for key in TRAIN_CURVES},
        **{key: [line[key] for line in test] for key in ("mse_argmax", "psnr_argmax")},
        "gap": [None if None in pair else pair[0] / pair[1] for pair in pairs],
        "milliseconds": [1000 * batch / line["images_per_second"] for line in train],
    }
    used = curves["utilization"]
    return {
        **{key: test[-1][key] for key in TEST_FIGURES},
        "gap": curves["gap"][-1],
        "worst_utilization": None if None in used else min(used),
        "milliseconds": sum(curves["milliseconds"]) / len(train),
        "curves": curves,
    }


def table(result: dict[str, Any]) -> str:
    """Markdown: a row for each quantizer, best tokens first; mean and 95 % interval over seeds.

    Where the quantizer ``none`` was trained, the excess is what the tokens cost: their error less
    the soft error of ``none``, the floor that no quantizer passes.
    """
    floor = result["quantizers"].get("none", {}).get("mean", {}).get("mse_soft")
    rows = []
    for name, own in ordered(result):
        lost = f", {len(own['diverged'])} diverged" if own["diverged"] else ""
        cells = [f"`{name}`", f"{own['lr']:g}", f"{len(own['runs'])}{lost}"]
        for _, key, form in FIGURES:
            mean, half = own["mean"][key], own["interval"][key]
            cell = "-" if mean is None else format(mean, form)
            cells.append(cell if half is None or mean is None else f"{cell} ± {half:{form}}")
        error = own["mean"]["mse_argmax"]
        cells.append("-" if None in (floor, error) else format(error - floor, ".5f"))
        rows.append(cells)
    last = "excess" if floor is None else f"excess over {floor:.5f}"
    heads = ["quantizer", "lr", "seeds", *(head for head, *_ in FIGURES), last]
    return tabulate(rows, heads, tablefmt="github", disable_numparse=True)


def ordered(result: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Quantizers by their argmax error; those without tokens last."""
    means = {name: own["mean"]["mse_argmax"] for name, own in result["quantizers"].items()}
    names = sorted(means, key=lambda name: math.inf if means[name] is None else means[name])
    return [(name, result["quantizers"][name]) for name in names]


def write_results(result: dict[str, Any], out: Path) -> None:
    """``compare.json``, ``compare.md`` and ``compare.png``."""
    write_text(out / "compare.json", json.dumps(result, indent=1) + "\n")
    write_text(out / "compare.md", f"Images: {result['dataset']}\n\n{table(result)}\n")
    plot(result, out / "compare.png")


PANELS = (
    ("utilization", "share of codes used, train"),
    ("perplexity", "perplexity, train"),
    ("mse_argmax", "argmax MSE, test"),
    ("psnr_argmax", "argmax PSNR in dB, test"),
    ("gap", "argmax / soft MSE, test"),
    ("temperature_ratio", "T / T_c"),
    ("milliseconds", "ms a step"),
)


def plot(result: dict[str, Any], path: Path) -> None:
    """A panel for each figure over epochs, a line for each quantizer, a band over its seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(20, 7.5), layout="constrained")
    axes = figure.subplots(2, 4).flat
    for axis, (key, label) in zip(axes, PANELS, strict=False):
        for number, (name, own) in enumerate(ordered(result)):
            curves = [run["curves"][key] for run in own["runs"]]
            values = np.array([curve for curve in curves if None not in curve])  # (runs, epochs)
            if not len(values):
                continue
            epochs, colour = range(1, values.shape[1] + 1), f"C{number}"
            axis.plot(epochs, values.mean(axis=0), color=colour, label=name)
            axis.fill_between(
                epochs, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2
            )
        axis.set(xlabel="epoch", ylabel=label)
        axis.grid(alpha=0.3)
        if key in ("mse_argmax", "temperature_ratio"):
            axis.set_yscale("log")
    handles, names = next(iter(figure.axes)).get_legend_handles_labels()
    figure.axes[-1].legend(handles, names, loc="center")
    figure.axes[-1].axis("off")
    write_atomic(path, lambda file: figure.savefig(file, format="png", dpi=110))
