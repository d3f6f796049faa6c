"""The contract of every codebook in training, beyond the checks: purity, graphs, freezing."""

import copy
import math

import pytest
import torch
from small_codebooks import DIM, SIZE, assert_same, latents, state_bytes, to_layout, vectors_of
from torch import fx, nn

from softvq import UtilizationTracker, two_timescale_groups


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_forward_changes_no_state_and_is_deterministic(codebook, train, grad):
    codebook.train(train)
    before, generator = state_bytes(codebook), torch.random.get_rng_state()
    z = latents(codebook, 2, 30)
    with torch.set_grad_enabled(grad):
        outs = [codebook(z, hard=False) for _ in range(3)]
        codebook(z, hard=True)
        codebook.encode(z)
    assert state_bytes(codebook) == before
    assert torch.equal(torch.random.get_rng_state(), generator)
    assert_same(outs[0], outs[1])
    assert_same(outs[0], outs[2])
    # A validation loss is a loss.
    assert outs[0].loss > 1e-4
    assert torch.equal(outs[0].loss, codebook.train(not train)(z, hard=False).loss)
    codebook.after_step(outs[0])
    assert state_bytes(codebook) != before
    assert not any(buffer.requires_grad for buffer in codebook.buffers())


def test_parts_of_a_batch_of_unequal_token_counts_count_like_the_whole(codebook):
    whole, parts = copy.deepcopy(codebook), copy.deepcopy(codebook)
    z, mask = latents(codebook, 6, 20), torch.rand(6, 20) > 0.5
    tracker, in_parts = UtilizationTracker(SIZE), UtilizationTracker(SIZE)
    out = whole(z, mask)
    whole.after_step(out)
    tracker.update(out.indices)
    outs = [parts(z[rows], mask[rows]) for rows in ([0], [1, 2], [3, 4, 5])]
    parts.after_step(*outs)
    for part in outs:
        in_parts.update(part.indices)
    assert torch.equal(tracker.counts, in_parts.counts)
    assert tracker.counts.sum() == mask.sum()
    assert parts.steps == 1
    torch.testing.assert_close(parts.state_dict(), whole.state_dict(), rtol=1e-5, atol=1e-6)


def test_after_step_with_something_else_is_refused(codebook):
    out = codebook(latents(codebook, 2, 30))
    before = state_bytes(codebook)
    for wrong, name in ((out.loss, "Tensor"), (tuple(out)[:3], "tuple"), (None, "NoneType")):
        with pytest.raises(TypeError, match=rf"out = codebook\(z\): got a {name}"):
            codebook.after_step(wrong)
    with pytest.raises(TypeError, match=r"what forward returned: after_step\(out\)"):
        codebook.after_step()
    assert state_bytes(codebook) == before


def test_a_size_that_is_no_whole_number_is_refused(codebook):
    with pytest.raises(TypeError, match=r"dim must be a whole number, got 8\.0"):
        type(codebook)(8.0, 16)
    with pytest.raises(TypeError, match="codebook_size must be a whole number, got '16'"):
        type(codebook)(8, "16")


def test_graphs_hold_the_whole_forward(codebook):
    arguments = (latents(codebook, 2, 6), torch.rand(2, 6) > 0.3)
    expected = codebook(*arguments)
    torch._dynamo.reset()
    compiled = torch.compile(codebook, fullgraph=True, backend="eager")
    assert_same(compiled(*arguments), expected)
    assert_same(torch.export.export(codebook, arguments).module()(*arguments), expected)


class Encoder(nn.Module):
    def __init__(self, codebook):
        super().__init__()
        self.codebook = codebook

    def forward(self, z, mask):
        return self.codebook.encode(z, mask)


def test_an_exported_encoder_is_of_plain_operators_for_any_batch(codebook):
    # The engine's operator is softvq's own, which no other runtime knows.
    codebook.engine = "attention"
    batch = {0: torch.export.Dim.DYNAMIC}
    arguments = (latents(codebook, 3, 6), torch.ones(3, 6, dtype=torch.bool))
    program = torch.export.export(Encoder(codebook), arguments, dynamic_shapes=(batch, batch))
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, fx.GraphModule)]
    called = {getattr(n.target, "namespace", "") for graph in graphs for n in graph.nodes}
    assert "aten" in called
    assert "softvq" not in called
    for size in (1, 50):
        mask = torch.rand(size, 6) > 0.3
        kept = to_layout(mask[..., None].expand(size, 6, DIM), codebook)
        z = torch.where(kept, latents(codebook, size, 6), math.nan)
        assert torch.equal(program.module()(z, mask), codebook.encode(z, mask))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_leaves_the_assignment_in_float32(codebook, dtype):
    # Off centre, where bfloat16 would assign at random.
    codebook.codebook.data.add_(20)
    z = latents(codebook, 4, 20, dtype=dtype) + 20
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = codebook(z)
        product = vectors_of(z, codebook).float() @ codebook.codebook.mT
    coarse = (codebook.codebook.square().sum(dim=1) - 2 * product).argmin(dim=-1)
    assert (coarse != out.indices).float().mean() > 0.2
    assert_same(out, codebook(z))


def test_a_frozen_codebook_keeps_its_bytes(codebook):
    codebook.freeze()
    before = state_bytes(codebook)
    groups = two_timescale_groups(nn.ModuleList([nn.Linear(DIM, DIM), codebook]), lr=0.1)
    assert [group["name"] for group in groups] == ["model"]
    z = latents(codebook, 2, 20).requires_grad_()
    out = codebook(z)
    (out.quantized.square().mean() + out.loss).backward()
    codebook.after_step(out)
    assert z.grad.abs().max() > 0
    assert codebook.codebook.grad is None
    assert state_bytes(codebook) == before


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_latents_that_are_not_finite_stop_the_training(codebook, bad):
    z = latents(codebook, 2, 6)
    z[1, 2, 3] = bad
    before = state_bytes(codebook)
    out = codebook(z)
    with pytest.raises(FloatingPointError, match="NaN or infinity"):
        codebook.after_step(out)
    assert state_bytes(codebook) == before
