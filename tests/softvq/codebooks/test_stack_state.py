"""CodebookStack: what moves its state, and what leaves it alone."""

import copy

import pytest
import torch
from small_stacks import DIM, assert_equal, stack_of, state_bytes
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from softvq import (
    CodebookStack,
    ConstantTemperature,
    DDCLCodebook,
    Schedule,
    VQCodebook,
    VQEMACodebook,
    two_timescale_groups,
)


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
    assert_equal(torch.export.export(stack, (z, mask)).module()(z, mask), expected)
    torch._dynamo.reset()
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
    stack = stack_of(VQEMACodebook, VQEMACodebook, VQEMACodebook, level_dropout=1 - 1e-9)
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


def test_frozen_levels_keep_their_bytes_and_are_in_no_group():
    stack = stack_of(DDCLCodebook, VQCodebook, VQEMACodebook)
    model = nn.ModuleList([nn.Linear(2, 2), stack])
    assert [len(group["params"]) for group in two_timescale_groups(model, 0.1, 0.5)] == [2, 2]
    stack.freeze()
    before = state_bytes(stack)
    assert not list(two_timescale_groups(model, 0.1))[1:]
    stack.after_step(stack(torch.randn(4, 4, DIM)))
    assert state_bytes(stack) == before


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
