import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from softvq import CodesPerToken, ConstantTemperature, CriticalFraction, DDCLCodebook, Schedule
from softvq.functional import soft_quantize


def gaussian(n, d, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    # Variances that fall from axis to axis, so that the largest stands alone.
    spread = torch.tensor([3.0 / (axis + 1) for axis in range(d)], dtype=torch.float64)
    z = torch.randn(n, d, generator=generator, dtype=torch.float64) * spread.sqrt()
    return scale * (z - z.mean(dim=0))


def covariance(z):
    return np.cov(np.asarray(z, np.float64).T, bias=True).reshape(z.shape[1], z.shape[1])


@pytest.mark.parametrize("b", [1.0, 2.0, 0.5])
def test_the_hessian_at_collapse_changes_sign_at_the_critical_temperature(b):
    z = gaussian(200, 2)
    critical = 4 * np.linalg.eigvalsh(covariance(z))[-1] / b

    def smallest_curvature(temperature):
        def loss(p):
            code = soft_quantize(z, p, temperature)
            return (code.loss_ols + b * code.variance).mean()

        # A hair off collapse: at V = 0 exactly, its clamp has no second derivative.
        collapsed = 1e-5 * torch.eye(3, 2, dtype=torch.float64)
        hessian = torch.autograd.functional.hessian(loss, collapsed).reshape(6, 6)
        return torch.linalg.eigvalsh(hessian)[0].item()

    assert smallest_curvature(critical) == pytest.approx(0, abs=1e-5)
    for ratio in (0.8, 0.99, 1.01, 1.2):
        expected = 2 / 3 * b * (1 - 1 / ratio)
        assert smallest_curvature(ratio * critical) == pytest.approx(expected, rel=1e-4)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 2**31),
    st.floats(0.01, 100),
    st.tuples(st.floats(0, 2), st.floats(0.1, 3), st.floats(0, 1)),
)
def test_the_loss_is_the_weighted_sum_of_its_terms(seed, temperature, weights):
    commitment, b, usage_weight = weights
    torch.manual_seed(seed)
    codebook = DDCLCodebook(
        3, 5, commitment=commitment, variance_weight=b, usage_weight=usage_weight, noise=0.0
    ).double()
    codebook.temperature.fill_(temperature)
    z = torch.randn(4, 2, 3, dtype=torch.float64)
    out = codebook(z)

    flat, p = z.reshape(-1, 3).numpy(), codebook.codebook.detach().numpy()
    d = ((flat[:, None] - p) ** 2).sum(axis=2)
    q = softmax(-d / temperature, axis=1)
    mean, usage = q @ p, q.mean(axis=0)
    ols = ((flat - mean) ** 2).mean()
    variance = (q[:, :, None] * (p - mean[:, None]) ** 2).sum(axis=1).mean()
    divergence = (usage * np.log(np.maximum(usage, 1e-300) * 5)).sum()
    entropy = -(q * np.log(np.maximum(q, 1e-300))).sum(axis=1).mean()

    np.testing.assert_allclose(out.quantized.detach().reshape(-1, 3), mean, atol=1e-10)
    expected = {"loss_q": ols + variance, "loss_ols": ols, "variance": variance}
    assert set(out.losses) == {*expected, "usage_kl"}
    for name, value in expected.items():
        assert out.losses[name].item() == pytest.approx(value, rel=1e-9, abs=1e-12), name
    assert out.losses["usage_kl"].item() == pytest.approx(divergence, rel=1e-9, abs=1e-10)
    total = commitment * (ols + b * variance) + usage_weight * divergence
    assert out.loss.item() == pytest.approx(total, rel=1e-9, abs=1e-10)
    assert out.codes_per_token.item() == pytest.approx(math.exp(entropy), rel=1e-8)
    np.testing.assert_allclose(out.usage, usage, atol=1e-12)


@pytest.mark.parametrize("noise", [0.0, 0.5, 1.0])
def test_every_prototype_and_every_latent_gets_a_gradient(noise):
    torch.manual_seed(0)
    codebook = DDCLCodebook(3, 7, noise=noise)
    codebook.temperature.fill_(3.0)
    z = torch.randn(5, 3, requires_grad=True)
    codebook(z).quantized.square().sum().backward()
    assert (codebook.codebook.grad.abs().sum(dim=1) > 1e-4).all()
    assert (z.grad.abs().sum(dim=1) > 1e-4).all()


def test_the_usage_weight_adds_the_gradient_of_the_usage():
    def gradients(weight):
        torch.manual_seed(0)
        codebook = DDCLCodebook(2, 8, usage_weight=weight)
        z = torch.randn(64, 2, requires_grad=True)
        out = codebook(z)
        leaves = (z, codebook.codebook)
        return (
            torch.autograd.grad(out.loss, leaves, retain_graph=True),
            torch.autograd.grad(out.losses["usage_kl"], leaves),
        )

    plain, usage = gradients(0.0)
    weighted, _ = gradients(0.3)
    for without, alone, both in zip(plain, usage, weighted, strict=True):
        assert alone.abs().max() > 1e-4
        torch.testing.assert_close(both, without + 0.3 * alone)


def test_after_step_tracks_the_covariance_and_follows_the_controller():
    codebook = DDCLCodebook(
        3,
        6,
        temperature=CriticalFraction(Schedule(0.5, 0.1, steps=4)),
        variance_weight=2.0,
        decay=0.7,
    )
    torch.manual_seed(0)
    # Far from the origin, where a careless second moment loses its digits.
    codebook.codebook.data.add_(1000.0)
    reference = np.eye(3)
    for step in range(1, 6):
        z = 1000.0 + torch.randn(32, 3) * torch.tensor([1.0, 2.0, 3.0])
        mask = torch.rand(32) > 0.3
        codebook.after_step(codebook(z, mask))
        reference = 0.7 * reference + 0.3 * covariance(z[mask])
        np.testing.assert_allclose(codebook.covariance, reference, rtol=1e-4, atol=1e-4)
        critical = 4 * np.linalg.eigvalsh(reference)[-1] / 2.0
        assert codebook.critical_temperature.item() == pytest.approx(critical, rel=1e-3)
        wanted = 0.5 * (0.2 ** min(1.0, step / 4))
        assert codebook.temperature_ratio.item() == pytest.approx(wanted, rel=1e-5)
    assert int(codebook.steps) == 5


def test_an_empty_batch_moves_neither_covariance_nor_temperature():
    codebook = DDCLCodebook(3, 6, temperature=ConstantTemperature(Schedule(5.0)))
    codebook.after_step(codebook(torch.randn(4, 3), torch.zeros(4, dtype=torch.bool)))
    assert codebook.temperature.item() == 5.0
    assert torch.equal(codebook.covariance, torch.eye(3))


def test_initialize_places_prototypes_and_temperature():
    z = gaussian(600, 4, scale=10.0).float()
    codebook = DDCLCodebook(4, 16, temperature=CodesPerToken(Schedule(3.0)))
    codebook.initialize([z[:200], z[200:].reshape(2, 200, 4)])
    assert codebook.critical_temperature.item() == pytest.approx(
        2 * np.linalg.eigvalsh(covariance(z))[-1], rel=1e-5
    )
    assert codebook(z).codes_per_token.item() == pytest.approx(3.0, rel=5e-3)
    assert codebook(z).losses["loss_q"] < z.var(dim=0).mean()
    codebook = DDCLCodebook(4, 16, temperature=CodesPerToken(Schedule(16.0), ceiling=0.2))
    codebook.initialize(z)
    assert codebook.temperature_ratio.item() == pytest.approx(0.2)


@pytest.mark.parametrize(
    "controller", [CodesPerToken(Schedule(2.0)), CriticalFraction(Schedule(0.1))]
)
def test_latents_without_variance_leave_a_working_codebook(controller):
    codebook = DDCLCodebook(3, 4, temperature=controller, decay=0.0)
    z = torch.full((16, 3), 5.0)
    with pytest.warns(UserWarning, match="1 of the 4 prototypes"):
        codebook.initialize(z)
    for _ in range(3):
        out = codebook(z.requires_grad_())
        out.loss.backward()
        codebook.after_step(out)
        assert out.quantized.isfinite().all()
        assert z.grad.isfinite().all()
        assert codebook.codebook.grad.isfinite().all()
    assert codebook.temperature > 0


def test_a_bfloat16_module_can_take_a_step():
    torch.manual_seed(0)
    codebook = DDCLCodebook(3, 4, pull=0.0).bfloat16()
    z = torch.randn(32, 3, dtype=torch.bfloat16)
    codebook.initialize(z)
    codebook.after_step(codebook(z))
    expected = 4 * np.linalg.eigvalsh(covariance(z.float()))[-1]
    assert codebook.critical_temperature.item() == pytest.approx(expected, rel=0.02)
