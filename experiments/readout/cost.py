"""Time and memory of readouts over the length of a document, one process per case.

    python benchmarks/readout.py --json docs/results/readout.json   # about ten minutes
    python benchmarks/readout.py --quick                            # to see that it runs

DDCL, mean, Slot Attention and learned queries against one layer of self-attention, which any
transformer below them has: fused, in linear memory, and with its (T, T) matrices. One document
of T tokens; times are CPU seconds of one thread, which other jobs on the machine disturb least;
ratios and slopes are of one run.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
import torch._dynamo  # Every optimiser loads it, so it is not the readout's.
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.codebooks import MIB, available_memory, machine, peak, reset_peak
from experiments.readout.baselines import CrossAttentionReadout, MeanReadout, SlotAttentionReadout
from softvq import ConstantTemperature, DDCLCodebook, DDCLReadout, Schedule, proportions
from training.checkpoint import check_target, write_text
from training.errors import UserError

LAYERS = ("mean", "ddcl", "ddcl-shares", "slots", "queries", "attention", "attention-matrix")
LENGTHS = tuple(2**power for power in range(9, 16))
DIM, SIZE, HEADS = 64, 16, 4
# (T, T) float32 matrices, one for each head, that a layer holds at its peak; for what fits.
MATRICES = {"attention-matrix": {"forward": 2, "training": 4}}
# Slopes are fitted from here on: below, the cost of a call hides that of its tokens.
LONG = 4096

Case = dict[str, Any]


@click.command()
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write all rows there.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=1.5,
    show_default=True,
    help="Least time spent on a case.",
)
@click.option(
    "--memory-limit", type=click.FloatRange(0, min_open=True),
    help="GiB; what needs more is left out.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Lengths of 512 and 4,096, half a second each.")
def main(path: Path | None, seconds: float, memory_limit: float | None, quick: bool) -> None:
    """Measure every layer at every length; print tables."""
    started = time.perf_counter()
    check_target(path, "--json")
    limit = memory_limit * 2**30 if memory_limit else 0.4 * available_memory()
    rows = []
    for length in LENGTHS[::3][:2] if quick else LENGTHS:
        for mode in ("forward", "training"):
            for layer in LAYERS:
                budget = 0.5 if quick else seconds
                row = run({"layer": layer, "length": length, "mode": mode, "budget": budget}, limit)
                print(row, file=sys.stderr)
                rows.append(row)
    result = {
        "machine": machine(Namespace(threads=1, device="cpu")),
        "dim": DIM,
        "size": SIZE,
        "heads": HEADS,
        "rows": rows,
        "slopes": slopes(rows),
        "slopes_of_all_lengths": slopes(rows, least=0),
        "minutes": (time.perf_counter() - started) / 60,
    }
    print(tables(result))
    if path:
        write_text(path, json.dumps(result) + "\n")


def run(case: Case, limit: float) -> Case:
    """One case in a process of its own; leaves out what would not fit into the limit, in bytes."""
    matrices = MATRICES.get(case["layer"], {}).get(case["mode"], 0)
    need = 4 * HEADS * case["length"] ** 2 * matrices
    if need > limit:
        return {**case, "left_out": f"needs about {need / 2**30:.0f} GiB"}
    # A fork starts with all libraries loaded, and with memory of its own from then on.
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=report, args=(case, sender))
    process.start()
    sender.close()
    try:
        measured = receiver.recv()
    except EOFError:
        measured = {"left_out": "failed"}
    process.join()
    return {**case, **measured}


def report(case: Case, sender: Any) -> None:
    """Send what was measured to the process that asked."""
    sender.send(measure(case))


def measure(case: Case) -> dict[str, float]:
    """Median seconds, median CPU seconds and peak MiB beyond the tokens."""
    torch.manual_seed(0)
    step = step_of(case["layer"], case["mode"] == "training")
    # Loads libraries; too small to leave memory behind that would be reused.
    step(torch.randn(1, 64, DIM, requires_grad=case["mode"] == "training"))
    tokens = torch.randn(1, case["length"], DIM, requires_grad=case["mode"] == "training")
    before = reset_peak(tokens.device)
    wall: list[float] = []
    cpu: list[float] = []
    end = time.perf_counter() + case["budget"]
    while not wall or time.perf_counter() < end:
        tokens.grad = None
        started, started_cpu = time.perf_counter(), time.process_time()
        step(tokens)
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - started_cpu)
    return {
        "seconds": median(wall),
        "cpu_seconds": median(cpu),
        "extra_mib": (peak(tokens.device) - before) / MIB,
        "repeats": len(wall),
    }


def step_of(layer: str, training: bool) -> Callable[[Any], Any]:
    """One pass over (1, T, D) tokens: forward alone, without a graph, or with its gradients."""
    module = module_of(layer).train(training)

    def scalar(tokens: torch.Tensor) -> torch.Tensor:
        if layer == "ddcl-shares":  # What a trained readout needs: no code, no loss.
            own = module.codebook
            return (proportions(own, tokens) @ own.codebook).square().mean()
        if layer.startswith("attention"):
            weights = layer == "attention-matrix"
            return module(tokens, tokens, tokens, need_weights=weights)[0].square().mean()
        out = module(tokens)
        return out.pooled.square().mean() + out.loss

    def train(tokens: torch.Tensor) -> None:
        module.zero_grad()
        scalar(tokens).backward()

    return train if training else torch.no_grad()(scalar)


def module_of(layer: str) -> Any:
    """A layer by its name, of the sizes above."""
    # Random vectors of unit variance lie 2 D apart: this T leaves a few codes per token.
    temperature = ConstantTemperature(Schedule(0.1 * DIM))
    builders: dict[str, Callable[[], Any]] = {
        "mean": lambda: MeanReadout(DIM),
        "ddcl": lambda: DDCLReadout(
            DDCLCodebook(DIM, SIZE, temperature=temperature, usage_weight=0.0)
        ),
        "ddcl-shares": lambda: builders["ddcl"](),
        "slots": lambda: SlotAttentionReadout(DIM, SIZE),
        "queries": lambda: CrossAttentionReadout(DIM, SIZE, heads=HEADS),
        "attention": lambda: nn.MultiheadAttention(DIM, HEADS, batch_first=True),
        "attention-matrix": lambda: nn.MultiheadAttention(DIM, HEADS, batch_first=True),
    }
    return builders[layer]()


def slopes(rows: list[Case], least: int = LONG) -> dict[str, dict[str, float]]:
    """Least-squares slope of log CPU time, and of log memory, over log T, from T = ``least`` on.

    1 means linear, 2 quadratic. By ``layer mode``; left out where fewer than three lengths ran.
    """
    found = {}
    for layer in LAYERS:
        for mode in ("forward", "training"):
            mine = [row for row in rows if (row["layer"], row["mode"]) == (layer, mode)]
            mine = [row for row in mine if row["length"] >= least and row.get("extra_mib", 0) > 0]
            if len(mine) >= 3:
                found[f"{layer} {mode}"] = {
                    key: slope([(row["length"], row[key]) for row in mine])
                    for key in ("cpu_seconds", "extra_mib")
                }
    return found


def slope(points: list[tuple[float, float]]) -> float:
    """Of the logarithms of y over those of x."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    center = [sum(column) / len(logs) for column in zip(*logs, strict=True)]
    above = sum((x - center[0]) * (y - center[1]) for x, y in logs)
    return above / sum((x - center[0]) ** 2 for x, _ in logs)


def tables(result: Case) -> str:
    """Markdown, one table for each mode: CPU ms and MiB, and time over DDCL's at the same T."""
    lines = []
    lengths = sorted({row["length"] for row in result["rows"]})
    for mode in ("forward", "training"):
        heads = [f"T = {length:,}" for length in lengths]
        lines += [f"\n{mode}: CPU ms / extra MiB (time over ddcl's)\n"]
        lines += [f"| layer | {' | '.join(heads)} | slope of time | of memory |"]
        lines += ["|---" * (len(lengths) + 3) + "|"]
        for layer in LAYERS:
            cells = [cell(result["rows"], layer, length, mode) for length in lengths]
            fit = result["slopes"].get(f"{layer} {mode}", {})
            cells += [f"{fit[key]:.2f}" if fit else "" for key in ("cpu_seconds", "extra_mib")]
            lines.append(f"| {layer} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(rows: list[Case], layer: str, length: int, mode: str) -> str:
    """What a table says of a layer at one length."""
    here = {row["layer"]: row for row in rows if (row["length"], row["mode"]) == (length, mode)}
    row, own = here[layer], here["ddcl"]
    if "left_out" in row:
        return row["left_out"]
    ratio = row["cpu_seconds"] / own["cpu_seconds"]
    return f"{1e3 * row['cpu_seconds']:,.2f} / {row['extra_mib']:,.1f} ({ratio:.2f})"


if __name__ == "__main__":
    torch.set_num_threads(1)  # Also what makes a fork safe.
    # In evaluation torch would compute the (T, T) matrices of self-attention after all.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        main()
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
