"""models: shapes, injected parts, the config dict, normalisation, soft and argmax."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from models import VQVAE, IdentityCodebook, build_model
from models.build import DEFAULTS, QUANTIZERS
from models.layers import ResidualBlock
from softvq import (
    CodesPerToken,
    ConstantTemperature,
    CriticalFraction,
    DDCLCodebook,
    DDCLEMCodebook,
    VQCodebook,
    VQEMACodebook,
)

TINY = {"hidden_channels": 8, "residual_channels": 6, "codebook_size": 16, "codebook_dim": 5}


def tiny(**config) -> VQVAE:
    torch.manual_seed(0)
    return build_model(TINY | config)


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def trained(quantizer: str) -> VQVAE:
    """Prototypes on latents and running statistics of the data, in eval mode."""
    model = tiny(quantizer=quantizer)
    model.codebook.initialize(model.calibrate(images(16, 3, 32, 32, seed=s) for s in range(4)))
    return model.eval()


@pytest.mark.parametrize("quantizer", sorted(QUANTIZERS))
@pytest.mark.parametrize(("height", "width"), [(32, 32), (8, 20), (64, 48)])
def test_latents_have_a_quarter_of_the_sides(quantizer, height, width):
    model = tiny(quantizer=quantizer, in_channels=2)
    batch = images(3, 2, height, width)
    recon, code = model(batch)
    assert recon.shape == batch.shape
    assert code.quantized.shape == (3, 5, height // 4, width // 4)
    assert code.indices.shape == (3, height // 4, width // 4)
    assert code.indices.dtype == torch.int64
    assert model.encode(batch).shape == code.quantized.shape
    assert model.decode(code.quantized).shape == batch.shape
    assert model.tokens(batch).shape == code.indices.shape


def test_a_residual_block_adds_to_its_input_and_leaves_it_alone():
    torch.manual_seed(0)
    block = ResidualBlock(4, 3)
    x = torch.randn(2, 4, 5, 5)
    before = x.clone()
    first, second = block.layers[1], block.layers[3]
    expected = x + F.conv2d(
        F.conv2d(x.clamp(min=0), first.weight, padding=1).clamp(min=0), second.weight
    )
    torch.testing.assert_close(block(x), expected)
    assert torch.equal(x, before)
    nn.init.zeros_(second.weight)
    assert torch.equal(block(x), x)


def test_parts_are_injected():
    model = VQVAE(
        nn.AvgPool2d(4),
        IdentityCodebook(3, channel_first=True),
        nn.Upsample(scale_factor=4),
        normalize_latents=False,
    )
    batch = images(2, 3, 8, 8)
    blocks = batch.unfold(2, 4, 4).unfold(3, 4, 4).mean(dim=(4, 5))
    expected = blocks.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)
    torch.testing.assert_close(model(batch).recon, expected)
    torch.testing.assert_close(model.encode(batch), 2 * blocks - 1)


def test_the_config_rejects_unknown_keys_and_quantizers():
    with pytest.raises(ValueError, match=r"unknown keys.*'codebok_size'.*codebook_size"):
        build_model({"codebok_size": 3})
    with pytest.raises(ValueError, match=r"'kmeans'; known: \['ddcl', 'ddcl-em'.*'vq-ema'"):
        build_model({"quantizer": "kmeans"})


def test_the_config_reaches_the_codebook():
    kinds = {"ddcl": DDCLCodebook, "ddcl-em": DDCLEMCodebook}
    kinds |= {"vq": VQCodebook, "vq-ema": VQEMACodebook}
    own = {"ddcl": {"noise": 0.2, "pull": 0.3}, "ddcl-em": {"usage_weight": 0.2, "balance": 0.4}}
    for quantizer, kind in kinds.items():
        options = {"commitment": 0.7, "restart_threshold": 0.3, "seed": 11, "decay": 0.8}
        options |= own.get(quantizer, {})
        codebook = tiny(quantizer=quantizer, **options).codebook
        assert type(codebook) is kind
        assert codebook.channel_first
        assert (codebook.dim, codebook.codebook_size) == (5, 16)
        assert {name: getattr(codebook, name) for name in options} == options
    with pytest.raises(ValueError, match=r"unknown keys in the model's config: \['balance'\]"):
        tiny(quantizer="vq", balance=0.4)
    assert type(tiny(quantizer="none").codebook) is IdentityCodebook


def test_the_config_sets_the_temperature():
    kinds = ConstantTemperature, CriticalFraction, CodesPerToken
    schedule = {
        "temperature_start": 4.0,
        "temperature_end": 1.0,
        "temperature_hold_steps": 5,
        "temperature_steps": 10,
    }
    for mode, kind in zip(("constant", "critical", "codes"), kinds, strict=True):
        controller = tiny(temperature_mode=mode, **schedule).codebook.controller
        assert type(controller) is kind
        assert [controller.schedule(step) for step in (0, 5, 10, 99)] == [4, 4, 1, 1]
        assert 1 < controller.schedule(7) < 4


def test_the_config_sets_the_sizes():
    def size(**config) -> int:
        return sum(p.numel() for p in tiny(quantizer="ddcl", **config).parameters())

    for name, more in [
        ("in_channels", 4),
        ("hidden_channels", 10),
        ("residual_channels", 7),
        ("residual_blocks", 3),
        ("codebook_size", 17),
        ("codebook_dim", 6),
    ]:
        assert size(**{name: more}) > size(), name
    default = build_model({"quantizer": "ddcl"})  # whose prototypes are a parameter
    assert default.codebook.codebook.shape == (512, 64)
    assert DEFAULTS["quantizer"] == "ddcl-em"


def test_latents_are_standardised_in_train_mode():
    model = tiny()
    batch = images(8, 3, 32, 32)
    z = model.encode(batch)
    torch.testing.assert_close(z.mean(dim=(0, 2, 3)), torch.zeros(5), atol=1e-5, rtol=0)
    raw = model.encoder(batch * 2 - 1)
    variance = raw.var(dim=(0, 2, 3), unbiased=False)
    expected = (raw - raw.mean(dim=(0, 2, 3), keepdim=True)) / (
        variance.view(1, -1, 1, 1) + 1e-5
    ).sqrt()
    torch.testing.assert_close(z, expected, atol=1e-4, rtol=1e-4)
    assert not list(model.normalize.parameters())


def test_running_statistics_standardise_in_eval_mode_and_are_kept_still():
    model = tiny()
    batch = images(8, 3, 32, 32)
    with torch.no_grad():
        for _ in range(150):
            standardised = model.encode(batch)
        model.eval()
        buffers = copy.deepcopy(model.state_dict())
        # The running variance is the unbiased one, of 512 latents.
        torch.testing.assert_close(model.encode(batch), standardised, atol=2e-3, rtol=4e-3)
        other = model.encode(images(8, 3, 32, 32, seed=1) * 0.2)
    assert other.mean(dim=(0, 2, 3)).abs().max() > 0.1  # not standardised by its own batch
    for name, value in model.state_dict().items():
        assert torch.equal(value, buffers[name]), name


def test_latents_stay_as_they_are_without_normalisation():
    model = tiny(normalize_latents=False)
    batch = images(4, 3, 32, 32)
    assert torch.equal(model.encode(batch), model.encoder(batch * 2 - 1))


@pytest.mark.parametrize("quantizer", ["ddcl", "vq", "vq-ema"])
def test_reconstruct_goes_through_the_soft_code_or_the_tokens(quantizer):
    model = trained(quantizer)
    batch = images(4, 3, 32, 32, seed=99)
    z = model.encode(batch)
    distances = torch.cdist(z.movedim(1, -1).reshape(-1, 5), model.codebook.codebook)
    tokens = model.tokens(batch)
    assert torch.equal(tokens.flatten(), distances.argmin(dim=1))
    assert len(tokens.unique()) > 4
    nearest = model.codebook.codebook[tokens].movedim(-1, 1)
    with torch.no_grad():
        expected = {
            "soft": model.decoder(model.codebook(z).quantized) / 2 + 0.5,
            "argmax": model.decoder(nearest) / 2 + 0.5,
        }
    for mode, unclamped in expected.items():
        torch.testing.assert_close(model.reconstruct(batch, mode), unclamped.clamp(0, 1))
    torch.testing.assert_close(model(batch).recon, expected["soft"])
    assert torch.equal(model.decode_tokens(tokens), model.reconstruct(batch, "argmax"))
    assert torch.equal(model.reconstruct(batch), model.reconstruct(batch, "argmax"))
    same = torch.allclose(model.reconstruct(batch, "soft"), model.reconstruct(batch), atol=1e-6)
    assert same == (quantizer != "ddcl")


def test_reconstructions_are_clamped_and_training_outputs_are_not():
    model = trained("ddcl")
    nn.init.constant_(model.decoder[-1].bias, 5.0)
    batch = images(2, 3, 32, 32)
    assert model(batch).recon.max() > 1
    for mode in ("soft", "argmax"):
        recon = model.reconstruct(batch, mode)
        assert not recon.requires_grad
        assert recon.max() == 1
    nn.init.constant_(model.decoder[-1].bias, -5.0)
    assert model(batch).recon.min() < 0
    assert model.reconstruct(batch, "soft").min() == model.reconstruct(batch).min() == 0


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match=r'"soft" or "argmax", got \'hard\''):
        tiny().reconstruct(images(1, 3, 8, 8), "hard")


@pytest.mark.parametrize("shape", [(1, 3, 30, 32), (1, 3, 32, 31), (3, 32, 32)])
def test_a_wrong_image_size_is_named(shape):
    model = tiny()
    for call in (model, model.tokens, model.reconstruct):
        with pytest.raises(ValueError, match=rf"multiples of 4.*{str(shape)[1:-1]}"):
            call(torch.zeros(shape))


@pytest.mark.parametrize("quantizer", sorted(QUANTIZERS))
def test_every_part_learns(quantizer):
    model = tiny(quantizer=quantizer)
    if quantizer == "vqp-bridge":  # it starts as the identity, by a last layer of zeros
        torch.nn.init.normal_(model.codebook.module._codebook.vq_bridge.recover.weight)
    batch = images(4, 3, 32, 32)
    recon, code = model(batch)
    (F.mse_loss(recon, batch) + code.loss).backward()
    for name, parameter in model.named_parameters():
        if quantizer == "vq" and name == "codebook.codebook":
            used = code.indices.unique()
            assert parameter.grad[used].abs().sum(dim=1).min() > 0
        else:
            assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("quantizer", sorted(QUANTIZERS))
def test_weights_follow_the_seed_and_load_strictly(quantizer):
    model, again = tiny(quantizer=quantizer), tiny(quantizer=quantizer)
    torch.manual_seed(1)
    other = build_model(TINY | {"quantizer": quantizer})
    weight = model.encoder[0].weight
    assert torch.equal(weight, again.encoder[0].weight)
    assert not torch.equal(weight, other.encoder[0].weight)
    batch = images(2, 3, 32, 32)
    model.eval()(batch)  # vector-quantize-pytorch places its codes in the first call
    other.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(batch).recon, other.eval()(batch).recon)


def test_calibration_makes_eval_statistics_those_of_the_batches():
    torch.manual_seed(0)
    model = build_model({"hidden_channels": 8, "residual_channels": 8, "codebook_dim": 4})
    batches = [torch.rand(16, 3, 32, 32) for _ in range(3)]
    before = model.normalize.momentum
    latents = model.calibrate(batches)
    raw = [model.encoder(images * 2 - 1) for images in batches]
    means = torch.stack([z.mean(dim=(0, 2, 3)) for z in raw]).mean(dim=0)
    variances = torch.stack([z.var(dim=(0, 2, 3)) for z in raw]).mean(dim=0)
    torch.testing.assert_close(model.normalize.running_mean, means)
    torch.testing.assert_close(model.normalize.running_var, variances)
    assert model.normalize.momentum == before
    assert model.training
    for z in latents:
        torch.testing.assert_close(z.mean(dim=(0, 2, 3)), torch.zeros(4), atol=1e-5, rtol=0)
    model.eval().calibrate(batches)
    assert not model.normalize.training
