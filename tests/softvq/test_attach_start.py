"""What attach starts a codebook from."""

import pytest
import torch
from torch import nn

from softvq import CodebookStack, VQCodebook, VQEMACodebook, attach


@pytest.mark.parametrize("stacked", [False, True])
def test_padding_of_an_earlier_batch_never_starts_a_prototype(stacked):
    torch.manual_seed(0)
    codebook = CodebookStack([VQCodebook(4, 16)]) if stacked else VQEMACodebook(4, 16)
    attach(codebook, torch.optim.SGD([nn.Parameter(torch.zeros(1))]))
    padded = torch.randn(200, 4)
    mask = torch.arange(200) < 100
    padded[~mask] = 1e6
    codebook(padded, mask)
    codebook(torch.randn(200, 4))  # without a mask; now there are enough
    assert codebook.codebooks[0].initialized
    assert codebook.codebooks[0].codebook.abs().max() < 10
