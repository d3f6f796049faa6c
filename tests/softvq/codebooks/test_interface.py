from dataclasses import FrozenInstanceError, fields

import pytest
import torch
from torch.utils import _pytree as pytree

from softvq import CodebookOutput, DDCLCodebook


@pytest.fixture
def out():
    torch.manual_seed(0)
    return DDCLCodebook(3, 5)(torch.randn(2, 4, 3))


def test_it_unpacks_to_a_triple(out):
    quantized, indices, loss = out
    assert quantized is out.quantized
    assert indices is out.indices
    assert loss is out.loss
    assert len(out) == 3
    assert [out[0], out[1], out[2]] == [quantized, indices, loss]
    assert out[-1] is loss
    with pytest.raises(IndexError):
        out[3]


def test_it_has_more_by_name(out):
    assert [field.name for field in fields(out)] == [
        "quantized",
        "indices",
        "loss",
        "losses",
        "codes_per_token",
        "usage",
        "latents",
    ]
    assert {"loss_q", "loss_ols", "variance"} <= set(out.losses)
    with pytest.raises(FrozenInstanceError):
        out.loss = torch.zeros(())


def test_pytrees_see_its_tensors(out):
    leaves, spec = pytree.tree_flatten(out)
    assert len(leaves) == 6 + len(out.losses)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    rebuilt = pytree.tree_unflatten(leaves, spec)
    assert isinstance(rebuilt, CodebookOutput)
    assert rebuilt.quantized is out.quantized
    assert rebuilt.losses.keys() == out.losses.keys()
