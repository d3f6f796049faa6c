import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from softvq.functional import (
    assignment,
    critical_factor,
    critical_temperature,
    largest_variance,
    latent_covariance,
    nearest_codes,
    soft_quantize,
    soft_quantize_attention,
    squared_distances,
    usage_divergence,
)

FIELDS = ("quantized", "loss_q", "loss_ols", "variance", "usage_kl", "entropy", "usage")


def brute_force(z, codebook, temperature, mask=None):
    """Loops over tokens and prototypes in float64; the reference for all that follows."""
    z, p = np.asarray(z, np.float64), np.asarray(codebook, np.float64)
    shift = z[0]  # the reference itself would lose digits far from the origin
    z, p = z - shift, p - shift
    n, k = len(z), len(p)
    mask = np.ones(n, bool) if mask is None else np.asarray(mask)
    ref = {
        "quantized": np.zeros_like(z),
        **{name: np.zeros(n) for name in ("loss_q", "loss_ols", "variance", "entropy")},
        "usage": np.zeros(k),
        "distances": np.array([[np.sum((zn - pk) ** 2) for pk in p] for zn in z]).reshape(n, k),
        "q": np.zeros((n, k)),
    }
    for i in range(n):
        if not mask[i]:
            continue
        d = ref["distances"][i]
        weight = np.array([math.exp(-(dk - d.min()) / temperature) for dk in d])
        q = weight / weight.sum()
        zbar = sum(q[j] * p[j] for j in range(k))
        ref["q"][i], ref["quantized"][i] = q, zbar + shift
        ref["loss_q"][i] = sum(q[j] * d[j] for j in range(k))
        ref["loss_ols"][i] = np.sum((z[i] - zbar) ** 2)
        ref["variance"][i] = sum(q[j] * np.sum((p[j] - zbar) ** 2) for j in range(k))
        ref["entropy"][i] = -sum(q[j] * math.log(q[j]) for j in range(k) if q[j] > 0)
        ref["usage"] += q / mask.sum()
    ref["usage_kl"] = sum(u * math.log(u * k) for u in ref["usage"] if u > 0)
    return ref


def drawn(seed, n, k, d, dtype=torch.float64, offset=0.0):
    generator = torch.Generator().manual_seed(seed)
    z, p = (torch.randn(rows, d, generator=generator, dtype=torch.float64) for rows in (n, k))
    return (z + offset).to(dtype), (p + offset).to(dtype)


@st.composite
def problems(draw):
    n, k, d = (draw(st.integers(1, high)) for high in (7, 12, 6))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    scale = 10 ** draw(st.integers(-2, 2))
    offset = draw(st.sampled_from([0.0, 1000.0])) * scale
    z, p = drawn(draw(st.integers(0, 2**31)), n, k, d)
    if draw(st.booleans()):
        p = p[torch.randint(k, (k,), generator=torch.Generator().manual_seed(n))]
    z, p = (z * scale + offset).to(dtype), (p * scale + offset).to(dtype)
    relative = 10 ** draw(st.floats(-3, 3))
    mask = torch.tensor(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    return z, p, relative, mask if draw(st.booleans()) else None


@settings(deadline=None, max_examples=120)
@given(problems())
def test_soft_quantize_matches_brute_force(problem):
    z, p, relative, mask = problem
    temperature = relative * float(torch.cdist(z, p).square().mean())
    assume(temperature > 0)
    code = soft_quantize(z, p, temperature, mask)
    ref = brute_force(z, p, temperature, mask)
    eps = torch.finfo(z.dtype).eps
    # Rounding of the logits, which grow as T falls, is what limits every weighted mean.
    size = max(float((x - p.mean(dim=0)).square().sum(dim=1).max()) for x in (z, p))
    wobble = 16 * eps * (1 + size / temperature)
    outer = 4 * eps * float(p.abs().max())
    allowed = {
        "quantized": math.sqrt(size) * wobble + outer,
        "loss_q": 16 * eps * size,
        "loss_ols": size * wobble,
        "variance": size * wobble,
        "entropy": wobble * (1 + math.log(len(p))),
        "usage": wobble,
        "usage_kl": wobble * (1 + math.log(len(p))) * len(p),
    }
    for name in FIELDS:
        value = getattr(code, name)
        assert value.dtype == z.dtype
        np.testing.assert_allclose(value, ref[name], rtol=0, atol=allowed[name], err_msg=name)
    kept = np.ones(len(z), bool) if mask is None else mask.numpy()
    assert (code.indices[~kept] == -1).all()
    chosen = ref["distances"][np.arange(len(z)), code.indices.numpy()][kept]
    best = ref["distances"].min(axis=1)[kept]
    np.testing.assert_allclose(chosen, best, rtol=0, atol=16 * eps * size)
    # The identity does not feel the rounding of the weights, so it is held tighter.
    identity = code.loss_ols + code.variance
    np.testing.assert_allclose(identity, ref["loss_q"], rtol=0, atol=16 * eps * size)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("relative", [1e-3, 1e-2, 0.1, 1.0, 10.0, 1e3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_the_loss_splits_exactly(dtype, tolerance, relative, offset):
    z, p = drawn(0, 32, 24, 8, dtype, offset)
    temperature = relative * 16
    code = soft_quantize(z, p, temperature)
    expected = brute_force(z, p, temperature)["loss_q"]
    np.testing.assert_allclose(code.loss_q, expected, rtol=tolerance)
    np.testing.assert_allclose(code.loss_ols + code.variance, expected, rtol=tolerance)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("temperature", [0.5, 20.0])
def test_gradcheck(temperature, masked):
    z, p = (x.requires_grad_() for x in drawn(2, 5, 4, 3))
    t = torch.tensor(temperature, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([True, False, True, True, False]) if masked else None
    for position in range(5):
        assert torch.autograd.gradcheck(
            lambda *args, at=position: soft_quantize(*args, mask)[at], (z, p, t)
        )


def test_prototype_gradient_has_its_closed_form():
    z, p = drawn(3, 9, 5, 3)
    p.requires_grad_()
    temperature = 1.7
    soft_quantize(z, p, temperature).loss_q.sum().backward()
    ref = brute_force(z, p.detach(), temperature)
    expected = np.zeros_like(p.detach().numpy())
    pushed = 0
    for i in range(9):
        for k in range(5):
            factor = 1 - (ref["distances"][i, k] - ref["loss_q"][i]) / temperature
            pushed += factor < 0
            direction = (p[k] - z[i]).detach().numpy()
            expected[k] += 2 * ref["q"][i, k] * factor * direction
    np.testing.assert_allclose(p.grad, expected, rtol=1e-12, atol=1e-14)
    assert 0 < pushed < 45  # the example holds both signs


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31), st.floats(-2, 2))
def test_variance_bounds_the_gap_to_the_token(seed, exponent):
    z, p = drawn(seed, 16, 9, 3)
    temperature = 6 * 10**exponent
    code = soft_quantize(z, p, temperature)
    nearest = squared_distances(z, p).min(dim=1).values
    assert (nearest - code.loss_ols <= code.variance + 1e-12).all()
    top = assignment(z, p, temperature).max(dim=1).values
    gap = (p[code.indices] - code.quantized).square().sum(dim=1)
    assert (gap <= code.variance / top + 1e-12).all()


def test_squared_distances_keep_their_digits_far_from_the_origin():
    z, p = drawn(5, 12, 7, 3, torch.float32, offset=1000.0)
    expected = (z.double()[:, None] - p.double()).square().sum(dim=2)
    torch.testing.assert_close(squared_distances(z, p).double(), expected, rtol=0, atol=2e-5)
    assert (squared_distances(p, p) >= 0).all()


@pytest.mark.parametrize("chunk", [1, 64, 10_000])
def test_nearest_codes_in_blocks(chunk):
    z, p = drawn(6, 50, 16, 4)
    expected = [int(np.argmin([np.sum((a - b) ** 2) for b in p.numpy()])) for a in z.numpy()]
    assert nearest_codes(z, p, chunk_elements=chunk).tolist() == expected


def test_usage_divergence_closed_forms():
    assert usage_divergence(torch.full((8,), 0.125)).item() == pytest.approx(0, abs=1e-6)
    one_hot = torch.eye(8)[3].requires_grad_()
    divergence = usage_divergence(one_hot)
    assert divergence.item() == pytest.approx(math.log(8))
    divergence.backward()
    assert one_hot.grad.isfinite().all()
    rare = torch.tensor([1 - 1e-7, 1e-7], dtype=torch.float64)
    entropy = -((1 - 1e-7) * math.log(1 - 1e-7) + 1e-7 * math.log(1e-7))
    assert usage_divergence(rare).item() == pytest.approx(math.log(2) - entropy, rel=1e-12)
    halves = torch.tensor([0.5, 0.5, 0, 0])
    assert usage_divergence(halves).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("masked", [False, True])
def test_covariance_and_critical_temperature(masked):
    z, _ = drawn(7, 40, 1, 5, offset=1000.0)
    mask = torch.arange(40) % 3 > 0 if masked else None
    given_z = z if mask is None else torch.where(mask[:, None], z, math.nan)
    kept = (z if mask is None else z[mask]).numpy()
    expected = np.cov(kept.T, bias=True)
    np.testing.assert_allclose(latent_covariance(given_z, mask), expected, atol=1e-9)
    top = np.linalg.eigvalsh(expected)[-1]
    assert critical_temperature(given_z, mask).item() == pytest.approx(4 * top, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_largest_variance_in_any_dtype(dtype):
    matrix = torch.diag(torch.tensor([1.0, 3.0, 2.0], dtype=dtype))
    value = largest_variance(matrix)
    assert value.dtype == dtype
    assert value.item() == 3.0
    assert largest_variance(-matrix).item() == 0.0


@pytest.mark.parametrize("quantize", [soft_quantize, soft_quantize_attention])
def test_entropy_keeps_its_digits_at_any_temperature(quantize):
    """It was a difference of two numbers of the size of d / T: 131072 nats at T = 1e-12."""
    generator = torch.Generator().manual_seed(0)
    z = torch.cat([torch.zeros(500, 1), torch.ones(12, 1)])
    z = z + 1e-7 * torch.randn(512, 1, generator=generator)
    codebook = torch.tensor([[0.0], [1.0], [0.5], [0.25]])
    for temperature in (1e-12, 1e-8, 1e-4):
        entropy = quantize(z, codebook, temperature).entropy
        assert entropy.max() <= 1e-6
    pair = torch.tensor([[-1.0], [1.0]])  # two codes at the same distance, however cold
    assert quantize(torch.zeros(3, 1), pair, 1e-12).entropy == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("arguments", "factor"),
    [({}, 4.0), ({"ols_weight": 2.0}, 8.0), ({"variance_weight": 2.0}, 2.0), ({"held": True}, 2.0)],
    ids=str,
)
def test_the_critical_factor_scales_the_critical_temperature(arguments, factor):
    assert critical_factor(**arguments) == factor
    z = torch.randn(50, 3)
    expected = factor * largest_variance(latent_covariance(z))
    torch.testing.assert_close(critical_temperature(z, factor=factor), expected)


@pytest.mark.parametrize("name", ["ols_weight", "variance_weight"])
def test_weights_without_a_critical_factor(name):
    with pytest.raises(ValueError, match=rf"{name} must be > 0, got -1\.0"):
        critical_factor(**{name: -1.0})
