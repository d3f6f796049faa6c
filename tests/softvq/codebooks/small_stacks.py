"""Small stacks of codebooks, and what their tests compare."""

import torch

from softvq import CodebookStack, DDCLCodebook, DDCLEMCodebook, VQCodebook, VQEMACodebook

DIM = 4
KINDS = [DDCLCodebook, DDCLEMCodebook, VQCodebook, VQEMACodebook]


def stack_of(*kinds, pools=None, size=9, shape=(8, 8, 8), **options):
    torch.manual_seed(0)
    # The noise of the last level is tested by itself.
    quiet = [{"noise": 0.0} if kind is DDCLCodebook else {} for kind in kinds]
    levels = [kind(DIM, size, **own) for kind, own in zip(kinds, quiet, strict=True)]
    stack = CodebookStack(levels, pools, **options)
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
