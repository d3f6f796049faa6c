"""SharedScaleNorm: one variance for all channels; else batch normalisation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import arguments, command

import train
from models import build_model
from models.shared_scale_norm import SharedScaleNorm
from training.config import TrainConfig

SCALES = torch.tensor([0.1, 1.0, 5.0])[:, None, None]


def latents(seed=0, batch=4, side=6):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, side, side, generator=generator) * SCALES + 7 * SCALES


@settings(deadline=None)
@given(batch=st.integers(1, 5), channels=st.integers(1, 6), side=st.integers(2, 5))
def test_channels_are_centred_and_divided_by_the_root_of_their_mean_variance(batch, channels, side):
    z = torch.randn(batch, channels, side, side, generator=torch.Generator().manual_seed(batch))
    z *= torch.arange(1, channels + 1)[:, None, None]
    out = SharedScaleNorm(channels)(z)
    flat = z.double().numpy().transpose(1, 0, 2, 3).reshape(channels, -1)
    centred = flat - flat.mean(axis=1, keepdims=True)
    expected = centred / np.sqrt(flat.var(axis=1).mean() + 1e-5)
    ours = out.transpose(0, 1).reshape(channels, -1).numpy()
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_one_channel_is_batch_normalisation_in_state_gradient_and_modes():
    ours, theirs = SharedScaleNorm(1), torch.nn.BatchNorm2d(1, affine=False)
    for seed in range(3):
        first, second = (latents(seed)[:, 1:2].requires_grad_() for _ in range(2))
        out, expected = ours(first), theirs(second)
        torch.testing.assert_close(out, expected)
        weights = torch.randn_like(out)
        (out * weights).sum().backward()
        (expected * weights).sum().backward()
        torch.testing.assert_close(first.grad, second.grad, rtol=1e-4, atol=1e-5)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, theirs.state_dict()[name])
    torch.testing.assert_close(ours.eval()(latents(9)[:, :1]), theirs.eval()(latents(9)[:, :1]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype):
    z = latents().to(dtype)
    out = SharedScaleNorm(3)(z)
    assert out.dtype == dtype
    torch.testing.assert_close(out, SharedScaleNorm(3)(z.float()).to(dtype))


def test_a_model_trains_calibrates_and_loads_with_it():
    torch.manual_seed(0)
    for architecture in ("vqvae", "vqvae2"):
        config = {"hidden_channels": 8, "residual_channels": 8, "codebook_dim": 4}
        config |= {"shared_scale": True, "architecture": architecture}
        model = build_model(config)
        norms = [module for module in model.modules() if isinstance(module, SharedScaleNorm)]
        assert len(norms) == len(model.levels)
        batches = [torch.rand(8, 3, 32, 32) for _ in range(3)]
        model.calibrate(batches)
        if architecture == "vqvae":
            raw = [model.encoder(images * 2 - 1) for images in batches]
            variance = torch.stack([z.var(dim=(0, 2, 3), correction=0).mean() for z in raw]).mean()
            assert norms[0].running_var[0].item() == pytest.approx(variance.item(), rel=0.01)
        other = build_model(config)
        other.load_state_dict(model.state_dict())
        images = torch.rand(2, 3, 32, 32)
        assert torch.equal(other.eval()(images).recon, model.eval()(images).recon)


def test_a_shared_scale_without_normalisation_is_refused(tmp_path):
    with pytest.raises(ValueError, match="shared_scale needs normalize_latents"):
        build_model({"shared_scale": True, "normalize_latents": False})
    words = arguments(out=tmp_path / "run")
    context = train.main.make_context("train.py", ["--shared-scale"])
    config = TrainConfig.from_options(shared_scale=context.params["shared_scale"])
    assert config.model_config(1)["shared_scale"]
    result = command(*words, "--shared-scale", "--no-normalize-latents")
    assert result.exit_code == 2
    assert "give --shared-scale or --no-normalize-latents, not both" in result.stderr
    assert not (tmp_path / "run").exists()
