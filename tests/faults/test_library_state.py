"""What the library refuses before any state has moved, and what freezing holds."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from softvq import (
    CodebookStack,
    CodesPerToken,
    ConstantTemperature,
    DDCLCodebook,
    DDCLEMCodebook,
    DocumentCompressor,
    ProductCodebook,
    Schedule,
    UtilizationTracker,
    VQCodebook,
    VQEMACodebook,
    kmeans,
)

KINDS = (DDCLCodebook, DDCLEMCodebook, VQCodebook, VQEMACodebook)


def state_of(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def assert_unmoved(module, before):
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("size", [1e20, -1e30, 3e38])
@pytest.mark.parametrize("kind", KINDS)
def test_latents_whose_squares_overflow_move_nothing(kind, size):
    for whole in (kind(4, 8), CodebookStack([VQEMACodebook(4, 8), kind(4, 8)]),
                  ProductCodebook([kind(2, 8), kind(2, 8)])):  # fmt: skip
        z = torch.randn(32, 4)
        z[5, 3] = size
        before = state_of(whole)
        out = whole(z)
        with pytest.raises(FloatingPointError, match="lower the learning rate"):
            whole.after_step(out)
        assert_unmoved(whole, before)
        whole.after_step(whole(torch.randn(32, 4)))  # and it goes on
        assert all(value.isfinite().all() for value in whole.state_dict().values())


@pytest.mark.parametrize("other", [(4, 9), (5, 8), (3, 7)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_output_of_another_codebook_moves_nothing(kind, other):
    own, before = kind(4, 8), None
    before = state_of(own)
    with pytest.raises(ValueError, match=rf"D = 4 and K = 8, .* D = {other[0]} and K = {other[1]}"):
        own.after_step(kind(*other)(torch.randn(6, other[0])))
    assert_unmoved(own, before)


def test_the_output_of_another_stack_moves_no_level():
    stack = CodebookStack([VQEMACodebook(4, 8), VQEMACodebook(4, 9)])
    before = state_of(stack)
    for other in (CodebookStack([VQEMACodebook(4, 8), VQEMACodebook(4, 7)]),
                  CodebookStack([VQEMACodebook(4, 8)])):  # fmt: skip
        with pytest.raises(ValueError, match="after_step needs"):
            stack.after_step(other(torch.randn(30, 4)))
        assert_unmoved(stack, before)


@pytest.mark.parametrize("kind", [DDCLCodebook, VQCodebook])
@pytest.mark.parametrize("whole", [False, True])
def test_an_optimizer_with_momentum_does_not_move_frozen_prototypes(kind, whole):
    torch.manual_seed(0)
    codebook = kind(4, 8)
    module = CodebookStack([codebook, kind(4, 8)]) if whole else codebook
    encoder = nn.Linear(4, 4)
    optimizer = torch.optim.Adam([*encoder.parameters(), *module.parameters()], lr=0.1)
    for step in range(10):
        if step == 5:
            module.freeze()
            before = state_of(module)
        out = module(encoder(torch.randn(30, 4)))
        optimizer.zero_grad(set_to_none=False)
        (out.quantized.square().mean() + out.loss).backward()
        optimizer.step()
    assert_unmoved(module, before)


REFUSED = [
    (lambda: CodebookStack([VQCodebook(2, 3)] * 1, level_dropout=1.0), ValueError, r"\[0, 1\)"),
    (lambda: CodebookStack([VQCodebook(2, 3)], pools=[1.5]), ValueError, "whole pooling factor"),
    (lambda: DDCLCodebook(2, 3, commitment=math.nan), ValueError, "commitment .* finite, got nan"),
    (lambda: DDCLEMCodebook(2, 3, usage_weight=math.inf), ValueError, "usage_weight .* got inf"),
    (lambda: VQCodebook(2, 3, commitment=math.nan), ValueError, "commitment .* got nan"),
    (lambda: VQEMACodebook(2, 3, commitment=math.inf), ValueError, "commitment .* got inf"),
    (lambda: Schedule(math.inf), ValueError, "positive and finite"),
    (lambda: Schedule(1.0, math.nan), ValueError, "positive and finite"),
    (lambda: Schedule(1.0, 0.0), ValueError, "positive and finite"),
    (lambda: CodesPerToken(Schedule(2.0, math.inf)), ValueError, "positive and finite"),
    (lambda: ConstantTemperature(Schedule(-math.inf)), ValueError, "positive and finite"),
    (lambda: DocumentCompressor([DDCLCodebook(2, 3)] * 2, [2]), ValueError, "codebook of its own"),
    (lambda: kmeans(torch.randn(9, 2), 3, iterations=-1), ValueError, "iterations must be at l"),
    (lambda: VQCodebook(2, 9).initialize(torch.randn(9, 2), iterations=-1), ValueError, "iterat"),
    (lambda: VQCodebook(True, 8), TypeError, "dim must be a whole number, got True"),
    (lambda: VQCodebook(4, False), TypeError, "codebook_size must be a whole number"),
    (lambda: VQCodebook(4.0, 8), TypeError, "dim must be a whole number, got 4.0"),
    (lambda: VQCodebook(2, 3).decode(torch.full((2,), 2**63, dtype=torch.uint64)), TypeError,
     "got torch.uint64"),
    (lambda: VQCodebook(2, 3).decode(np.zeros(3, np.int64)), TypeError, "got a ndarray"),
    (lambda: VQCodebook(2, 3).decode([0, 1]), TypeError, "got a list"),
    (lambda: VQCodebook(2, 3)(np.zeros((3, 2))), TypeError, "got a ndarray"),
    (lambda: DDCLCodebook(2, 3)([[0.0, 1.0]]), TypeError, "got a list"),
    (lambda: DDCLCodebook(2, 3)(None), TypeError, "got a NoneType"),
    (lambda: CodebookStack([VQCodebook(2, 3)])(None), TypeError, "got a NoneType"),
    (lambda: ProductCodebook([VQCodebook(2, 3)])(None), TypeError, "got a NoneType"),
    (lambda: VQCodebook(2, 3)(torch.randn(3, 2), mask=[True] * 3), TypeError, "got a list"),
    (lambda: UtilizationTracker(4).update(np.zeros(3, np.int64)), TypeError, "got a ndarray"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_what_cannot_work_is_refused_with_what_was_given(call, error, message):
    with pytest.raises(error, match=message):
        call()
