"""DDCLReadout against brute force, in classifiers and on encoders."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from torch import nn

from softvq import (
    ConstantTemperature,
    DDCLCodebook,
    DDCLEMCodebook,
    DDCLReadout,
    ReadoutOutput,
    Schedule,
    VQCodebook,
    assignments,
)

KINDS = [DDCLCodebook, DDCLEMCodebook]
DIM, SIZE = 6, 5


def readout_of(kind=DDCLCodebook, dim=DIM, size=SIZE, temperature=2.0, seed=0, **arguments):
    torch.manual_seed(seed)
    controller = ConstantTemperature(Schedule(temperature))
    return DDCLReadout(kind(dim, size, temperature=controller, **arguments))


def documents(count=4, length=9, dim=DIM, seed=0):
    """Tokens, and a mask with a full document first, then shorter ones, none of them empty."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(count, length, dim, generator=generator)
    lengths = torch.randint(1, length + 1, (count, 1), generator=generator)
    lengths[0] = length
    return tokens, torch.arange(length) < lengths


def brute_force(readout, tokens, mask):
    """Proportions (B, K) and pooled (B, D) by the definition, in float64."""
    p = readout.codebook.codebook.detach().double().numpy()
    temperature = float(readout.codebook.temperature)
    shares, pooled = np.zeros((len(tokens), len(p))), np.zeros((len(tokens), p.shape[1]))
    for b, (document, real) in enumerate(zip(tokens.double().numpy(), mask.numpy(), strict=True)):
        if real.any():
            squared = ((document[real][:, None] - p) ** 2).sum(axis=2)
            q = softmax(-squared / temperature, axis=1)
            shares[b], pooled[b] = q.mean(axis=0), (q @ p).mean(axis=0)
    return shares, pooled


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 4),
    length=st.integers(1, 12),
    size=st.integers(1, 9),
    dim=st.integers(1, 7),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    kind=st.sampled_from(KINDS),
    engine=st.sampled_from(["dense", "attention"]),
    seed=st.integers(0, 2**16),
)
def test_any_shape_and_dtype(count, length, size, dim, dtype, kind, engine, seed):
    readout = readout_of(kind, dim, size, seed=seed, engine=engine)
    tokens, _ = documents(count, length, dim, seed)
    tokens = tokens.to(dtype)
    mask = torch.rand(count, length, generator=torch.Generator().manual_seed(seed)) > 0.4
    out = readout(tokens, mask)
    shares, pooled = brute_force(readout, tokens, mask)
    np.testing.assert_allclose(out.proportions.detach(), shares, atol=1e-6)
    rounding = 4 * torch.finfo(dtype).eps if dtype != torch.float64 else 1e-6
    np.testing.assert_allclose(out.pooled.detach().double(), pooled, atol=max(rounding, 1e-5))
    assert out.pooled.dtype == dtype
    assert out.loss is out.code.loss
    assert out.code.quantized.shape == tokens.shape
    assert out.prototypes.shape == (count, size, dim)
    sums = out.proportions.detach().sum(dim=1)
    torch.testing.assert_close(sums, mask.any(dim=1).to(sums), atol=1e-5, rtol=0)
    losses = out.code.losses
    torch.testing.assert_close(
        losses["loss_q"], losses["loss_ols"] + losses["variance"], atol=1e-5, rtol=1e-4
    )


def test_gradients_of_pooled_proportions_and_prototypes_are_exact():
    readout = readout_of(engine="dense").double()
    tokens, mask = documents(3, 4)
    mask[2] = False

    def outputs(z, p):
        out = torch.func.functional_call(readout, {"codebook.codebook": p}, (z, mask))
        return out.pooled, out.proportions, out.prototypes

    prototypes = readout.codebook.codebook.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(outputs, (tokens.double().requires_grad_(), prototypes))


def test_soft_em_passes_the_pooled_gradient_straight_to_real_tokens():
    readout = readout_of(DDCLEMCodebook)
    tokens, mask = documents()
    tokens.requires_grad_()
    out = readout(tokens, mask)
    (grad,) = torch.autograd.grad(out.pooled[:, 0].sum(), tokens, retain_graph=True)
    expected = mask / mask.sum(dim=1, keepdim=True)
    torch.testing.assert_close(grad[..., 0], expected)
    assert grad[..., 1:].count_nonzero() == 0
    # The derivative of a share is that of the softmax, whatever the codebook.
    (own,) = torch.autograd.grad(out.proportions[:, 0].sum(), tokens)
    soft = DDCLReadout(DDCLCodebook(DIM, SIZE))
    soft.codebook.load_state_dict(dict(readout.codebook.state_dict()))
    (other,) = torch.autograd.grad(soft(tokens, mask).proportions[:, 0].sum(), tokens)
    torch.testing.assert_close(own, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", [math.nan, math.inf, -math.inf, 1e30])
def test_what_padding_holds_changes_nothing(padding, kind):
    tokens, mask = documents(6, 11)
    mask[3] = False
    mask[4] = torch.arange(11) % 3 == 1  # Padding may stand anywhere.
    results = []
    for fill in (0.0, padding):
        readout = readout_of(kind)
        filled = torch.where(mask[..., None], tokens, fill).requires_grad_()
        readout.initialize(filled.detach(), mask=mask)
        out = readout(filled, mask)
        target = out.pooled.square().sum() + out.proportions.square().sum()
        (target + out.prototypes.square().sum() + out.loss).backward()
        readout.after_step(out)
        state = [*(p.grad for p in readout.parameters()), *readout.state_dict().values()]
        values = [out.pooled, out.proportions, out.prototypes, out.code.quantized, out.code.indices]
        results.append([*values, filled.grad, *state])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    pooled, shares, own = results[1][:3]
    assert not any(value[3].count_nonzero() for value in (pooled, shares, own))
    assert results[1][5][~mask].count_nonzero() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_more_padding_or_another_order_gives_the_same_document(kind):
    readout = readout_of(kind)
    tokens, mask = documents()
    out = readout(tokens, mask)
    order = torch.randperm(tokens.shape[1])
    shuffled = readout(tokens[:, order], mask[:, order])
    padded = readout(
        nn.functional.pad(tokens, (0, 0, 3, 5), value=7.0), nn.functional.pad(mask, (3, 5))
    )
    alone = [readout(document[real][None]) for document, real in zip(tokens, mask, strict=True)]
    for name in ("pooled", "proportions", "prototypes"):
        value = getattr(out, name)
        torch.testing.assert_close(getattr(shuffled, name), value)
        torch.testing.assert_close(getattr(padded, name), value)
        torch.testing.assert_close(torch.cat([getattr(o, name) for o in alone]), value)


def test_shares_stay_exact_in_half_precision_and_long_documents():
    readout = readout_of()
    tokens = documents(2, 3000)[0]
    exact = readout(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = readout(tokens)
    assert torch.equal(out.proportions, exact.proportions)
    assert torch.equal(out.pooled, exact.pooled)
    low = readout(tokens.bfloat16())
    assert low.pooled.dtype == torch.bfloat16
    assert low.proportions.dtype == torch.float32
    torch.testing.assert_close(low.proportions.sum(dim=1), torch.ones(2))


@pytest.mark.parametrize("kind", KINDS)
def test_state_moves_in_after_step_and_initialize_only(kind):
    readout = readout_of(kind)
    batches = [documents(6, length, seed=length) for length in (7, 12)]
    readout.initialize([z for z, _ in batches], mask=[m for _, m in batches])
    before = {name: value.clone() for name, value in readout.state_dict().items()}
    outs = [readout(*batch) for batch in batches]
    assert all(torch.equal(value, before[name]) for name, value in readout.state_dict().items())
    readout.after_step(*outs)
    assert int(readout.codebook.steps) == 1
    other = readout_of(kind)
    other.codebook.load_state_dict({n[len("codebook.") :]: v for n, v in before.items()})
    other.codebook.after_step(*(out.code for out in outs))
    assert all(
        torch.equal(a, b)
        for a, b in zip(readout.state_dict().values(), other.state_dict().values(), strict=True)
    )
    with pytest.raises(TypeError, match="after_step"):
        readout.after_step()


@pytest.mark.parametrize(("kind", "size"), [(DDCLCodebook, 600), (DDCLEMCodebook, SIZE)])
def test_compiles_as_one_graph_and_exports_for_any_length(kind, size):
    readout = readout_of(kind, size=size)
    tokens, mask = documents()
    expected = readout(tokens, mask)
    compiled = torch.compile(readout, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(tokens, mask).pooled, expected.pooled)
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(
        readout, (tokens, mask), dynamic_shapes=({1: length}, {1: length})
    )
    out = program.module()(tokens[:, :4], mask[:, :4])
    assert isinstance(out, ReadoutOutput)
    torch.testing.assert_close(out.pooled, readout(tokens[:, :4], mask[:, :4]).pooled)


def test_explain_names_shares_and_tokens():
    readout = readout_of(size=3, temperature=1.0)
    words = ["the", "cat", "sat", "on", "it", "all", "day"]
    tokens = documents(1, len(words), seed=3)[0][0]
    found = readout.explain(tokens, words, top=4)
    q = assignments(readout.codebook, tokens[None])[0].detach().numpy()
    assert [part.prototype for part in found] == np.argsort(-q.mean(axis=0)).tolist()
    for part in found:
        column = q[:, part.prototype]
        assert part.share == pytest.approx(column.mean(), abs=1e-6)
        assert [token.position for token in part.tokens] == np.argsort(-column)[:4].tolist()
        assert [token.word for token in part.tokens] == [words[t.position] for t in part.tokens]
        for token in part.tokens:
            assert token.assignment == pytest.approx(column[token.position], abs=1e-6)
    assert sum(part.share for part in found) == pytest.approx(1, abs=1e-5)
    assert len(readout.explain(tokens, words, top=99)[0].tokens) == len(words)


TOKENS, MASK = documents()
WRONG = [
    (TypeError, "VQCodebook", lambda _: DDCLReadout(VQCodebook(DIM, SIZE))),
    (ValueError, "channel_f", lambda _: DDCLReadout(DDCLCodebook(DIM, SIZE, channel_first=True))),
    (ValueError, r"\(B, T, D\).*tokens\[None\]", lambda readout: readout(TOKENS[0])),
    (ValueError, "at least one token", lambda readout: readout(TOKENS[:, :0])),
    (ValueError, f"dim = {DIM}", lambda readout: readout(TOKENS[..., :3])),
    (ValueError, "mask", lambda readout: readout(TOKENS, MASK[:, :2])),
    (TypeError, "bool", lambda readout: readout(TOKENS, MASK.long())),
    (TypeError, "floating", lambda readout: readout(TOKENS.long())),
    (
        ValueError,
        "a word for each of the 9 tokens, got 2",
        lambda readout: readout.explain(TOKENS[0], ["two", "words"]),
    ),
    (ValueError, r"\(T, D\)", lambda readout: readout.explain(TOKENS, ["w"] * 9)),
    (ValueError, "top", lambda readout: readout.explain(TOKENS[0], ["w"] * 9, top=0)),
]


@pytest.mark.parametrize(("kind", "message", "call"), WRONG)
def test_wrong_calls_are_refused(kind, message, call):
    with pytest.raises(kind, match=message):
        call(readout_of())


def test_the_mean_at_a_prototype_of_little_mass_lies_among_the_tokens():
    codebook = DDCLCodebook(1, 2, temperature=ConstantTemperature(Schedule(1.0)))
    codebook.codebook.data = torch.tensor([[0.0], [5.0]])
    out = DDCLReadout(codebook)(torch.tensor([[[0.6], [1.0]]]))
    assert out.proportions[0, 1] < 1e-5
    assert 0.6 < out.prototypes[0, 1, 0] < 1.0
    far = DDCLReadout(codebook)(torch.tensor([[[-60.0], [-50.0]]])).prototypes
    assert far[0, 1, 0] == 0
