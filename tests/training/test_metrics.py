"""Figures of a split and of images against scikit-image, NumPy and definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio
from torch import Tensor

from eval.report.metrics import image_sums
from models import VQVAE, build_model
from training.metrics import evaluate_split, squared_error_sums

TINY = {"hidden_channels": 8, "residual_channels": 8, "codebook_size": 16, "codebook_dim": 4}
# Float32 images; SSIM itself is computed in float64, there and here.
TOLERANCE = {"mse": 1e-7, "psnr": 1e-4, "ssim": 1e-10}


def byte_images(count: int, size: int = 32, seed: int = 0) -> Tensor:
    """Smooth random pictures: noise would look alike to every model."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 5, 5, generator=generator)
    fine = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bicubic")
    return (fine.clamp(0, 1) * 255).to(torch.uint8)


def model_of(quantizer: str, images: Tensor) -> VQVAE:
    """Prototypes on latents, so that many tokens occur."""
    torch.manual_seed(0)
    model = build_model(TINY | {"quantizer": quantizer})
    model.codebook.initialize(model.calibrate([images.float() / 255]))
    return model.eval()


def ssim_by_definition(a: np.ndarray, b: np.ndarray) -> float:
    """Equation 13 of Wang et al. 2004 at every place where the window fits, for (C, H, W)."""
    offsets = np.arange(11) - 5
    line = np.exp(-(offsets**2) / (2 * 1.5**2))
    window = np.outer(line, line) / line.sum() ** 2
    values = []
    for x, y in zip(a, b, strict=True):
        for top in range(x.shape[0] - 10):
            for left in range(x.shape[1] - 10):
                place = np.s_[top : top + 11, left : left + 11]
                mean_x, mean_y = (window * x[place]).sum(), (window * y[place]).sum()
                var_x = (window * (x[place] - mean_x) ** 2).sum()
                var_y = (window * (y[place] - mean_y) ** 2).sum()
                covariance = (window * (x[place] - mean_x) * (y[place] - mean_y)).sum()
                similarity = (2 * mean_x * mean_y + 0.01**2) * (2 * covariance + 0.03**2)
                scale = (mean_x**2 + mean_y**2 + 0.01**2) * (var_x + var_y + 0.03**2)
                values.append(similarity / scale)
    return float(np.mean(values))


def reference(recon: Tensor, image: Tensor) -> dict[str, float]:
    """scikit-image, and the definition of SSIM, one image at a time, in float64."""
    a, b = (x.double().numpy() for x in (recon, image))
    ssim = ssim_by_definition(a, b)
    psnr = peak_signal_noise_ratio(b, a, data_range=1)
    return {"mse": mean_squared_error(a, b), "psnr": psnr, "ssim": ssim}


def mean_reference(recons: Tensor, images: Tensor) -> dict[str, float]:
    figures = [reference(r, i) for r, i in zip(recons, images, strict=True)]
    return {name: float(np.mean([f[name] for f in figures])) for name in figures[0]}


@pytest.mark.parametrize("size", [(16, 16), (17, 23), (32, 32), (33, 20), (11, 40)])
@pytest.mark.parametrize("noise", [0.003, 0.1, 1.0])
def test_sums_over_images_equal_scikit_image(size, noise):
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(5, 3, *size, generator=generator)
    smooth = torch.linspace(0, 1, size[0])[:, None] * torch.linspace(1, 0, size[1])
    images[:2] = smooth + 0.05 * images[:2] - 0.02
    images[0, :, : size[0] // 2] = 0.25  # half of it is flat
    images[1] = images[1] * 0.01 + 0.5  # little contrast
    images.clamp_(0, 1)
    recons = (images + noise * torch.randn(images.shape, generator=generator)).clamp(0, 1)
    sums = image_sums(recons, images)
    expected = mean_reference(recons, images)
    for name, value in expected.items():
        assert sums[name].dtype == torch.float64
        assert sums[name].item() / 5 == pytest.approx(value, abs=TOLERANCE[name])


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_flat_images(value):
    flat = torch.full((2, 3, 19, 16), value)
    other = torch.rand(2, 3, 19, 16, generator=torch.Generator().manual_seed(2))
    level = torch.full_like(flat, 0.6)
    for recons in (other, level):
        sums, expected = image_sums(recons, flat), mean_reference(recons, flat)
        for name in expected:
            assert sums[name].item() / 2 == pytest.approx(expected[name], abs=TOLERANCE[name])
    same = {name: total.item() / 2 for name, total in image_sums(flat, flat).items()}
    assert same == {"mse": 0, "psnr": 120, "ssim": 1}  # a finite PSNR, where others say infinity


def test_ssim_is_left_out_where_its_window_does_not_fit():
    images = torch.rand(2, 3, 10, 30)
    assert set(image_sums(images, images)) == {"mse", "psnr"}


def test_ssim_is_that_of_images_of_one_channel_too():
    generator = torch.Generator().manual_seed(3)
    images, recons = torch.rand(2, 2, 1, 20, 24, generator=generator)
    expected = [
        ssim_by_definition(r.double().numpy(), i.double().numpy())
        for r, i in zip(recons, images, strict=True)
    ]
    assert image_sums(recons, images)["ssim"].item() == pytest.approx(sum(expected), abs=1e-10)


@pytest.mark.parametrize("quantizer", ["ddcl", "vq-ema"])
def test_a_split_equals_scikit_image_on_its_reconstructions(quantizer):
    data = byte_images(12)
    model = model_of(quantizer, data)
    images = data.float() / 255
    figures = evaluate_split(model, data, batch_size=5, image_sums=image_sums)
    for mode in ("soft", "argmax"):
        recons = model.reconstruct(images, mode)
        for name, value in mean_reference(recons, images).items():
            assert figures[f"{name}_{mode}"] == pytest.approx(value, abs=10 * TOLERANCE["mse"])
    without_ssim = evaluate_split(model, data, batch_size=5)
    assert set(figures) - set(without_ssim) == {"ssim_soft", "ssim_argmax"}
    assert without_ssim["mse_argmax"] == figures["mse_argmax"]


@pytest.mark.parametrize("quantizer", ["ddcl", "vq", "vq-ema", "none"])
def test_figures_do_not_depend_on_the_batch_size(quantizer):
    data = byte_images(23)
    model = model_of(quantizer, data)
    whole = evaluate_split(model, data, batch_size=23, image_sums=image_sums)
    for batch_size in (1, 5, 22, 1000):
        parts = evaluate_split(model, data, batch_size=batch_size, image_sums=image_sums)
        assert parts.keys() == whole.keys()
        # Divergence of a batch's usage from uniform is a figure of batches by definition.
        for name in whole.keys() - {"images_per_second", "usage_kl"}:
            expected = whole[name] and pytest.approx(whole[name], rel=1e-5, abs=1e-7)
            assert parts[name] == expected, name


@pytest.mark.parametrize("quantizer", ["ddcl", "vq-ema"])
def test_usage_is_that_of_the_whole_split(quantizer):
    data = byte_images(21)
    model = model_of(quantizer, data)
    tokens = model.tokens(data.float() / 255).numpy().ravel()
    counts = np.bincount(tokens, minlength=16)
    shares = counts[counts > 0] / counts.sum()
    figures = evaluate_split(model, data, batch_size=4)
    assert figures["perplexity"] == pytest.approx(math.exp(-(shares * np.log(shares)).sum()))
    assert figures["utilization"] == (counts > 0).mean()
    assert figures["dead_codes"] == (counts == 0).sum()
    # Of images one by one it is another number.
    of_each = [evaluate_split(model, image[None])["perplexity"] for image in data]
    assert np.mean(of_each) < figures["perplexity"] - 0.1


def test_losses_are_those_of_the_definitions():
    data = byte_images(10)
    model = model_of("ddcl", data)
    z = model.encode(data.float() / 255).detach().double().movedim(1, -1).reshape(-1, 4)
    prototypes = model.codebook.codebook.detach().double()
    squared = torch.cdist(z, prototypes).square()
    q = torch.softmax(-squared / model.codebook.temperature.double(), dim=1)
    loss_q = (q * squared).sum(dim=1).mean() / 4
    loss_ols = (z - q @ prototypes).square().mean()
    entropy = torch.special.entr(q).sum(dim=1).mean()
    figures = evaluate_split(model, data, batch_size=3)
    assert figures["loss_q"] == pytest.approx(loss_q.item(), rel=1e-4)
    assert figures["loss_ols"] == pytest.approx(loss_ols.item(), rel=1e-4)
    assert figures["variance"] == pytest.approx((loss_q - loss_ols).item(), rel=1e-4)
    assert figures["codes_per_token"] == pytest.approx(entropy.exp().item(), rel=1e-4)
    codebook = model.codebook
    assert figures["temperature"] == codebook.temperature.item()
    ratio = codebook.temperature.item() / codebook.critical_temperature.item()
    assert figures["temperature_ratio"] == pytest.approx(ratio)


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_leaves_the_model_as_it_was(training):
    data = byte_images(6)
    model = model_of("ddcl", data).train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = evaluate_split(model, data)
    assert model.training == training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    second = evaluate_split(model.eval(), data)
    assert first["mse_argmax"] == second["mse_argmax"]


def test_squared_errors_by_hand():
    images = torch.zeros(2, 1, 2, 2)
    recons = torch.tensor([[[[0.1, 0.1], [0.1, 0.1]]], [[[1.0, 0.0], [0.0, 0.0]]]])
    sums = squared_error_sums(recons, images)
    assert sums["mse"].item() == pytest.approx(0.01 + 0.25)
    # PSNR of each image, then the sum: 20 dB and 10 log10 4.
    assert sums["psnr"].item() == pytest.approx(20 + 6.0206, abs=1e-4)
