"""CodebookStack: residuals, prefixes, gradients per level, masks, dropout, state."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_stacks import DIM, KINDS, as_list, assert_equal, in_layout, stack_of, state_bytes
from torch.nn import functional as F

from softvq import CodebookStack, DDCLCodebook, DDCLEMCodebook, VQCodebook, VQEMACodebook


@pytest.mark.parametrize("kind", KINDS)
def test_levels_without_pooling_are_residual_quantisation(kind):
    stack = stack_of(kind, kind, kind)
    z = torch.randn(2, 5, 5, DIM)
    quantized, indices, loss = stack(z)
    residual, total, losses = z, 0, []
    for level in stack.levels:
        out = level(residual)
        residual, total = residual - out.quantized, total + out.quantized
        losses.append(out.loss)
    torch.testing.assert_close(quantized, total)
    torch.testing.assert_close(loss, sum(losses))
    assert indices.shape == (2, 5, 5, 3)
    assert indices.dtype == torch.int64


def test_a_level_codes_the_block_means_of_what_is_left():
    stack = stack_of(DDCLCodebook, DDCLCodebook, pools=[4, 2], channel_first=True)
    z = torch.randn(2, DIM, 8, 8)
    out = stack(z)
    first = stack.levels[0](F.avg_pool2d(z, 4).movedim(1, -1))
    spread = first.quantized.movedim(-1, 1).repeat_interleave(4, 2).repeat_interleave(4, 3)
    second = stack.levels[1](F.avg_pool2d(z - spread, 2).movedim(1, -1))
    fine = second.quantized.movedim(-1, 1).repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(out.quantized, spread + fine)
    assert [tuple(indices.shape) for indices in out.indices] == [(2, 2, 2), (2, 4, 4)]
    torch.testing.assert_close(out.levels[1].losses["loss_q"], second.losses["loss_q"])
    # One figure for all levels: sums of losses, and the largest number of codes.
    for name in ("loss_q", "usage_kl"):
        expected = first.losses[name] + second.losses[name]
        torch.testing.assert_close(out.losses[name], expected)
    assert out.codes_per_token == max(level.codes_per_token for level in out.levels)
    assert [len(level.usage) for level in out.levels] == [9, 9]


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    pools=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    kind=st.sampled_from(KINDS),
    channel_first=st.booleans(),
    masked=st.booleans(),
)
def test_round_trip_of_any_grid(shape, pools, kind, channel_first, masked):
    pools[-1] = 1
    torch.manual_seed(0)
    stack = CodebookStack([kind(DIM, 5) for _ in pools], pools, channel_first=channel_first)
    z = in_layout(torch.randn(2, *shape, DIM), stack)
    mask = torch.rand(2, *shape) > 0.4 if masked else None
    hard = stack(z, mask, hard=True)
    indices = stack.encode(z, mask)
    pairs = zip(as_list(indices), as_list(hard.indices), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    decoded = stack.decode(indices)
    if masked:  # A block's code reaches its padding too, which forward leaves out.
        kept = in_layout(mask[..., None].expand(2, *shape, DIM), stack)
        decoded = torch.where(kept, decoded, 0.0)
    torch.testing.assert_close(decoded, hard.quantized)
    assert decoded.shape == z.shape


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pools", [[1, 1, 1], [4, 2, 1]])
def test_each_level_of_the_tokens_comes_closer(kind, pools):
    stack = stack_of(kind, kind, kind, pools=pools, size=32, shape=(16, 8, 8))
    z = torch.randn(16, 8, 8, DIM)
    indices = as_list(stack.encode(z))
    errors = [
        F.mse_loss(stack.decode(prefix(indices[:n], pools), (8, 8)), z).item() for n in (1, 2, 3)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.6 * errors[0]


def prefix(parts, pools):
    return torch.stack(parts, dim=-1) if max(pools) == 1 else parts


def test_tokens_correct_the_level_before():
    stack = stack_of(DDCLCodebook, DDCLCodebook, size=32, shape=(16, 8, 8))
    for level in stack.levels:
        level.temperature.mul_(20)  # far from hard, so that soft residuals mislead
    z = torch.randn(16, 8, 8, DIM)
    own = F.mse_loss(stack.decode(stack.encode(z)), z)
    of_soft = F.mse_loss(stack.decode(stack(z).indices), z)
    assert own < 0.9 * of_soft


@pytest.mark.parametrize("pools", [[1, 1, 1], [4, 2, 1]])
def test_soft_gradients_reach_every_level_and_the_latents_exactly(pools):
    stack = CodebookStack([DDCLCodebook(2, 3, noise=0.0) for _ in pools], pools).double()
    z = torch.randn(1, 4, 4, 2, dtype=torch.float64, requires_grad=True)
    parameters = tuple(stack.parameters())
    assert len(parameters) == 3

    def run(z, *_):
        out = stack(z)
        return out.quantized, out.loss

    assert torch.autograd.gradcheck(run, (z, *parameters))
    out = stack(z)
    grads = torch.autograd.grad(out.quantized.square().sum(), (z, *parameters), retain_graph=True)
    assert all(grad.abs().max() > 1e-6 for grad in grads)
    # What the last level codes depends on the first level's prototypes.
    (through,) = torch.autograd.grad(out.levels[-1].loss, parameters[0])
    assert through.abs().max() > 1e-9


@pytest.mark.parametrize("kind", [DDCLEMCodebook, VQCodebook, VQEMACodebook])
@pytest.mark.parametrize("pools", [[1, 1, 1], [4, 2, 1]])
def test_straight_through_passes_the_decoder_s_gradient_once(kind, pools):
    stack = stack_of(kind, kind, kind, pools=pools)
    z = torch.randn(2, 8, 8, DIM, requires_grad=True)
    out = stack(z)
    weights = torch.randn_like(z)
    (gradient,) = torch.autograd.grad((out.quantized * weights).sum(), z, retain_graph=True)
    torch.testing.assert_close(gradient, weights)
    for level in out.levels:
        (gradient,) = torch.autograd.grad(level.loss, z, retain_graph=True)
        assert gradient.abs().max() > 1e-6


def test_a_coarse_stack_passes_the_gradient_of_the_block_means():
    stack = stack_of(VQCodebook, pools=[2])
    z = torch.randn(1, 4, 4, DIM, requires_grad=True)
    (gradient,) = torch.autograd.grad(stack(z).quantized[0, 0, 0].sum(), z)
    assert torch.equal(gradient[0, :2, :2], torch.full((2, 2, DIM), 0.25))
    assert gradient.sum() == DIM


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", [math.nan, math.inf, 1e30])
def test_what_padding_holds_changes_nothing(kind, padding):
    mask = torch.rand(3, 10, generator=torch.Generator().manual_seed(0)) > 0.4
    mask[0, :4] = False
    runs = []
    for fill in (0.0, padding):
        stack = stack_of(kind, kind, pools=[4, 1], shape=(8, 20))
        torch.manual_seed(1)
        z = torch.where(mask[..., None], torch.randn(3, 10, DIM), fill).requires_grad_()
        out = stack(z, mask)
        (out.quantized.square().sum() + out.loss).backward()
        stack.after_step(out)
        runs.append((out, z.grad, state_bytes(stack)))
    assert_equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])
    assert runs[0][2] == runs[1][2]
    out = runs[1][0]
    assert torch.equal(out.indices[1] >= 0, mask)
    assert out.indices[0][0, 0] == -1
    assert out.quantized[~mask].count_nonzero() == 0
    assert runs[1][1][~mask].count_nonzero() == 0


def test_a_single_vector_goes_round():
    stack = stack_of(VQCodebook, VQCodebook)
    z = torch.randn(DIM)
    assert torch.equal(stack.decode(stack.encode(z)), stack(z, hard=True).quantized.detach())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(dtype):
    stack = stack_of(DDCLCodebook, VQCodebook, pools=[2, 1])
    z = torch.randn(2, 5, DIM).to(dtype)
    out = stack(z)
    assert out.quantized.dtype == dtype
    again = stack(z.double())
    assert torch.equal(out.indices[0], again.indices[0])


@pytest.mark.parametrize(
    ("levels", "options", "words"),
    [
        ([], {}, "at least one level"),
        ([(4, 3)], {"pools": [1, 1]}, "1 levels and pools"),
        ([(4, 3)], {"pools": [0]}, "at least 1"),
        ([(4, 3), (5, 3)], {}, "same dim"),
        ([(4, 3)], {"level_dropout": 1.5}, "level_dropout"),
    ],
)
def test_wrong_constructions_are_refused(levels, options, words):
    with pytest.raises(ValueError, match=words):
        CodebookStack([VQCodebook(*sizes) for sizes in levels], **options)
    with pytest.raises(ValueError, match="channel_first"):
        CodebookStack([VQCodebook(4, 3, channel_first=True)])
    with pytest.raises(ValueError, match="one of them twice"):
        CodebookStack([VQCodebook(4, 3)] * 2)


def zeros(*shape, value=0):
    return torch.full(shape, value, dtype=torch.int64)


@pytest.mark.parametrize(
    ("kind", "message", "call"),
    [
        (ValueError, "at least 3 axes", lambda _, pyramid: pyramid(torch.randn(5, DIM))),
        (ValueError, "D = dim = 4", lambda flat, _: flat(torch.randn(5, 3))),
        (TypeError, "floating-point", lambda flat, _: flat(zeros(5, DIM))),
        (
            TypeError,
            "mask must be a bool tensor",
            lambda flat, _: flat(torch.randn(5, DIM), torch.ones(5)),
        ),
        (ValueError, "mask must", lambda flat, _: flat(torch.randn(5, DIM), zeros(4) == 0)),
        (ValueError, "give a list", lambda _, pyramid: pyramid.decode(zeros(2, 4, 4, 2))),
        (ValueError, "1 to 2 levels", lambda flat, _: flat.decode(zeros(2, 4, 3))),
        (ValueError, "1 to 2 levels", lambda _, pyramid: pyramid.decode([])),
        (ValueError, "grid of", lambda _, pyramid: pyramid.decode([zeros(2, 2), zeros(2, 9)])),
        (IndexError, "indices must lie in", lambda flat, _: flat.decode(zeros(2, 4, 2, value=9))),
    ],
)
def test_wrong_calls_are_refused(kind, message, call):
    stacks = [stack_of(VQCodebook, VQCodebook, pools=pools) for pools in ([1, 1], [2, 1])]
    with pytest.raises(kind, match=message):
        call(*stacks)
