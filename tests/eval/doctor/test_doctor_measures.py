"""What the doctor measures, against NumPy, SciPy and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from measures import normal
from scipy.spatial import cKDTree

from eval.doctor import geometry, usage
from eval.doctor.gradient import gradient_flow
from eval.doctor.measure import measure
from models import build_model
from softvq.functional import assignment
from softvq.geometry import neighbour_distances, relative_spread


@given(st.integers(2, 40), st.integers(1, 6), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_neighbours_are_those_of_a_tree(size, dim, seed):
    points = normal(size, dim, seed=seed)
    distance, other = neighbour_distances(points)
    expected, who = cKDTree(points.numpy()).query(points.numpy(), k=2)
    np.testing.assert_allclose(distance.numpy(), expected[:, 1], rtol=1e-4)
    assert (other.numpy() == who[:, 1]).mean() == 1


@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_dead_since_by_going_through_the_epochs(epochs, size, seed):
    generator = torch.Generator().manual_seed(seed)
    history = torch.randint(0, 2, (epochs, size), generator=generator)
    expected = []
    for code in range(size):
        epoch = epochs
        while epoch > 0 and history[epoch - 1, code] == 0:
            epoch -= 1
        expected.append(0 if epoch == epochs else epoch + 1)
    assert usage.dead_since(history).tolist() == expected


def test_participation_ratio_and_separation_by_hand():
    eigenvalues = np.array([3.0, 2.0, 0.5, 0.0])
    turn = np.linalg.qr(normal(4, 4).numpy())[0]
    covariance = torch.from_numpy(turn @ np.diag(eigenvalues) @ turn.T)
    expected = eigenvalues.sum() ** 2 / (eigenvalues**2).sum()
    assert geometry.participation_ratio(covariance) == pytest.approx(expected)
    prototypes, latents = normal(7, 3).double(), normal(99, 3, seed=1).double() * 2
    spread = ((prototypes - prototypes.mean(0)) ** 2).sum(1).mean().item()
    largest = np.linalg.eigvalsh(np.cov(latents.numpy().T, bias=True))[-1]
    measured = relative_spread(prototypes, latents)
    assert measured == pytest.approx(math.sqrt(spread / largest), rel=1e-6)


def tiny(**options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    small = {"hidden_channels": 32, "residual_channels": 4, "codebook_size": 8, "codebook_dim": 4}
    return build_model(small | options).eval()


def test_the_flow_through_a_soft_code_is_its_jacobian():
    """Its closed form: 2 / T times the covariance of the prototypes under q."""
    model = tiny(quantizer="ddcl", noise=0.0, temperature_mode="constant", temperature_start=0.7)
    images = torch.rand(3, 3, 16, 16)
    with torch.no_grad():
        z = model.encode(images)
        code = model.codebook(z).quantized
    code = code.requires_grad_()
    loss = torch.nn.functional.mse_loss(model.decode(code), images)
    (g,) = torch.autograd.grad(loss, code)
    g, flat = (t.detach().movedim(1, -1).reshape(-1, 4).double() for t in (g, z))
    prototypes = model.codebook.codebook.detach().double()
    q = assignment(flat, prototypes, 0.7)  # (N, K)
    mean = q @ prototypes
    second = torch.einsum("nk,kd,ke->nde", q, prototypes, prototypes)
    jacobian = (second - mean[:, :, None] * mean[:, None, :]) * 2 / 0.7
    at_latents = torch.einsum("nde,ne->nd", jacobian, g)
    (flow,) = gradient_flow(model, images)
    assert flow.ratio == pytest.approx(float(at_latents.norm() / g.norm()), rel=1e-3)
    silent = (at_latents.norm(dim=1) < 0.01 * g.norm(dim=1)).double().mean()
    assert flow.silent == pytest.approx(float(silent))


@pytest.mark.parametrize("quantizer", ["ddcl-em", "vq", "vq-ema", "vqp-ema", "simvq", "fsq", "lfq"])
def test_straight_through_codebooks_let_the_gradient_pass(quantizer):
    model = tiny(quantizer=quantizer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (flow,) = gradient_flow(model, torch.rand(2, 3, 16, 16))
    assert flow.silent < 0.5
    if quantizer not in ("fsq", "lfq"):  # these have projections around the code
        # SimVQ turns the gradient with the code, and rescales it.
        assert flow.ratio == pytest.approx(1.0, rel=0.1 if quantizer == "simvq" else 1e-4)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("levels", [{"level_pools": [2, 1]}, {"architecture": "vqvae2"}])
@pytest.mark.parametrize("quantizer", ["ddcl", "ddcl-em", "vq-ema"])
def test_flows_of_several_levels(levels, quantizer):
    flows = gradient_flow(tiny(quantizer=quantizer, **levels), torch.rand(2, 3, 16, 16))
    assert len(flows) == (1 if "level_pools" in levels else 2)
    assert all(math.isfinite(flow.ratio) and flow.ratio > 0 for flow in flows)


def test_what_is_measured_by_hand():
    model = tiny(quantizer="ddcl")
    images = torch.randint(0, 256, (7, 3, 16, 16), dtype=torch.uint8)
    measured = measure(model, images, batch_size=3)
    batch = images.float() / 255
    with torch.no_grad():
        out = model(batch)
        errors = {
            "soft": (out.recon.clamp(0, 1) - batch).square().mean(),
            "argmax": (model.reconstruct(batch, "argmax") - batch).square().mean(),
            "mean": (batch.mean(0) - batch).square().mean(),
        }
    for name, error in errors.items():
        assert getattr(measured, f"mse_{name}") == pytest.approx(float(error), rel=1e-5)
    (level,) = measured.levels
    assert measured.tokens_per_image == [16]
    assert torch.equal(level.counts, torch.bincount(out.code.indices.flatten(), minlength=8))
    assert level.loss_q == pytest.approx(float(out.code.losses["loss_q"]), rel=1e-5)
    assert level.codes_per_token == pytest.approx(float(out.code.codes_per_token), rel=1e-5)
    torch.testing.assert_close(level.latents, out.code.latents)
    z = model.encode(batch).detach().movedim(1, 0).flatten(1)
    (norm,) = measured.norms
    torch.testing.assert_close(norm.mean.float(), z.mean(1))
    torch.testing.assert_close(norm.variance.float(), z.var(1, correction=0), rtol=1e-3, atol=1e-4)


def test_a_constant_channel_is_no_mismatch():
    model = tiny(quantizer="none")
    convolution = [m for m in model.encoder.modules() if isinstance(m, torch.nn.Conv2d)][-1]
    with torch.no_grad():
        convolution.weight[0] = 0
    images = torch.randint(0, 256, (40, 3, 16, 16), dtype=torch.uint8)
    model.calibrate([images.float() / 255])
    (norm,) = measure(model, images).norms
    assert geometry.check_norm_statistics(*norm) is None
