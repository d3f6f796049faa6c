"""What every codebook promises beyond the checks of the table, in both layouts."""

import copy
import math

import pytest
import torch
from small_codebooks import DIM, SIZE, assert_same, latents, state_bytes, to_layout, vectors_of
from torch import fx, nn

from softvq import CodebookOutput, SoftCodebook, UtilizationTracker, two_timescale_groups

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SHAPES = [(), (5,), (2, 1, 2, 3, 2)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes_and_dtypes(codebook, shape, dtype):
    shape = (2, *shape) if codebook.channel_first else shape
    z = latents(codebook, *shape, dtype=dtype)
    out = codebook(z)
    assert isinstance(out, CodebookOutput)
    quantized, indices, loss = out
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert (quantized.shape, quantized.dtype) == (z.shape, dtype)
    assert (indices.shape, indices.dtype) == (shape, torch.int64)
    assert (loss.shape, loss.dtype) == ((), wide)
    assert out.codes_per_token.shape == ()
    assert out.latents.shape == (math.prod(shape), DIM)
    assert out.usage.shape == (SIZE,)
    assert out.usage.sum().item() == pytest.approx(1, abs=1e-5)
    # Half precision is for storage: the result is that of float32, rounded once.
    reference = codebook(z.to(wide))
    assert torch.equal(quantized, reference.quantized.to(dtype))
    assert torch.equal(indices, reference.indices)
    assert torch.equal(loss, reference.loss)


def test_padding_gets_neither_code_nor_gradient(codebook):
    mask = torch.tensor([[True] * 6, [True, True, False, True, False, False]])
    kept = to_layout(mask[..., None].expand(2, 6, DIM), codebook)
    z = latents(codebook, 2, 6, dtype=torch.float16)
    results = []
    for fill in (0.0, math.nan):
        filled = torch.where(kept, z, fill).requires_grad_()
        out = codebook(filled, mask)
        (out.quantized.square().sum() + out.loss).backward()
        results.append((out, filled.grad))
    (plain, gradient), (out, same) = results
    assert_same(plain, out)
    assert torch.equal(gradient, same)
    assert same[kept].count_nonzero() == kept.sum()
    assert same[~kept].count_nonzero() == out.quantized[~kept].count_nonzero() == 0
    assert torch.equal(out.indices >= 0, mask)
    assert not out.latents.requires_grad
    assert not out.usage.requires_grad


def test_a_mask_equals_a_shorter_batch(codebook):
    mask = torch.arange(6) % 3 > 0
    z = latents(codebook, 6, 3)
    other = copy.deepcopy(codebook)
    out, short = codebook(z, mask[:, None].expand(6, 3)), other(z[mask])
    torch.testing.assert_close(out.quantized[mask], short.quantized)
    for name in ("loss", "losses", "usage", "codes_per_token"):
        torch.testing.assert_close(getattr(out, name), getattr(short, name), msg=name)
    codebook.after_step(out)
    other.after_step(short)
    torch.testing.assert_close(codebook.state_dict(), other.state_dict())


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (3, 4)], ids=["no batch", "no tokens", "masked"])
def test_nothing_to_quantise(codebook, shape):
    z = latents(codebook, *shape).requires_grad_()
    mask = torch.zeros(shape, dtype=torch.bool) if 0 not in shape else None
    before = codebook.codebook.detach().clone()
    out = codebook(z, mask)
    out.loss.backward()
    codebook.after_step(out)
    assert out.loss.item() == 0
    assert out.quantized.shape == z.shape
    assert out.quantized.count_nonzero() == z.grad.count_nonzero() == out.usage.count_nonzero() == 0
    assert (out.indices == -1).all()
    torch.testing.assert_close(codebook.codebook.detach(), before)
    assert all(value.isfinite().all() for value in codebook.state_dict().values())


@pytest.mark.parametrize("train", [True, False])
def test_decode_gives_the_codes_of_encode_and_forward(codebook, train):
    codebook.train(train)
    z = latents(codebook, 3, 5)
    mask = torch.rand(3, 5) > 0.3
    out = codebook(z, mask)
    codes = codebook.decode(codebook.encode(z, mask))
    assert torch.equal(codebook.encode(z, mask), out.indices)
    hard = codebook(z, mask, hard=True)
    assert torch.equal(codes, hard.quantized)
    assert torch.equal(hard.loss, out.loss)
    assert torch.equal(codes, codebook.get_codes_from_indices(out.indices))
    assert codes.shape == z.shape
    flat = vectors_of(codes, codebook)
    assert torch.equal(flat[mask], codebook.codebook[out.indices[mask]])
    assert flat[~mask].count_nonzero() == 0
    nearest = torch.cdist(vectors_of(z, codebook)[mask], codebook.codebook).argmin(dim=1)
    assert torch.equal(out.indices[mask], nearest)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16])
def test_decode_takes_any_integer(codebook, dtype):
    indices = torch.tensor([[0, 8], [3, 3]])
    assert torch.equal(codebook.decode(indices.to(dtype)), codebook.decode(indices))


WRONG = [
    (IndexError, rf"\[0, {SIZE}\).*from 0 to {SIZE}", lambda c: c.decode(torch.tensor([0, SIZE]))),
    (IndexError, rf"\[0, {SIZE}\).*from -2 to 0", lambda c: c.decode(torch.tensor([0, -2]))),
    (TypeError, "integers, got torch.float32", lambda c: c.decode(torch.zeros(3))),
    (TypeError, "integers, got torch.bool", lambda c: c.decode(torch.zeros(3) > 0)),
    (ValueError, rf"dim = {DIM}, got shape \(", lambda c: c(to_layout(torch.zeros(2, 3, 7), c))),
    (ValueError, r"got shape \(\)", lambda c: c(torch.zeros(()))),
    (TypeError, r"floating-point tensor, got torch\.int64", lambda c: c(latents(c, 2, 3).long())),
    (ValueError, r"\(2, 3\), got \(3, 2\)", lambda c: c(latents(c, 2, 3), torch.ones(3, 2) > 0)),
    (TypeError, r"bool.*torch\.float32", lambda c: c(latents(c, 2, 3), torch.ones(2, 3))),
    (ValueError, f"dim={DIM}, codebook_size=0", lambda c: type(c)(DIM, 0)),
    (ValueError, f"dim=0, codebook_size={SIZE}", lambda c: type(c)(0, SIZE)),
    (TypeError, r"dim must be a whole number, got 8\.0", lambda c: type(c)(8.0, 16)),
    (TypeError, "codebook_size must be a whole number, got '16'", lambda c: type(c)(8, "16")),
    (TypeError, r"out = codebook\(z\): got a Tensor", lambda c: c.after_step(torch.zeros(()))),
    (TypeError, "got a tuple", lambda c: c.after_step(tuple(c(latents(c, 2))))),
    (TypeError, "got a NoneType", lambda c: c.after_step(None)),
    (TypeError, r"what forward returned: after_step\(out\)", lambda c: c.after_step()),
]


@pytest.mark.parametrize(("error", "message", "call"), WRONG, ids=[row[1] for row in WRONG])
def test_wrong_calls_are_refused_and_change_nothing(codebook, error, message, call):
    before = state_bytes(codebook)
    with pytest.raises(error, match=message):
        call(codebook)
    assert state_bytes(codebook) == before


def test_temperatures_are_told_by_every_kind(codebook):
    info = codebook.temperature_info()
    if isinstance(codebook, SoftCodebook):
        ratio = codebook.temperature / codebook.critical_temperature
        expected = {"temperature": codebook.temperature.item(), "temperature_ratio": ratio.item()}
        largest = torch.linalg.eigvalsh(codebook.covariance)[-1]
        torch.testing.assert_close(
            codebook.critical_temperature, codebook.critical_factor * largest
        )
    else:
        expected = {"temperature": None, "temperature_ratio": None}
    assert info == expected
    assert codebook.has_tokens


@pytest.mark.parametrize("train", [True, False])
def test_only_after_step_changes_state(codebook, train):
    codebook.train(train)
    before, generator = state_bytes(codebook), torch.random.get_rng_state()
    z = latents(codebook, 2, 30)
    out = codebook(z)
    codebook(z, hard=True)
    codebook.encode(z)
    assert state_bytes(codebook) == before
    assert torch.equal(torch.random.get_rng_state(), generator)
    codebook.after_step(out)
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


def test_a_frozen_codebook_keeps_its_bytes(codebook):
    codebook.freeze()
    before = state_bytes(codebook)
    groups = two_timescale_groups(nn.ModuleList([nn.Linear(DIM, DIM), codebook]), lr=0.1)
    assert [group["name"] for group in groups] == ["model"]
    codebook.after_step(codebook(latents(codebook, 2, 20)))
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
