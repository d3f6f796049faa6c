"""CodebookStack: residuals, prefixes, gradients per level, masks, dropout, state."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from softvq import (
    Codebook,
    CodebookStack,
    ConstantTemperature,
    DDCLCodebook,
    DDCLEMCodebook,
    Schedule,
    VQCodebook,
    VQEMACodebook,
    two_timescale_groups,
)

DIM = 4
KINDS = [DDCLCodebook, DDCLEMCodebook, VQCodebook, VQEMACodebook]


def stack_of(*kinds, pools=None, size=9, shape=(8, 8, 8), **options):
    torch.manual_seed(0)
    stack = CodebookStack([kind(DIM, size) for kind in kinds], pools, **options)
    stack.initialize(in_layout(torch.randn(*shape, DIM), stack))
    return stack


def in_layout(z, stack):
    return z.movedim(-1, 1) if stack.channel_first else z


def as_list(indices):
    return list(indices.unbind(-1)) if isinstance(indices, torch.Tensor) else indices


def state_bytes(module):
    return {name: value.numpy().tobytes() for name, value in module.state_dict().items()}


def assert_equal(first, second):
    assert torch.equal(first.quantized, second.quantized)
    assert torch.equal(first.loss, second.loss)
    pairs = zip(as_list(first.indices), as_list(second.indices), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


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
    stack = CodebookStack([DDCLCodebook(2, 3) for _ in pools], pools).double()
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


def test_forward_is_pure_deterministic_and_can_be_recomputed():
    stack = stack_of(DDCLCodebook, VQCodebook, pools=[2, 1])
    before, z = state_bytes(stack), torch.randn(2, 8, 8, DIM)
    out = stack(z)
    assert_equal(out, stack(z))
    assert_equal(out, stack.eval()(z))
    assert state_bytes(stack) == before
    encoder, grads = nn.Linear(DIM, DIM), []
    for again in (False, True):
        encoder.zero_grad()
        part = lambda x: stack(encoder(x))  # noqa: E731
        out = checkpoint(part, z, use_reentrant=False) if again else part(z)
        (out.quantized.square().mean() + out.loss).backward()
        grads.append(encoder.weight.grad.clone())
    assert torch.equal(*grads)


def test_graphs_hold_the_whole_stack():
    stack = stack_of(DDCLCodebook, VQCodebook, pools=[3, 1])
    z, mask = torch.randn(2, 7, 8, DIM), torch.rand(2, 7, 8) > 0.3
    expected = stack(z, mask)
    torch._dynamo.reset()
    assert_equal(torch.compile(stack, fullgraph=True, backend="eager")(z, mask), expected)
    assert_equal(torch.export.export(stack, (z, mask)).module()(z, mask), expected)
    dropping = stack_of(DDCLCodebook, VQCodebook, level_dropout=0.5)
    compiled = torch.compile(dropping, fullgraph=True, backend="eager")
    alive = (compiled(torch.randn(200, 3, DIM)).indices >= 0).float().mean(dim=(0, 1))
    assert alive[0] == 1
    assert 0.3 < alive[1] < 0.7


def test_every_level_moves_its_state_and_parts_count_like_the_whole():
    stack = stack_of(DDCLCodebook, VQEMACodebook, pools=[2, 1])
    whole, parts = copy.deepcopy(stack), copy.deepcopy(stack)
    z = torch.randn(4, 8, 8, DIM)
    whole.after_step(whole(z))
    parts.after_step(parts(z[:1]), parts(z[1:]))
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert [int(level.steps) for level in whole.levels] == [1, 1]
    assert state_bytes(whole) != state_bytes(stack)
    with pytest.raises(TypeError, match="after_step"):
        stack.after_step()


def test_initialization_is_k_means_of_what_the_levels_before_leave():
    # Two levels of exact structure: 4 far centres, each with the same 4 small offsets.
    torch.manual_seed(0)
    centres, offsets = 10 * torch.randn(4, DIM), 0.3 * torch.randn(4, DIM)
    z = centres[torch.randint(4, (32, 32))] + offsets[torch.randint(4, (32, 32))]
    cold = ConstantTemperature(Schedule(1e-3))
    stack = CodebookStack([DDCLCodebook(DIM, 4, temperature=cold) for _ in range(2)])
    stack.initialize([z[:16], z[16:]])
    assert F.mse_loss(stack.decode(stack.encode(z)), z) < 1e-3
    with pytest.raises(ValueError, match=r"level 1, pooled by 8: .*latents"):
        stack_of(VQCodebook, VQCodebook, pools=[8, 1], size=9, shape=(2, 8, 8))


def test_dropped_levels_leave_a_prefix_and_do_not_see_the_item():
    stack = stack_of(VQEMACodebook, VQEMACodebook, VQEMACodebook, level_dropout=1.0)
    z = torch.randn(64, 4, 4, DIM)
    out = stack(z)
    alive = (out.indices >= 0).flatten(1, 2)  # (B, 16, L)
    assert torch.equal(alive.all(dim=1), alive.any(dim=1))
    lengths = alive.all(dim=1).sum(dim=1)
    assert set(lengths.tolist()) == {1, 2}
    torch.testing.assert_close(out.quantized, stack.decode(out.indices))
    assert len(out.levels[1].latents) == 64 * 16
    assert (out.levels[1].indices >= 0).sum() == 16 * (lengths == 2).sum()
    assert out.levels[2].loss == 0
    stack.eval()
    assert (stack(z).indices >= 0).all()
    stack.train()
    assert (stack.encode(z) >= 0).all()
    half = stack_of(VQCodebook, VQCodebook, level_dropout=0.5)
    kept = (half(torch.randn(400, 1, DIM)).indices[..., 1] >= 0).float().mean()
    assert 0.4 < kept < 0.6


def test_frozen_levels_keep_their_bytes():
    stack = stack_of(DDCLCodebook, VQEMACodebook)
    stack.freeze()
    before = [level.codebook.detach().clone() for level in stack.levels]
    assert not list(two_timescale_groups(nn.ModuleList([nn.Linear(2, 2), stack]), 0.1))[1:]
    stack.after_step(stack(torch.randn(4, 4, DIM)))
    for level, old in zip(stack.levels, before, strict=True):
        assert torch.equal(level.codebook, old)


@pytest.mark.parametrize("name", ["stack", "stack.safetensors"])
def test_a_stack_travels_through_a_file(tmp_path, name):
    stack = stack_of(DDCLCodebook, VQEMACodebook, pools=[2, 1], channel_first=True)
    stack.save_pretrained(tmp_path / name)
    other = CodebookStack.from_pretrained(tmp_path / name)
    z = torch.randn(2, DIM, 8, 8)
    assert_equal(other(z), stack.eval()(z))
    assert state_bytes(other) == state_bytes(stack)
    with pytest.raises(TypeError, match="CodebookStack, not a DDCLCodebook"):
        DDCLCodebook.from_pretrained(tmp_path / name)
    VQCodebook(2, 3).save_pretrained(tmp_path / "one")
    with pytest.raises(TypeError, match="VQCodebook, not a CodebookStack"):
        CodebookStack.from_pretrained(tmp_path / "one")


def test_a_mixed_stack_keeps_its_digits_in_a_file(tmp_path):
    stack = stack_of(VQCodebook, VQCodebook)
    stack.levels[0].to(torch.bfloat16)
    stack.save_pretrained(tmp_path / "mixed")
    other = CodebookStack.from_pretrained(tmp_path / "mixed")
    assert [level.codebook.dtype for level in other.levels] == [torch.bfloat16, torch.float32]
    for mine, theirs in zip(stack.levels, other.levels, strict=True):
        assert torch.equal(mine.codebook, theirs.codebook)


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


def test_codebooks_of_a_stack_are_found_by_the_optimiser_s_groups():
    stack = stack_of(DDCLCodebook, VQCodebook)
    groups = two_timescale_groups(nn.ModuleList([nn.Linear(2, 2), stack]), 0.1, 0.5)
    assert [len(group["params"]) for group in groups] == [2, 2]
    assert all(isinstance(level, Codebook) for level in stack.levels)


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


def test_wrong_calls_are_refused():
    flat, pyramid = stack_of(VQCodebook, VQCodebook), stack_of(VQCodebook, VQCodebook, pools=[2, 1])
    with pytest.raises(ValueError, match="at least 3 axes"):
        pyramid(torch.randn(5, DIM))
    with pytest.raises(ValueError, match="D = dim = 4"):
        flat(torch.randn(5, 3))
    with pytest.raises(TypeError, match="floating point"):
        flat(torch.zeros(5, DIM, dtype=torch.int64))
    with pytest.raises(TypeError, match="mask must be bool"):
        flat(torch.randn(5, DIM), torch.ones(5))
    with pytest.raises(ValueError, match="mask must be bool"):
        flat(torch.randn(5, DIM), torch.ones(4, dtype=torch.bool))
    with pytest.raises(ValueError, match="give a list"):
        pyramid.decode(torch.zeros(2, 4, 4, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="1 to 2 levels"):
        flat.decode(torch.zeros(2, 4, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="1 to 2 levels"):
        pyramid.decode([])
    with pytest.raises(ValueError, match="grid of shape"):
        pyramid.decode([torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, 9, dtype=torch.int64)])
    with pytest.raises(IndexError, match="indices must lie in"):
        flat.decode(torch.full((2, 4, 2), 9))
