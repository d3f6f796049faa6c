"""The contract of every codebook, whatever its method and layout."""

import copy
import functools
import io
import math
import pickle

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from softvq import CodebookOutput, DDCLCodebook, VQCodebook, VQEMACodebook, two_timescale_groups

DIM, SIZE = 4, 9
KINDS = {"ddcl": DDCLCodebook, "vq": VQCodebook, "vq-ema": VQEMACodebook}
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SHAPES = [(), (5,), (2, 3), (1, 2, 3, 2), (2, 1, 2, 3, 2)]


@functools.cache
def made(kind, channel_first):
    torch.manual_seed(0)
    codebook = kind(DIM, SIZE, channel_first=channel_first)
    codebook.initialize(latents(codebook, 8, 40))
    return codebook


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def kind(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["channel_last", "channel_first"])
def codebook(kind, request):
    return copy.deepcopy(made(kind, request.param))


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


def training_step(codebook, z, mask):
    z = z.clone().requires_grad_()
    out = codebook(z, mask)
    (out.quantized.square().sum() + out.loss).backward()
    codebook.after_step(out)
    return out, z.grad, codebook.codebook.grad, state_bytes(codebook)


@pytest.mark.parametrize("padding", [math.nan, math.inf, -1e30])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_what_padding_holds_changes_nothing(codebook, padding, dtype):
    mask = torch.tensor([[True] * 6, [True, True, False, True, False, False]])
    z = latents(codebook, 2, 6, dtype=dtype)
    kept = to_layout(mask[..., None].expand(2, 6, DIM), codebook)
    plain = training_step(copy.deepcopy(codebook), torch.where(kept, z, 0), mask)
    filled = training_step(copy.deepcopy(codebook), torch.where(kept, z, padding), mask)
    assert_same(plain[0], filled[0])
    out, z_grad, codebook_grad, state = filled
    assert not out.latents.requires_grad
    assert not out.usage.requires_grad
    assert torch.equal(z_grad, plain[1])
    assert z_grad[kept].count_nonzero() == kept.sum()
    assert z_grad[~kept].count_nonzero() == 0
    assert (codebook_grad is None) == isinstance(codebook, VQEMACodebook)
    if codebook_grad is not None:
        assert torch.equal(codebook_grad, plain[2])
        assert codebook_grad.count_nonzero() > 0
    assert state == plain[3]
    assert (out.indices[~mask] == -1).all()
    assert (out.indices[mask] >= 0).all()
    assert out.quantized[~kept].count_nonzero() == 0


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


def test_activation_checkpointing(codebook):
    x = torch.randn(2, 20, 5)

    def run(checkpointed):
        torch.manual_seed(0)
        encoder, mine = nn.Linear(5, DIM), copy.deepcopy(codebook)

        def part(x):
            return mine(to_layout(encoder(x), mine))

        out = checkpoint(part, x, use_reentrant=False) if checkpointed else part(x)
        (out.quantized.square().sum() + out.loss).backward()
        mine.after_step(out)
        return encoder.weight.grad, mine.codebook.grad, state_bytes(mine)

    plain, again = run(False), run(True)
    assert torch.equal(plain[0], again[0])
    assert plain[1] is again[1] is None or torch.equal(plain[1], again[1])
    assert plain[2] == again[2]


def travelled(codebook, how):
    if how == "deepcopy":
        return copy.deepcopy(codebook)
    if how == "pickle":
        return pickle.loads(pickle.dumps(codebook))
    stream = io.BytesIO()
    torch.save(codebook.state_dict(), stream)
    stream.seek(0)
    other = type(codebook)(DIM, SIZE, channel_first=codebook.channel_first)
    other.load_state_dict(torch.load(stream, weights_only=True), strict=True)
    return other


@pytest.mark.parametrize("how", ["state_dict", "deepcopy", "pickle"])
def test_state_travels(codebook, how):
    batches = [latents(codebook, 2, 20, seed=seed) for seed in range(4)]
    for z in batches[:2]:
        codebook.after_step(codebook(z))
    other = travelled(codebook, how)
    assert state_bytes(other) == state_bytes(codebook)
    for z in batches[2:]:
        assert_same(codebook(z), other(z))
        codebook.after_step(codebook(z))
        assert state_bytes(other) != state_bytes(codebook)
        other.after_step(other(z))
        assert state_bytes(other) == state_bytes(codebook)


def test_graphs_hold_the_whole_forward(codebook):
    arguments = (latents(codebook, 2, 6), torch.rand(2, 6) > 0.3)
    expected = codebook(*arguments)
    torch._dynamo.reset()
    compiled = torch.compile(codebook, fullgraph=True, backend="eager")
    assert_same(compiled(*arguments), expected)
    assert_same(torch.export.export(codebook, arguments).module()(*arguments), expected)


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


def test_frozen_prototypes_keep_their_bytes(codebook):
    codebook.freeze()
    before = codebook.codebook.detach().clone()
    encoder = nn.Linear(DIM, DIM)
    groups = two_timescale_groups(nn.ModuleList([encoder, codebook]), lr=0.1)
    optimizer = torch.optim.AdamW(groups, weight_decay=0.1)
    for seed in range(3):
        optimizer.zero_grad()
        z = to_layout(encoder(vectors_of(latents(codebook, 2, 20, seed=seed), codebook)), codebook)
        out = codebook(z)
        (out.quantized.square().mean() + out.loss).backward()
        assert encoder.weight.grad.abs().max() > 0
        optimizer.step()
        codebook.after_step(out)
    assert codebook.codebook.grad is None
    assert torch.equal(codebook.codebook, before)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_latents_that_are_not_finite_stop_the_training(codebook, bad):
    z = latents(codebook, 2, 6)
    z[1, 2, 3] = bad
    before = state_bytes(codebook)
    out = codebook(z)
    with pytest.raises(FloatingPointError, match="NaN or infinity"):
        codebook.after_step(out)
    assert state_bytes(codebook) == before
