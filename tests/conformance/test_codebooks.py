"""The contract of every codebook's calls, whatever its method and layout."""

import copy
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_codebooks import (
    DIM,
    SIZE,
    assert_same,
    latents,
    made,
    to_layout,
    vectors_of,
)
from torch import nn

from softvq import CodebookOutput, SoftCodebook

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SHAPES = [(), (5,), (2, 3), (1, 2, 3, 2), (2, 1, 2, 3, 2)]


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


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 2**31))
def test_layouts_agree(kind, shape, seed):
    first, last = made(kind, True), made(kind, False)
    z = latents(first, *shape, seed=seed)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.3
    a, b = first(z, mask), last(z.movedim(1, -1), mask)
    torch.testing.assert_close(a.quantized.movedim(1, -1), b.quantized)
    assert torch.equal(a.indices, b.indices)
    torch.testing.assert_close(a.loss, b.loss)
    torch.testing.assert_close(first.decode(a.indices).movedim(1, -1), last.decode(b.indices))


@pytest.mark.parametrize("padding", [math.nan, math.inf, -1e30])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_padding_gets_neither_code_nor_gradient(codebook, padding, dtype):
    mask = torch.tensor([[True] * 6, [True, True, False, True, False, False]])
    kept = to_layout(mask[..., None].expand(2, 6, DIM), codebook)
    z = latents(codebook, 2, 6, dtype=dtype)
    results = []
    for fill in (0.0, padding):
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
    trained = isinstance(codebook.codebook, nn.Parameter)
    assert (codebook.codebook.grad is not None) == trained
    assert not trained or codebook.codebook.grad.count_nonzero() > 0


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
    assert torch.equal(codes, codebook(z, mask, hard=True).quantized)
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


@pytest.mark.parametrize("bad", [SIZE, -2])
def test_an_index_out_of_range(codebook, bad):
    with pytest.raises(IndexError, match=rf"\[0, {SIZE}\).*from {min(0, bad)} to {max(0, bad)}"):
        codebook.decode(torch.tensor([0, bad]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
def test_indices_that_are_no_integers(codebook, dtype):
    with pytest.raises(TypeError, match=f"integers, got {dtype}"):
        codebook.decode(torch.zeros(3, dtype=dtype))


def test_wrong_latents_and_masks(codebook):
    z = to_layout(torch.zeros(2, 3, 7), codebook)
    with pytest.raises(
        ValueError, match=rf"dim = {DIM}, got shape \({', '.join(map(str, z.shape))}"
    ):
        codebook(z)
    with pytest.raises(ValueError, match=r"got shape \(\)"):
        codebook(torch.zeros(()))
    with pytest.raises(TypeError, match=r"floating point, got torch\.int64"):
        codebook(latents(codebook, 2, 3).long())
    with pytest.raises(ValueError, match=r"\(2, 3\), got \(3, 2\)"):
        codebook(latents(codebook, 2, 3), torch.ones(3, 2, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"mask must be bool.*torch\.float32"):
        codebook(latents(codebook, 2, 3), torch.ones(2, 3))
    for sizes in ((DIM, 0), (0, SIZE)):
        with pytest.raises(ValueError, match="dim={}, codebook_size={}".format(*sizes)):
            type(codebook)(*sizes)


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
