"""Time and memory of readouts over the length of a document, one process per case.

DDCL, mean, Slot Attention and learned queries stand beside one layer of self-attention, which any
transformer below them has, fused and in linear memory. One document has T tokens. Times are CPU
seconds of one thread, which other jobs on the machine disturb least.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from itertools import product
from multiprocessing import get_context
from statistics import linear_regression
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch._dynamo  # Every optimiser loads it, so it is not the readout's.
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.codebooks import machine, timed
from softvq import ConstantTemperature, DDCLCodebook, DDCLReadout, Schedule, proportions

from .baselines import CrossAttentionReadout, MeanReadout, SlotAttentionReadout

LAYERS = ("mean", "ddcl", "ddcl-shares", "slots", "queries", "attention")
MODES = ("forward", "training")
DIM, SIZE, HEADS = 64, 16, 4
# Slopes are fitted from here on: below, the cost of a call hides that of its tokens.
LONG = 4096

Case = dict[str, Any]


def measure_all(lengths: tuple[int, ...], seconds: float) -> dict[str, Any]:
    """Measure every layer at every length, forward alone and with gradients.

    Args:
        lengths: Numbers of tokens of the document.
        seconds: Least time spent on a case.

    Returns:
        ``rows``, one for each case; the ``slopes`` of time and memory from 4,096 tokens on, and
        ``slopes_of_all_lengths``; the sizes, the machine and the minutes.
    """
    started = time.perf_counter()
    torch.set_num_threads(1)  # Also what makes a fork safe.
    # In evaluation torch would compute the (T, T) matrices of self-attention after all.
    torch.backends.mha.set_fastpath_enabled(False)
    cases = [
        {"layer": layer, "length": length, "mode": mode, "budget": seconds}
        for length, mode, layer in product(lengths, MODES, LAYERS)
    ]
    # A fork starts with all libraries loaded, and with memory of its own from then on.
    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        rows = list(tqdm(pool.imap(measure, cases), total=len(cases), disable=None))
    return {
        "machine": machine(Namespace(threads=1, device="cpu")),
        "dim": DIM,
        "size": SIZE,
        "heads": HEADS,
        "rows": rows,
        "slopes": slopes(rows),
        "slopes_of_all_lengths": slopes(rows, least=0),
        "minutes": (time.perf_counter() - started) / 60,
    }


def measure(case: Case) -> Case:
    """Return a case with its median seconds and CPU seconds, and peak MiB beyond the tokens."""
    torch.manual_seed(0)
    training = case["mode"] == "training"
    step = step_of(case["layer"], training)
    # Loads libraries; too small to leave memory behind that would be reused.
    step(torch.randn(1, 64, DIM, requires_grad=training))
    tokens = torch.randn(1, case["length"], DIM, requires_grad=training)
    return case | timed(step, tokens, case["budget"])


def step_of(layer: str, training: bool) -> Callable[[Tensor], object]:
    """Make one pass over (1, T, D) tokens: forward alone, without a graph, or with gradients."""
    module = module_of(layer).train(training)

    def scalar(tokens: Tensor) -> Tensor:
        if layer == "ddcl-shares":  # What a trained readout needs: no code, no loss.
            own = module.codebook
            return (proportions(own, tokens) @ own.codebook).square().mean()
        if layer == "attention":
            return module(tokens, tokens, tokens, need_weights=False)[0].square().mean()
        out = module(tokens)
        return out.pooled.square().mean() + out.loss

    def train(tokens: Tensor) -> None:
        module.zero_grad()
        scalar(tokens).backward()

    return train if training else torch.no_grad()(scalar)


def module_of(layer: str) -> Any:
    """Build a layer by its name, of the sizes above."""
    if layer == "mean":
        return MeanReadout(DIM)
    if layer == "slots":
        return SlotAttentionReadout(DIM, SIZE)
    if layer == "queries":
        return CrossAttentionReadout(DIM, SIZE, heads=HEADS)
    if layer == "attention":
        return nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    # Random vectors of unit variance lie 2 D apart: this T leaves a few codes per token.
    temperature = ConstantTemperature(Schedule(0.1 * DIM))
    return DDCLReadout(DDCLCodebook(DIM, SIZE, temperature=temperature, pull=0.0))


def slopes(rows: list[Case], least: int = LONG) -> dict[str, dict[str, float]]:
    """Fit log CPU time, and log memory, over log T by a line, from T = ``least`` on.

    Returns:
        By "layer mode" the two slopes: 1 means linear, 2 quadratic. What ran at fewer than three
        lengths is left out.
    """
    frame = pd.DataFrame(rows)
    frame = frame[(frame["length"] >= least) & (frame["extra_mib"] > 0)]
    return {
        f"{layer} {mode}": {
            key: linear_regression(np.log(own["length"]), np.log(own[key])).slope
            for key in ("cpu_seconds", "extra_mib")
        }
        for (layer, mode), own in frame.groupby(["layer", "mode"], sort=False)
        if len(own) >= 3
    }


def tables(result: dict[str, Any]) -> str:
    """Write tables of CPU ms, of MiB, and of slopes: a row for each layer and mode."""
    frame = pd.DataFrame(result["rows"])
    frame["CPU ms"] = 1e3 * frame["cpu_seconds"]
    frame["over length"] = frame["layer"] + " " + frame["mode"]
    found = {
        name: frame.pivot_table(name, "over length", "length", sort=False)
        for name in ("CPU ms", "extra_mib")
    }
    found["slopes"] = pd.DataFrame(result["slopes"]).T
    parts = (f"{name}\n\n{own.to_markdown(floatfmt='.2f')}" for name, own in found.items())
    return "\n\n".join(parts)
