"""softvq passes every check, and docs/conformance.md says what the others do."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from adapters import OURS, Ours, UnavailableError
from peers import PACKAGE, PEERS
from registry import CHECKS
from table import outcome, versions

from softvq import VQCodebook

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "conformance.md").read_text("utf-8")


def recorded():
    """Marks of the page by column and row."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("|")]
    names, _, *rows = lines
    return {
        name: {row[0]: row[column] for row in rows} for column, name in enumerate(names, start=1)
    }


def rows(*slow):
    """All checks, those of graphs of some kinds marked as slow."""
    marks = {row: [pytest.mark.slow] * any(kind in row for kind in slow) for row in CHECKS}
    return pytest.mark.parametrize("row", [pytest.param(row, marks=marks[row]) for row in CHECKS])


def named(adapters):
    return pytest.mark.parametrize("adapter", adapters, ids=lambda adapter: adapter.name)


@rows("ONNX")
@named(OURS)
def test_softvq_passes(row, adapter):
    try:
        CHECKS[row](adapter)
    except UnavailableError as error:
        pytest.skip(str(error))


def test_the_page_has_every_check_and_says_that_softvq_passes_them_all():
    table = recorded()
    for adapter in OURS:
        assert table[adapter.name] == dict.fromkeys(CHECKS, "yes")


@pytest.mark.skipif(not PEERS, reason=f"{PACKAGE} is not installed")
@rows("ONNX", "torch.")
@named(PEERS)
def test_the_page_says_what_this_run_finds(row, adapter):
    try:
        installed = versions()
    except PackageNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    if f"with {installed}." not in PAGE:
        pytest.skip(f"docs/conformance.md is of other versions than {installed}")
    assert outcome(row, adapter)[0] == recorded()[adapter.name][row]


class Broken(Ours):
    """A codebook with one fault: a method of the adapter is replaced."""

    def __init__(self, **faults):
        super().__init__(VQCodebook)
        vars(self).update(faults)

    def kmeans(self, latents):
        pass


def result(**changes):
    """A fault of the call: its codes, indices or loss changed, given the module in train mode."""

    def quantize(module, z, mask=None):
        parts = zip(("quantized", "indices", "loss"), module(z, mask), strict=True)
        return tuple(changes.get(name, lambda x, _: x)(x, module) for name, x in parts)

    return {"quantize": quantize}


def given(change):
    """A fault of the call: it sees other latents."""
    return {"quantize": lambda module, z, mask=None: module(change(z), mask)}


def stepping(module, z, mask=None):
    module.after_step(module(z, mask))
    return module(z, mask)


def remembering(module, z, mask=None):
    quantized, indices, loss = module(z, mask)
    vars(module)["calls"] = vars(module).get("calls", 0) + 1
    return quantized, indices, loss * module.calls


def unmasked(module, z, mask=None):
    return module(z)


def half(z):
    return z.bfloat16().to(z.dtype)


FAULTS = [
    (result(loss=lambda x, _: x[None]), ["`quantized"]),
    (result(indices=lambda x, _: x.flip(0)), ["layout"]),
    (result(quantized=lambda x, _: x.double()), ["dtype float16", "dtype bfloat16"]),
    (result(quantized=lambda x, _: x.float()), ["dtype float64"]),
    (result(loss=lambda x, _: x / 0), ["an empty batch"]),
    (result(loss=lambda x, module: x * module.training), ["the loss in eval mode"]),
    (result(loss=lambda x, _: x * torch.rand(())), ["training is deterministic"]),
    (result(quantized=lambda x, _: x.detach()), ["gradients reach", "frozen prototypes"]),
    (given(lambda z: z[..., :4]), ["a wrong vector size"]),
    (given(half), ["the nearest code"]),
    (given(lambda z: z if z.sum() > 0 else -z), ["torch.compile", "torch.export"]),
    (given(lambda z: z @ torch.eye(4).to(z.dtype)), ["CPU autocast"]),
    ({"quantize": unmasked}, ["padding"]),
    ({"quantize": stepping}, ["forward in train mode", "activation checkpointing", "gradient acc"]),
    ({"quantize": remembering}, ["training goes on to the bit after a strict"]),
    ({"decode": lambda module, indices: module.codebook[indices]}, ["decoding an index"]),
    ({"decode": lambda module, indices: module.decode(indices) + 1}, ["decoded indices"]),
    ({"freeze": lambda module: None}, ["frozen prototypes"]),
    ({"smooth": lambda module: lambda z: module(z).quantized}, ["gradcheck"]),
    ({}, ["k-means"]),
    ({"counts": lambda module, batches: torch.ones(9, dtype=torch.int64)}, ["codes are counted"]),
]
# Copies that go on otherwise, and exported graphs with other indices, need a fault of Python's or
# of a third party's; the comparisons are those of the rows around them.
UNBROKEN = {"deepcopy", "pickle", "ONNX"}


@pytest.mark.parametrize(("faults", "starts"), FAULTS, ids=[starts[0] for _, starts in FAULTS])
def test_a_broken_codebook_fails(faults, starts):
    for row in CHECKS:
        if row.startswith(tuple(starts)):
            assert outcome(row, Broken(**faults))[0] == "no", row


def test_every_check_can_fail():
    starts = tuple(start for _, starts in FAULTS for start in starts)
    left = [row for row in CHECKS if not row.startswith(starts)]
    assert all(any(word in row for word in UNBROKEN) for row in left), left
