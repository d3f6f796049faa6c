import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from softvq import attention
from softvq._internal import arithmetic
from softvq.functional import soft_quantize, soft_quantize_attention, squared_distances


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of a few rows, the last one shorter, so that every test meets their seams."""
    monkeypatch.setattr(arithmetic, "_rows_per_block", lambda device, size: 9)


def normal(*shape, seed=0, dtype=torch.float64, mean=0.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) + mean).to(dtype)


def problem(n, k, d, *, seed=0, ratio=1.0, mean=0.0, dtype=torch.float64, duplicates=False):
    """Latents, prototypes and a temperature of ``ratio`` mean distances."""
    z, p = normal(n, d, seed=seed, mean=mean), normal(k, d, seed=seed + 1, mean=mean)
    if duplicates:
        p[k // 2 :] = p[: k - k // 2].clone()
    distance = squared_distances(z, p).mean() if n else torch.ones(())
    temperature = (ratio * distance).clamp_min(1e-6)
    return tuple(x.to(dtype).requires_grad_() for x in (z, p, temperature))


def objective(code, seed=7):
    """A scalar that weighs every differentiable output of every token differently."""
    total = 3 * code.usage_kl
    for field in (code.quantized, code.loss_q, code.loss_ols, code.variance):
        total = total + (field * normal(*field.shape, seed=seed, dtype=field.dtype)).sum()
    return total


def both(inputs, mask=None):
    results = []
    for engine in (soft_quantize, soft_quantize_attention):
        code = engine(*inputs, mask)
        results.append((code, torch.autograd.grad(objective(code), inputs)))
    return results


def assert_agree(inputs, mask, value_tolerance, gradient_tolerance):
    z, p, temperature = (x.detach() for x in inputs)
    (dense, dense_grads), (ours, our_grads) = both(inputs, mask)
    distances = squared_distances(z, p)
    kept = torch.ones(len(z), dtype=torch.bool) if mask is None else mask
    largest = float(distances[kept].max()) if kept.any() else 1.0
    # Logits are as large as d / T and rounded to as many digits, which no engine can get back: at
    # a thousandth of the mean distance float32 knows assignments to about 1e-4.
    rounding = 8 * torch.finfo(z.dtype).eps * largest / float(temperature)
    value_tolerance = max(value_tolerance, rounding)
    gradient_tolerance = max(gradient_tolerance, 4 * rounding)
    # The entropy is a difference of logits, the other fields of coordinates or distances.
    scales = dict.fromkeys(("loss_q", "loss_ols", "variance"), largest)
    scales |= {"quantized": float(torch.cat([z, p]).abs().max()), "usage_kl": 1.0, "usage": 1.0}
    scales["entropy"] = 1 + largest / float(temperature)
    for field, scale in scales.items():
        error = (getattr(dense, field) - getattr(ours, field)).abs()
        assert error.numel() == 0 or error.max() <= value_tolerance * scale, field
    # A tie, or a difference below rounding, may fall either way.
    picked = [code.indices.clamp_min(0)[:, None] for code in (dense, ours)]
    gap = (distances.gather(1, picked[0]) - distances.gather(1, picked[1])).abs()
    assert (gap <= value_tolerance * largest).all()
    assert torch.equal(dense.indices < 0, ours.indices < 0)

    # In one unit: gradients of weights of about one to distances. What is left of them where they
    # cancel, as a latent's between its prototypes, is known no better.
    scale = max(grad.abs().max().item() for grad in dense_grads[:2] if grad.numel())
    scale = max(scale, math.sqrt(largest))
    for reference, gradient in zip(dense_grads[:2], our_grads[:2], strict=True):
        if reference.numel():
            assert (reference - gradient).abs().max() <= gradient_tolerance * max(scale, 1e-30)
    # In T the gradients of all tokens cancel; as d loss / d log T they compare with
    # those of the latents.
    centred = z - p.mean(dim=0)
    scale = (centred * dense_grads[0]).abs().sum() + (temperature * dense_grads[2]).abs()
    scale = scale + largest
    assert temperature * (dense_grads[2] - our_grads[2]).abs() <= gradient_tolerance * scale + 1e-30


problems = {
    "n": st.integers(0, 40),
    "k": st.integers(1, 40),
    "d": st.integers(1, 12),
    "seed": st.integers(0, 1000),
    "log_ratio": st.floats(-3, 3),
    "mean": st.sampled_from([0.0, 1000.0]),
    "duplicates": st.booleans(),
    "masked": st.booleans(),
}


@pytest.mark.parametrize(
    ("dtype", "value_tolerance", "gradient_tolerance"),
    [(torch.float64, 1e-12, 1e-10), (torch.float32, 1e-4, 1e-4)],
)
@settings(max_examples=30, deadline=None)
@given(**problems)
def test_agrees_with_the_dense_engine(
    dtype, value_tolerance, gradient_tolerance, n, k, d, seed, log_ratio, mean, duplicates, masked
):
    inputs = problem(
        n, k, d, seed=seed, ratio=10**log_ratio, mean=mean, dtype=dtype, duplicates=duplicates
    )
    mask = normal(n, seed=seed + 2) > 0 if masked else None
    assert_agree(inputs, mask, value_tolerance, gradient_tolerance)


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_agree_with_finite_differences(masked):
    inputs = problem(11, 4, 2, ratio=0.5)
    mask = torch.arange(11) % 3 > 0 if masked else None
    assert torch.autograd.gradcheck(
        lambda *args: tuple(soft_quantize_attention(*args, mask))[:5], inputs
    )


@pytest.mark.parametrize("wanted", [{0}, {1}, {2}, {0, 1}])
def test_gradients_are_the_same_when_fewer_are_wanted(wanted):
    everything = problem(20, 9, 4)
    _, (_, grads) = both(everything)
    inputs = [x.detach().requires_grad_(i in wanted) for i, x in enumerate(everything)]
    code = soft_quantize_attention(*inputs)
    objective(code).backward()
    for index in range(3):
        if index in wanted:
            assert torch.equal(inputs[index].grad, grads[index])
        else:
            assert inputs[index].grad is None


def test_temperature_may_be_a_number():
    z, p, temperature = problem(20, 9, 4)
    expected = soft_quantize_attention(z, p, temperature)
    code = soft_quantize_attention(z, p, temperature.item())
    assert all(torch.equal(a, b) for a, b in zip(expected, code, strict=True))


def test_statistics_carry_no_gradient():
    code = soft_quantize_attention(*problem(20, 9, 4))
    assert not any(field.requires_grad for field in (code.indices, code.entropy, code.usage))


WAYS = {
    "strided": lambda z, p, t: soft_quantize_attention(z.mT.contiguous().mT, p, t),
    "an axis": lambda z, p, t: soft_quantize_attention(z, p, t[None]),
    "checkpointed": lambda *args: checkpoint(soft_quantize_attention, *args, use_reentrant=False),
}


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_the_same_however_it_is_called(way):
    inputs = problem(20, 9, 4)
    _, (code, grads) = both(inputs)
    other = WAYS[way](*inputs)
    others = torch.autograd.grad(objective(other), inputs)
    for a, b in zip((*code, *grads), (*other, *others), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        assert way == "strided" or torch.equal(a, b)


def test_second_derivatives_raise():
    z, p, temperature = problem(6, 4, 3)
    (grad,) = torch.autograd.grad(
        objective(soft_quantize_attention(z, p, temperature)), z, create_graph=True
    )
    with pytest.raises(RuntimeError, match="use the dense engine"):
        grad.sum().backward()


def test_autocast_lowers_no_precision_in_forward_or_backward():
    inputs = problem(20, 9, 4, dtype=torch.float32)
    _, (expected, expected_grads) = both(inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        code = soft_quantize_attention(*inputs)
        grads = torch.autograd.grad(objective(code), inputs)
    for a, b in zip((*expected, *expected_grads), (*code, *grads), strict=True):
        assert torch.equal(a, b)


def test_operators_keep_the_rules_of_torch_library():
    z, p, temperature = problem(20, 9, 4)
    weights = torch.full((20,), 1 / 20, dtype=z.dtype)
    detached = [x.detach() for x in (z, p, temperature)]
    upstream = (normal(20, 4), normal(20), normal(20), normal(9))
    rules = ("test_schema", "test_autograd_registration", "test_faketensor")
    for operator, args in (
        (attention._attend, (z, p, temperature, weights)),
        (attention._attend_backward, (*upstream, *detached, weights, normal(20, 4), True, True)),
    ):
        torch.library.opcheck(operator, args, test_utils=rules)


def test_compiles_as_one_graph_for_any_number_of_tokens():
    compiled = torch.compile(
        soft_quantize_attention, fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for n in (20, 33):
        inputs = problem(n, 9, 4)
        _, (_, expected) = both(inputs)
        grads = torch.autograd.grad(objective(compiled(*inputs)), inputs)
        for reference, gradient in zip(expected, grads, strict=True):
            torch.testing.assert_close(gradient, reference, rtol=1e-12, atol=1e-12)
