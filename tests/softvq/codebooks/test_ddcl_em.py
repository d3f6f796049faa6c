"""DDCLEMCodebook: soft EM against NumPy, its limits, its gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from softvq import (
    CodesPerToken,
    ConstantTemperature,
    DDCLEMCodebook,
    Schedule,
    UtilizationTracker,
    VQEMACodebook,
)
from softvq.functional import mean_shift, soft_quantize


def codebook_at(temperature, size=6, dim=3, decay=0.8, **options):
    torch.manual_seed(0)
    controller = ConstantTemperature(Schedule(temperature))
    options = {"balance": 0.0, "restart_threshold": 0.0, "decay": decay} | options
    codebook = DDCLEMCodebook(dim, size, temperature=controller, **options)
    codebook.initialize(torch.randn(200, dim))
    return codebook


def assignments(z, p, temperature):
    return softmax(-((z[:, None] - p) ** 2).sum(axis=2) / temperature, axis=1)


def test_a_prototype_is_the_running_mean_of_all_latents_by_assignment():
    codebook = codebook_at(0.7)
    # The textbook form: running sums of weights and of weighted latents, apart.
    p = codebook.codebook.double().numpy()
    mass = np.full(6, 1 / 6)
    total = p * mass[:, None]
    for seed in range(5):
        z = torch.randn(50, 3, generator=torch.Generator().manual_seed(seed))
        q = assignments(z.double().numpy(), p, 0.7)
        mass = 0.8 * mass + 0.2 * q.mean(axis=0)
        total = 0.8 * total + 0.2 * (q.T @ z.double().numpy()) / len(z)
        p = total / mass[:, None]
        codebook.after_step(codebook(z))
        np.testing.assert_allclose(codebook.codebook.numpy(), p, rtol=1e-4, atol=1e-5)


@settings(deadline=None)
@given(
    n=st.integers(1, 40),
    k=st.integers(1, 20),
    log_t=st.floats(-2, 2),
    mean=st.sampled_from([0.0, 1000.0]),
)
def test_the_mean_shift_is_half_the_gradient_with_the_assignment_held(n, k, log_t, mean):
    generator = torch.Generator().manual_seed(n)
    z = torch.randn(n, 4, generator=generator, dtype=torch.float64) + mean
    p = torch.randn(k, 4, generator=generator, dtype=torch.float64) + mean
    p.requires_grad_()
    q = assignments(z.numpy(), p.detach().numpy(), 10**log_t)
    loss = (torch.from_numpy(q) * torch.cdist(z, p).square()).sum()
    (gradient,) = torch.autograd.grad(loss, p)
    shift, mass = mean_shift(z, p.detach(), 10**log_t)
    torch.testing.assert_close(shift, -gradient / 2, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(mass, torch.from_numpy(q.sum(axis=0)), rtol=1e-7, atol=1e-7)


def test_balance_assigns_by_distances_times_a_power_of_usage_and_outputs_by_plain_ones():
    plain, codebook = codebook_at(0.7), codebook_at(0.7, balance=0.5)
    usage = torch.tensor([0.5, 0.3, 0.1, 0.06, 0.04, 0.0])
    p = codebook.codebook.double().numpy()
    codebook.running_usage.copy_(usage)
    z = torch.randn(50, 3)
    out = codebook(z)
    assert torch.equal(out.quantized, plain(z).quantized)
    assert torch.equal(out.indices, plain(z).indices)
    assert torch.equal(out.loss, plain(z).loss)
    codebook.after_step(out)
    usage = 0.8 * usage.double().numpy() + 0.2 * assignments(z.double().numpy(), p, 0.7).mean(0)
    # Distances times a number of each prototype's own.
    distances = ((z.double().numpy()[:, None] - p[None]) ** 2).sum(axis=2)
    q = softmax(-distances * np.maximum(6 * usage, 0.01) ** 0.5 / 0.7, axis=1)
    mass = q.sum(axis=0) / 50
    size = np.maximum(usage, 0.2 * mass)
    expected = p + 0.2 * (q.T @ z.double().numpy() / 50 - mass[:, None] * p) / size[:, None]
    np.testing.assert_allclose(codebook.codebook.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_balance_evens_out_usage():
    # A dense heap and a wide one: plain means leave the heap to few prototypes.
    def batch(seed):
        generator = torch.Generator().manual_seed(seed)
        scale = torch.where(torch.rand(1000, 1, generator=generator) < 0.7, 0.1, 1.0)
        return torch.randn(1000, 2, generator=generator) * scale

    perplexities = []
    for balance in (0.0, 0.3, 1.0):
        torch.manual_seed(0)
        cooling = CodesPerToken(Schedule(1.1))
        codebook = DDCLEMCodebook(2, 32, temperature=cooling, balance=balance)
        codebook.initialize(batch(0))
        for seed in range(200):
            codebook.after_step(codebook(batch(seed)))
        tracker = UtilizationTracker(32)
        tracker.update(codebook.encode(batch(1000)))
        perplexities.append(float(tracker.compute().perplexity))
    assert perplexities[0] + 0.3 < perplexities[1] < perplexities[2] - 2, perplexities


def test_balance_brings_back_a_prototype_far_from_all_latents_and_never_past_their_mean():
    codebook = codebook_at(1e-3, balance=1.0)
    codebook.codebook[0] = torch.tensor([30.0, 0, 0])
    codebook.running_usage[0] = 0
    for seed in range(100):
        z = torch.randn(200, 3, generator=torch.Generator().manual_seed(seed))
        before = codebook.codebook[:, 0].clone()
        codebook.after_step(codebook(z))
        # A mean of some latents and of where a prototype was.
        low, high = before.clamp(max=z[:, 0].min()), before.clamp(min=z[:, 0].max())
        assert torch.all(codebook.codebook[:, 0] >= low - 1e-4)
        assert torch.all(codebook.codebook[:, 0] <= high + 1e-4)
    assert codebook.running_usage[0] * 6 > 0.3


@pytest.mark.parametrize("balance", [-0.1, 1.1, float("nan")])
def test_balance_must_lie_between_zero_and_one(balance):
    with pytest.raises(ValueError, match=rf"balance must lie in \[0, 1\], got {balance}"):
        DDCLEMCodebook(2, 4, balance=balance)


def test_a_cold_codebook_learns_like_moving_averages_of_hard_assignments():
    soft = codebook_at(1e-6, decay=0.9)
    hard = VQEMACodebook(3, 6, decay=0.9, restart_threshold=0.0)
    hard.codebook.copy_(soft.codebook)
    batches = [torch.randn(400, 3, generator=torch.Generator().manual_seed(s)) for s in range(10)]
    # The same running sums to start with: usage as counts per step.
    hard.running_usage.copy_(soft.running_usage * 400)
    hard.embed_sum.copy_(hard.codebook * hard.running_usage[:, None])
    for z in batches:
        first, second = soft(z), hard(z)
        assert torch.equal(first.indices, second.indices)
        torch.testing.assert_close(first.quantized, second.quantized)
        soft.after_step(first)
        hard.after_step(second)
    torch.testing.assert_close(soft.codebook, hard.codebook, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("balance", [0.0, 1.0])
def test_hot_prototypes_collapse_to_the_mean_and_cool_ones_do_not(balance):
    # With the assignment held, the critical temperature is half of T_c: 2 lambda_max. Collapsed
    # prototypes have the same usage, and balance nothing to even out.
    z = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([2.0, 1, 1])
    for factor, collapses in ((1.3, True), (0.7, False)):
        torch.manual_seed(0)
        constant = ConstantTemperature(Schedule(factor * 2 * 4.0))
        codebook = DDCLEMCodebook(3, 6, temperature=constant, decay=0.0, balance=balance)
        codebook.codebook.mul_(0.1)
        for _ in range(400):
            codebook.after_step(codebook(z))
        assert codebook.temperature_ratio == pytest.approx(factor, rel=0.1)
        spread = codebook.codebook.std(dim=0).max()
        assert (spread < 0.02) == collapses, (factor, spread)
        assert (spread > 0.3) != collapses, (factor, spread)


def test_the_decoder_s_gradient_passes_and_the_loss_s_is_exact():
    codebook = codebook_at(0.5, usage_weight=0.3, commitment=0.7)
    z = torch.randn(20, 3, requires_grad=True)
    out = codebook(z)
    weights = torch.randn(20, 3)
    (passed,) = torch.autograd.grad((out.quantized * weights).sum(), z, retain_graph=True)
    assert torch.equal(passed, weights)
    assert not codebook.codebook.requires_grad
    assert not list(codebook.parameters())
    code = soft_quantize(z, codebook.codebook, codebook.temperature)
    assert torch.equal(out.quantized, code.quantized)
    loss = 0.7 * (code.loss_ols + code.variance).mean() / 3 + 0.3 * code.usage_kl
    (exact,) = torch.autograd.grad(loss, z)
    (ours,) = torch.autograd.grad(out.loss, z)
    torch.testing.assert_close(ours, exact)
    (passed,) = torch.autograd.grad((codebook(z, hard=True).quantized * weights).sum(), z)
    assert torch.equal(passed, weights)


def test_latents_far_from_the_origin_keep_their_digits():
    near, far = codebook_at(0.5), codebook_at(0.5)
    far.codebook.add_(1000)
    for seed in range(20):
        z = torch.randn(100, 3, generator=torch.Generator().manual_seed(seed))
        near.after_step(near(z))
        far.after_step(far(z + 1000))
    # A latent at 1,000 is known to 6e-5, and the steps add up.
    torch.testing.assert_close(far.codebook - 1000, near.codebook, rtol=0, atol=2e-3)


def test_a_prototype_without_latents_stays():
    for dtype in (torch.float32, torch.float16):
        codebook = codebook_at(1e-3).to(dtype)
        codebook.codebook[0] = 1e4
        codebook.running_usage[0] = 0
        codebook.after_step(codebook(torch.randn(50, 3)))
        assert torch.equal(codebook.codebook[0], torch.full((3,), 1e4, dtype=dtype))
        assert codebook.codebook.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_codebooks_of_other_dtypes_learn(dtype):
    codebook, plain = codebook_at(0.5).to(dtype), codebook_at(0.5)
    z = torch.randn(200, 3)
    for book in (codebook, plain):
        book.after_step(book(z))
    assert codebook.codebook.dtype == dtype
    torch.testing.assert_close(codebook.codebook.float(), plain.codebook, rtol=0.02, atol=0.02)
