"""Time and memory of codebooks, forward and backward, one process per case.

    python benchmarks/codebooks.py            # the full table; about ten minutes on a CPU
    python benchmarks/codebooks.py --quick    # small sizes, to see that it runs

Engines: the dense and the attention engine of softvq and, where it is installed,
``VectorQuantize`` of vector-quantize-pytorch. Writes ``codebooks.json`` and, if matplotlib is
there, ``codebooks.png``; prints markdown tables whose ratios all come from this run. On the CPU
the ratios are of CPU time in one thread, the figure that other jobs on the machine disturb least.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ENGINES = ("dense", "attention", "VectorQuantize")
# (N, K) float32 matrices that an engine holds at its peak, rounded up; for the choice of what fits.
MATRICES = {"dense": 5, "attention": 0, "VectorQuantize": 7}

Case = dict[str, Any]


def main() -> None:
    """Run every case, then write and print the results."""
    args = parse_arguments()
    if args.case:
        print(json.dumps(measure(json.loads(args.case))))
        return
    limit = args.memory_limit * 2**30 if args.memory_limit else 0.6 * available_memory()
    rows = []
    for case in cases(args):
        row = run(case, limit)
        rows.append(row)
        seen = {key: round(value, 4) for key, value in row.items() if isinstance(value, float)}
        print(f"{row['series']} {row['engine']} N={row['n']} K={row['k']}", seen, file=sys.stderr)
    result = {"machine": machine(args), "rows": rows}
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "codebooks.json").write_text(json.dumps(result))
    if importlib.util.find_spec("matplotlib"):
        plot(rows, args.output / "codebooks.png")
    print(table(rows))


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description="Time and memory of codebooks.")
    parser.add_argument("--output", type=Path, default=ROOT / "bench-results", help="a folder")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU; see the module")
    parser.add_argument("--seconds", type=float, default=5.0, help="least time spent on a case")
    parser.add_argument("--memory-limit", type=float, help="GiB; cases beyond it are left out")
    parser.add_argument("--quick", action="store_true", help="few sizes, an eighth as large")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    return parser.parse_args()


def cases(args: argparse.Namespace) -> list[Case]:
    """The main table, then growth with N at fixed K and with K at fixed N."""
    grid = [("main", 8192, k) for k in (512, 8192, 65536, 262144)]
    grid += [("growth in N", n, 4096) for n in (2048, 4096, 8192, 16384, 32768)]
    grid += [("growth in K", 2048, k) for k in (1024, 2048, 4096, 8192, 16384, 32768)]
    grid = grid[::3] if args.quick else grid
    shrink = 8 if args.quick else 1
    engines = ENGINES if importlib.util.find_spec("vector_quantize_pytorch") else ENGINES[:2]
    shared = {"dim": 64, "device": args.device, "threads": args.threads, "budget": args.seconds}
    return [
        {"series": series, "engine": engine, "n": n // shrink, "k": k // shrink, **shared}
        for series, n, k in grid
        for engine in engines
    ]


def run(case: Case, limit: float) -> Case:
    """One case in a process of its own; leaves out what would not fit into the limit, in bytes."""
    need = 4 * case["n"] * case["k"] * MATRICES[case["engine"]]
    if need > limit:
        return {**case, "left_out": f"needs about {need / 2**30:.0f} GiB"}
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env)
    if done.returncode:
        return {**case, "left_out": f"failed with status {done.returncode}"}
    return {**case, **json.loads(done.stdout.splitlines()[-1])}


def measure(case: Case) -> dict[str, float]:
    """Median seconds, median CPU seconds and peak MiB beyond the inputs."""
    import torch
    import torch._dynamo  # Every optimiser loads it, so it is not the codebook's.

    torch.set_num_threads(case["threads"])
    torch.manual_seed(0)
    device = torch.device(case["device"])
    z = torch.randn(case["n"], case["dim"], device=device, requires_grad=True)
    # Loads libraries and starts threads; too small to leave memory behind that would be reused.
    training_step({**case, "k": 64}, device)(z[:64])
    z.grad = None
    step = training_step(case, device)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return timed(step, z, case["budget"])


def timed(step: Callable[[Any], object], x: Any, seconds: float) -> dict[str, float]:
    """Repeat a step; its median seconds and CPU seconds, and peak MiB beyond what is held before.

    Args:
        step: Called with ``x``, whose gradient is dropped before.
        x: A tensor.
        seconds: Least time to spend.
    """
    before = reset_peak(x.device)
    wall: list[float] = []
    cpu: list[float] = []
    end = time.perf_counter() + seconds
    while not wall or time.perf_counter() < end:
        x.grad = None
        started, started_cpu = time.perf_counter(), time.process_time()
        step(x)
        if x.device.type == "cuda":
            import torch

            torch.cuda.synchronize()
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - started_cpu)
    return {
        "seconds": median(wall),
        "seconds_min": min(wall),
        "cpu_seconds": median(cpu),
        "extra_mib": (peak(x.device) - before) / 2**20,
        "repeats": len(wall),
    }


def training_step(case: Case, device: Any) -> Callable[[Any], None]:
    """Forward and backward through the code and every loss of an engine."""
    import torch

    if case["engine"] == "VectorQuantize":
        from vector_quantize_pytorch import VectorQuantize

        module = VectorQuantize(dim=case["dim"], codebook_size=case["k"]).to(device)

        def vector_quantize(z: torch.Tensor) -> None:
            quantized, _, loss = module(z[None])
            (quantized.square().mean() + loss.sum()).backward()

        return vector_quantize

    from softvq.functional import soft_quantize, soft_quantize_attention

    engine = {"dense": soft_quantize, "attention": soft_quantize_attention}[case["engine"]]
    codebook = torch.randn(case["k"], case["dim"], device=device, requires_grad=True)
    # Random vectors of unit variance lie 2 D apart: this T leaves a few codes per token.
    temperature = torch.tensor(0.1 * case["dim"], device=device)

    def soft(z: torch.Tensor) -> None:
        codebook.grad = None
        code = engine(z, codebook, temperature)
        losses = code.loss_ols.mean() + code.variance.mean() + 0.02 * code.usage_kl
        (code.quantized.square().mean() + losses).backward()

    return soft


def reset_peak(device: Any) -> float:
    """Bytes in use now; later peaks count from here."""
    import torch

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return process_memory("VmRSS")
    except OSError:
        return peak(device)


def peak(device: Any) -> float:
    """Most bytes in use so far."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if Path("/proc/self/status").exists():
        return process_memory("VmHWM")
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def process_memory(field: str, path: str = "/proc/self/status") -> float:
    """A line of a status file, in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(path).read_text())
    return 1024 * float(found[1]) if found else float("nan")


def available_memory() -> float:
    """Bytes that can be had without swapping; 4 GiB where the system does not say."""
    path = "/proc/meminfo"
    return process_memory("MemAvailable", path) if Path(path).exists() else 2.0**32


def machine(args: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on."""
    from importlib.metadata import version

    peer = "vector-quantize-pytorch"
    return {
        "python": platform.python_version(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": args.threads,
        "device": args.device,
        "torch": version("torch"),
        peer: version(peer) if importlib.util.find_spec("vector_quantize_pytorch") else None,
    }


def table(rows: list[Case]) -> str:
    """Markdown, one table per series; ratios are to the other engines at the same N and K."""
    lines = []
    for series in dict.fromkeys(row["series"] for row in rows):
        lines += [
            f"\n{series}\n",
            "| N | K | engine | ms | CPU ms | extra MiB | time / dense | time / VectorQuantize "
            "| memory / VectorQuantize |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for row in (row for row in rows if row["series"] == series):
            cells = [f"{row['n']:,}", f"{row['k']:,}", row["engine"]]
            if "left_out" in row:
                cells += [row["left_out"]] + 5 * [""]
            else:
                cells += [f"{1e3 * row[key]:,.0f}" for key in ("seconds", "cpu_seconds")]
                clock = clock_of(row)
                cells += [f"{row['extra_mib']:,.0f}", ratio(row, rows, "dense", clock)]
                cells += [ratio(row, rows, "VectorQuantize", key) for key in (clock, "extra_mib")]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def clock_of(row: Case) -> str:
    """The time that ratios and plots show."""
    return "cpu_seconds" if row["device"] == "cpu" else "seconds"


def ratio(row: Case, rows: list[Case], engine: str, key: str) -> str:
    """A figure over that of another engine in the same place, or nothing."""
    for other in rows:
        same = all(other[name] == row[name] for name in ("series", "n", "k"))
        if same and other["engine"] == engine and key in other:
            return f"{row[key] / other[key]:.2f}"
    return ""


def plot(rows: list[Case], path: Path) -> None:
    """Time and memory over K and over N, in one picture."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    clock = clock_of(rows[0])
    panels = [("main", "k"), ("growth in K", "k"), ("growth in N", "n")]
    figure = Figure(figsize=(12, 6.5), layout="constrained")
    axes = figure.subplots(2, len(panels))
    for column, (series, size) in enumerate(panels):
        for line, (key, label) in enumerate([(clock, "seconds"), ("extra_mib", "extra MiB")]):
            axis = axes[line, column]
            shown = [row for row in rows if row["series"] == series and key in row]
            for engine in dict.fromkeys(row["engine"] for row in shown):
                points = [(row[size], row[key]) for row in shown if row["engine"] == engine]
                axis.loglog(*zip(*points, strict=True), marker="o", label=engine)
            fixed = "n" if size == "k" else "k"
            held = ", ".join(f"{fixed.upper()} = {v:,}" for v in sorted({r[fixed] for r in shown}))
            axis.set(title=held, xlabel=size.upper(), ylabel=label)
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.grid(alpha=0.3)
    axes[0, 0].legend()
    figure.savefig(path, format="png", dpi=120)


if __name__ == "__main__":
    main()
