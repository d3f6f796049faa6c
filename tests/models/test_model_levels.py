"""Models of several levels: tokens, gradients, what each level sees."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from models import VQVAE2, build_model
from models.build import QUANTIZERS
from training.metrics import finish_code_figures, trackers_of

# Two of vector-quantize-pytorch need powers of two, which not all of these levels are.
OWN_AND_PEERS = sorted(set(QUANTIZERS) - {"none", "fsq", "lfq"})
TINY = {"hidden_channels": 8, "residual_channels": 6, "codebook_size": 16, "codebook_dim": 5}
SHAPES = {
    "residual": {"level_pools": [1, 1]},
    "pyramid": {"level_pools": [4, 2, 1], "level_sizes": [5, 9, 16]},
    "odd": {"level_pools": [5, 3], "level_sizes": [7, 16]},
    "vqvae2": {"architecture": "vqvae2", "level_sizes": [7, 16]},
}


def images(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def model_of(shape, **config):
    torch.manual_seed(0)
    model = build_model(TINY | SHAPES[shape] | config)
    model.initialize([images(16, 3, 32, 32, seed=s) for s in range(4)])
    return model


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("quantizer", OWN_AND_PEERS)
def test_tokens_of_all_and_of_the_first_levels_are_pictures(shape, quantizer):
    model = model_of(shape, quantizer=quantizer).eval()
    batch = images(3, 3, 32, 32, seed=9)
    tokens = model.tokens(batch)
    parts = model.split(tokens)
    assert [tuple(part.shape[1:]) for part in parts] == model.grids(32, 32)
    if shape == "residual":
        assert tokens.shape == (3, 8, 8, 2)
    hard = model(batch, hard=True)
    decoded = model.decode_tokens(tokens, (32, 32))
    torch.testing.assert_close(decoded, hard.recon.detach().clamp(0, 1))
    pairs = zip(model.split(hard.code.indices), parts, strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert torch.equal(model.reconstruct(batch), decoded)
    for count in range(1, len(parts) + 1):
        prefix = model.decode_tokens(parts[:count], (32, 32))
        assert prefix.shape == batch.shape
    with pytest.raises(ValueError, match="levels"):
        model.decode_tokens([*parts, parts[-1]])
    with pytest.raises(ValueError, match="multiples of"):
        model.tokens(images(1, 3, 33, 32))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("quantizer", ["ddcl", "ddcl-em", "vq-ema"])
def test_every_part_learns_and_every_level_moves(shape, quantizer):
    model = model_of(shape, quantizer=quantizer)
    batch = images(8, 3, 32, 32)
    recon, code = model(batch)
    (F.mse_loss(recon, batch) + code.loss).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().max() > 0, name
    before = [level.steps.clone() for level in model.levels]
    model.after_step(code)
    assert all(level.steps == old + 1 for level, old in zip(model.levels, before, strict=True))


def test_a_vqvae2_conditions_its_bottom_on_the_top_and_decodes_both():
    model = model_of("vqvae2").eval()
    assert isinstance(model, VQVAE2)
    batch = images(2, 3, 32, 32, seed=3)
    top, bottom = model.latents(batch)
    assert top.shape == (2, 5, 4, 4)
    assert bottom.shape == (2, 5, 8, 8)
    with torch.no_grad():
        model.top_codebook.codebook.mul_(3)
    changed = model.latents(batch)
    assert torch.equal(changed[0], top)
    assert not torch.allclose(changed[1], bottom)
    tokens = model.tokens(batch)
    other = [(tokens[0] + 1) % 7, (tokens[1] + 1) % 16]
    plain = model.decode_tokens(tokens)
    assert not torch.allclose(model.decode_tokens([other[0], tokens[1]]), plain)
    assert not torch.allclose(model.decode_tokens([tokens[0], other[1]]), plain)


def test_a_dropped_bottom_level_does_not_see_the_image():
    model = model_of("vqvae2", level_dropout=1 - 1e-9).train()
    recon, code = model(images(4, 3, 32, 32))
    assert (code.indices[1] == -1).all()
    assert (code.indices[0] >= 0).all()
    with torch.no_grad():
        alone = model.decode_codes([code.levels[0].quantized.movedim(1, -1)])
    torch.testing.assert_close(recon, alone)
    assert (model.eval()(images(4, 3, 32, 32)).code.indices[1] >= 0).all()


def test_only_the_last_level_pulls_the_latents_where_prototypes_learn_without():
    for quantizer, expected in (("ddcl-em", [0, 0, 0.7]), ("vq", [0, 0, 0.7]), ("ddcl", [0.7] * 3)):
        model = model_of("pyramid", quantizer=quantizer, commitment=0.7)
        assert [level.commitment for level in model.levels] == expected


def test_wrong_levels_are_refused():
    for config, words in (
        ({"level_pools": [1, 1], "level_sizes": [4]}, "2 levels need a size each"),
        ({"level_pools": [1, 1], "quantizer": "none"}, "and a quantizer"),
        ({"level_sizes": [4]}, "need level_pools"),
        ({"architecture": "vqvae2", "level_pools": [2, 1]}, "level_pools must be None"),
        ({"architecture": "vit"}, "unknown architecture 'vit'"),
    ):
        with pytest.raises(ValueError, match=words):
            build_model(TINY | config)


def test_batch_norms_of_both_levels_are_calibrated():
    model = model_of("vqvae2")
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 2
    model.calibrate([images(8, 3, 32, 32, seed=s) for s in range(3)])
    assert all(int(norm.num_batches_tracked) == 3 for norm in norms)
    assert all(norm.momentum == 0.1 for norm in norms)


def test_tokens_of_dropped_levels_decode_to_zero_and_others_are_refused():
    model = model_of("residual", level_dropout=1 - 1e-9).train()
    with torch.no_grad():
        _, code = model(images(6, 3, 32, 32))
    assert (code.indices[..., 1] == -1).any()
    codes = model.codes(code.indices)
    dropped = code.indices[..., 1] == -1
    assert codes[1][dropped].count_nonzero() == 0
    for bad in (-2, 16):
        with pytest.raises(IndexError, match="indices must lie in"):
            model.decode_tokens(torch.full((1, 8, 8, 2), bad))


def test_figures_of_a_level_are_of_the_items_it_saw():
    model = model_of("residual", quantizer="vq-ema", level_dropout=0.9).train()
    batches = [images(2, 3, 32, 32, seed=seed) for seed in range(12)]
    sums, seen, tokens = {}, 0.0, 0
    for seed, batch in enumerate(batches):
        torch.manual_seed(seed)
        code = model(batch).code
        for name, value in code.log_terms().items():
            sums[name] = sums.get(name, 0.0) + float(value) / len(batches)
        kept = int((code.levels[1].indices >= 0).sum())
        seen += float(code.levels[1].losses["loss_q"].detach()) * kept
        tokens += kept
    trackers = trackers_of(model)
    for tracker in trackers:
        tracker.update(torch.zeros(1, dtype=torch.int64))
    figures = finish_code_figures(sums, trackers, model)
    assert 0 < tokens < 12 * 2 * 64
    assert figures["levels"][1]["loss_q"] == pytest.approx(seen / tokens, rel=1e-5)


def test_nothing_moves_when_one_level_s_latents_are_not_finite():
    for shape in ("residual", "vqvae2"):
        model = model_of(shape)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        code = model.eval()(images(2, 3, 32, 32)).code
        code.levels[1].latents[0, 0] = math.nan
        with pytest.raises(FloatingPointError):
            model.after_step(code)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
