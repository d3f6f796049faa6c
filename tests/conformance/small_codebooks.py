"""Small codebooks of every kind and layout, and latents for them."""

import functools

import torch

from softvq import DDCLCodebook, DDCLEMCodebook, VQCodebook, VQEMACodebook

DIM, SIZE = 4, 9
KINDS = {
    "ddcl": functools.partial(DDCLCodebook, noise=0.0),
    "ddcl-em": DDCLEMCodebook,
    "vq": VQCodebook,
    "vq-ema": VQEMACodebook,
}


@functools.cache
def made(kind, channel_first):
    torch.manual_seed(0)
    codebook = kind(DIM, SIZE, channel_first=channel_first)
    codebook.initialize(latents(codebook, 8, 40))
    return codebook


def latents(codebook, *shape, seed=1, dtype=torch.float32):
    """Latents whose shape without the vector axis is given."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(*shape, DIM, generator=generator).to(dtype)
    return to_layout(z, codebook)


def to_layout(vectors, codebook):
    return vectors.movedim(-1, 1).contiguous() if codebook.channel_first else vectors


def vectors_of(z, codebook):
    return z.movedim(1, -1) if codebook.channel_first else z


def state_bytes(codebook):
    return {name: value.numpy().tobytes() for name, value in codebook.state_dict().items()}


def assert_same(first, second):
    first, second = (vars(out) | out.losses for out in (first, second))
    assert first.keys() == second.keys()
    for name in first.keys() - {"losses"}:
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=0, msg=name)
