"""models.identity: the contract of a codebook, without a code."""

from __future__ import annotations

import pytest
import torch

from models import IdentityCodebook


def test_the_latents_come_back_with_their_gradient():
    codebook = IdentityCodebook(4, channel_first=True)
    z = torch.randn(2, 4, 3, 5, requires_grad=True)
    out = codebook(z)
    quantized, indices, loss = out
    assert torch.equal(quantized, z)
    assert indices.shape == (2, 3, 5)
    assert indices.dtype == torch.int64
    assert (indices == -1).all()
    assert loss.shape == ()
    assert loss == 0
    assert set(out.losses) == {"loss_q", "loss_ols", "variance"}
    assert all(value == 0 for value in out.losses.values())
    assert out.codes_per_token == 1
    assert out.usage.tolist() == [0]
    assert torch.equal(out.latents, z.detach().movedim(1, -1).reshape(-1, 4))
    assert not out.latents.requires_grad
    direction = torch.randn_like(z)
    (gradient,) = torch.autograd.grad(quantized, z, direction)
    assert torch.equal(gradient, direction)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_and_the_vector_axis_last(dtype):
    z = torch.randn(6, 3).to(dtype)
    out = IdentityCodebook(3)(z)
    assert out.quantized.dtype == dtype
    assert torch.equal(out.quantized, z)
    assert out.indices.shape == (6,)


def test_padding_changes_nothing():
    codebook = IdentityCodebook(3)
    z = torch.randn(2, 4, 3)
    mask = torch.ones(2, 4, dtype=torch.bool)
    mask[1, 2:] = False
    spoiled = z.clone()
    spoiled[~mask] = float("nan")
    out = codebook(spoiled, mask=mask)
    assert torch.equal(out.quantized[mask], z[mask])
    assert (out.quantized[~mask] == 0).all()
    assert out.latents.isfinite().all()


def test_nothing_can_be_decoded():
    codebook = IdentityCodebook(3)
    with pytest.raises(ValueError, match="no prototypes"):
        codebook(torch.zeros(2, 3), hard=True)
    with pytest.raises(ValueError, match="no prototypes"):
        codebook.decode(torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"D = dim = 3, got shape \(2, 4\)"):
        codebook(torch.zeros(2, 4))


def test_nothing_moves_but_the_count_of_steps():
    codebook = IdentityCodebook(3)
    before = {name: value.clone() for name, value in codebook.state_dict().items()}
    codebook.initialize(torch.randn(5, 3))
    out = codebook(torch.randn(5, 3))
    assert all(torch.equal(value, before[name]) for name, value in codebook.state_dict().items())
    codebook.after_step(out)
    after = codebook.state_dict()
    assert after.pop("steps") == before.pop("steps") + 1
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    assert not list(codebook.parameters())
