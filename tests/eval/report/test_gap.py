"""Top-k decoding, bounds on the gap, and the refit decoder, against NumPy and each other."""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from eval.report.gap import TOP, GapMeter, LevelGap, top_assignments, top_k_codes
from eval.report.refit import refit_decoder
from models import ImageTokenizer, build_model
from training.metrics import evaluate_split

TINY = {"hidden_channels": 8, "residual_channels": 8, "codebook_size": 16, "codebook_dim": 4}
KINDS = {
    "one level": {},
    "em": {"quantizer": "ddcl-em"},
    "stack": {"level_pools": [2, 1]},
    "em stack": {"level_pools": [1, 1], "quantizer": "ddcl-em"},
    "vqvae2": {"architecture": "vqvae2"},
}


def images(count: int, seed: int = 0) -> Tensor:
    coarse = torch.rand(count, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
    fine = torch.nn.functional.interpolate(coarse, size=(32, 32), mode="bicubic")
    return (fine.clamp(0, 1) * 255).to(torch.uint8)


def model_of(kind: str, warm: float = 3.0) -> ImageTokenizer:
    """Prototypes on latents; far more than one code per token."""
    torch.manual_seed(0)
    model = build_model(TINY | {"quantizer": "ddcl"} | KINDS[kind])
    model.initialize([images(32).float() / 255])
    for level in model.levels:
        level.temperature.mul_(warm)
    return model.eval()


@given(
    n=st.integers(1, 40), size=st.integers(1, 20), dim=st.integers(1, 5), k=st.integers(1, 25),
    temperature=st.floats(1e-2, 1e2), seed=st.integers(0, 99),
)  # fmt: skip
def test_top_assignments_are_the_largest_of_the_softmax(n, size, dim, k, temperature, seed):
    rng = np.random.default_rng(seed)
    z, codebook = rng.normal(size=(n, dim)), rng.normal(size=(size, dim))
    top = top_assignments(torch.from_numpy(z), torch.from_numpy(codebook), temperature, k)
    logits = -((z[:, None] - codebook) ** 2).sum(axis=2) / temperature
    q = np.exp(logits - logits.max(axis=1, keepdims=True))
    q /= q.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(top.q.numpy(), -np.sort(-q, axis=1)[:, :k], atol=1e-9)
    np.testing.assert_allclose(np.take_along_axis(q, top.indices.numpy(), 1), top.q, atol=1e-9)


def test_blocks_change_nothing(monkeypatch):
    z, codebook = torch.randn(50, 3), torch.randn(8, 3)
    whole = top_assignments(z, codebook, 0.5, 4)
    monkeypatch.setattr("eval.report.gap._BLOCK", 24)
    parts = top_assignments(z, codebook, 0.5, 4)
    assert torch.allclose(whole.q, parts.q)
    assert torch.equal(whole.indices, parts.indices)


def test_a_mix_of_two_by_hand():
    model = model_of("one level")
    batch = images(3).float() / 255
    level = model.levels[0]
    z = model.encode(batch).movedim(1, -1).reshape(-1, 4).double().detach().numpy()
    p = level.codebook.detach().double().numpy()
    d = ((z[:, None] - p) ** 2).sum(axis=2)
    order = np.argsort(d, axis=1)[:, :2]
    weights = np.exp(-np.take_along_axis(d, order, 1) / level.temperature.item())
    weights /= weights.sum(axis=1, keepdims=True)
    expected = (weights[..., None] * p[order]).sum(axis=1)
    with top_k_codes(model, 2):
        out = level(model.encode(batch))
    actual = out.quantized.movedim(1, -1).reshape(-1, 4)
    np.testing.assert_allclose(actual.detach().numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_one_is_the_token_and_all_are_the_soft_code(kind):
    model = model_of(kind)
    batch = images(4).float() / 255
    soft = model(batch).recon
    for k, expected in ((1, model(batch, hard=True).recon), (16, soft)):
        with top_k_codes(model, k):
            actual = model(batch).recon
        assert torch.allclose(actual, expected, atol=2e-5)
    assert not torch.allclose(soft, model(batch, hard=True).recon, atol=1e-3)
    assert torch.equal(model(batch).recon, soft)  # nothing is left behind


def test_hooks_are_gone_after_an_error():
    model = model_of("one level")
    with pytest.raises(RuntimeError, match="stop"), top_k_codes(model, 1):
        raise RuntimeError("stop")
    assert not model.levels[0]._forward_hooks
    with pytest.raises(ValueError, match="k must be at least 1, got 0"), top_k_codes(model, 0):
        pass


@pytest.mark.parametrize("warm", [0.05, 1.0, 5.0])
def test_level_gap_is_numpys_and_keeps_its_bounds(warm):
    model = model_of("one level", warm)
    level = model.levels[0]
    z = model.encode(images(6).float() / 255).detach()
    gap = LevelGap(level)
    for part in z.split(2):
        gap.update(level(part))
    figures = gap.compute()
    flat = z.movedim(1, -1).reshape(-1, 4).double().numpy()
    p = level.codebook.detach().double().numpy()
    d = ((flat[:, None] - p) ** 2).sum(axis=2)
    q = np.exp(-(d - d.min(axis=1, keepdims=True)) / level.temperature.item())
    q /= q.sum(axis=1, keepdims=True)
    soft = q @ p
    nearest = p[d.argmin(axis=1)]
    variance = (q * ((p - soft[:, None]) ** 2).sum(axis=2)).sum(axis=1)
    ols = ((flat - soft) ** 2).sum(axis=1)
    expected = {
        "argmax_distance": ((nearest - soft) ** 2).sum(axis=1).mean() / 4,
        "argmax_distance_bound": (variance / q.max(axis=1)).mean() / 4,
        "error_added": (d.min(axis=1) - ols).mean() / 4,
        "variance": variance.mean() / 4,
        "largest_q": q.max(axis=1).mean(),
    }
    for name, value in expected.items():
        assert figures[name] == pytest.approx(value, rel=1e-4, abs=1e-6)
    for k in TOP:
        top = -np.sort(-q, axis=1)[:, :k]
        top /= top.sum(axis=1, keepdims=True)
        bits = -(top * np.log2(np.maximum(top, 1e-300))).sum(axis=1).mean()
        assert figures["top_k_bits"][str(k)] == pytest.approx(bits, abs=1e-4)
    assert figures["argmax_distance"] <= figures["argmax_distance_bound"]
    assert figures["error_added"] <= figures["variance"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_has_every_way_to_decode_with_its_own_figures(kind):
    model, data = model_of(kind), images(10)
    meter = GapMeter(model, model)
    figures = evaluate_split(
        model, data, batch_size=4, decoders=meter.decoders, observers=[meter.observe]
    )
    tokens = [t.numel() for t in model.split(model.tokens(data[:1].float() / 255))]
    rows = {row["decode"]: row for row in meter.rows(figures, tokens)}
    names = ["soft", "top-8", "top-4", "top-2", "argmax", "argmax, decoder refit"]
    assert list(rows) == names
    for name, k in (("top-8", 8), ("top-4", 4), ("top-2", 2)):
        with top_k_codes(model, k), torch.no_grad():
            recon = model(data.float() / 255).recon.clamp(0, 1)
        mse = (recon - data.float() / 255).square().mean().item()
        assert rows[name]["mse"] == pytest.approx(mse, rel=1e-5)
        assert 0 < rows[name]["bits_assignment"] <= math.log2(k)
        assert rows[name]["bits_log2_k"] is None
    for name in ("soft", "argmax"):
        assert rows[name]["mse"] == figures[f"mse_{name}"]
    assert rows["argmax"]["bits_log2_k"] == 4
    assert 0 < rows["argmax"]["bits_entropy"] <= 4
    assert rows["argmax"]["bits_assignment"] == 0
    assert rows["argmax, decoder refit"]["mse"] == rows["argmax"]["mse"]  # not refit at all here
    measured = {f"{name}_{decoder}" for name in ("mse", "psnr") for decoder in meter.decoders}
    assert measured <= figures.keys()
    assert measured <= meter.extra


def test_a_hard_codebook_has_tokens_only():
    torch.manual_seed(0)
    model = build_model(TINY | {"quantizer": "vq-ema"}).eval()
    meter = GapMeter(model)
    assert meter.decoders == {}
    figures = evaluate_split(model, images(4), observers=[meter.observe])
    assert [row["decode"] for row in meter.rows(figures, [64])] == ["argmax"]
    assert meter.level_figures() == [None]


def test_small_codebooks_have_no_top_k_that_is_all_of_them():
    model = build_model(TINY | {"quantizer": "ddcl", "codebook_size": 4}).eval()
    assert list(GapMeter(model).decoders) == ["top_2"]


@pytest.mark.parametrize("kind", KINDS)
def test_refitting_lowers_the_error_of_tokens_and_moves_the_decoder_alone(kind):
    model, data = model_of(kind), images(64)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    again = refit_decoder(model, data, steps=25, lr=3e-3, batch_size=16)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    moved = {n for n, v in again.state_dict().items() if not torch.equal(v, before[n])}
    assert moved
    assert all("decoder" in name or "upsample" in name for name in moved)
    assert not any("top_decoder" in name for name in moved)  # it is of the bottom's encoder
    batch = data.float() / 255
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            model.split(model.tokens(batch)), again.split(again.tokens(batch)), strict=True
        )
    )
    errors = [(m.reconstruct(batch) - batch).square().mean().item() for m in (model, again)]
    assert errors[1] < errors[0]
    assert not again.training


def test_refitting_is_repeatable_and_takes_any_number_of_images():
    model, data = model_of("one level"), images(7)
    first, second = (refit_decoder(model, data, steps=5, batch_size=16) for _ in range(2))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        refit_decoder(model, data, steps=0)


def test_memory_does_not_grow_with_the_number_of_images():
    model = model_of("one level")
    held: list[int] = []
    # Other tests leave tensors behind, some without a size.
    gc.collect()
    before = {id(x) for x in gc.get_objects() if issubclass(type(x), Tensor)}

    def watch(batch: Tensor, code: object, recons: object) -> None:
        gc.collect()
        found = [x for x in gc.get_objects() if issubclass(type(x), Tensor)]
        tensors = [x for x in found if id(x) not in before]
        held.append(sum(x.numel() * x.element_size() for x in tensors))

    one = images(1).expand(48, -1, -1, -1)  # takes no memory of its own
    meter = GapMeter(model, model)
    observers = [meter.observe, watch]
    evaluate_split(model, one, batch_size=8, decoders=meter.decoders, observers=observers)
    assert len(held) == 6
    assert max(held[2:]) <= 1.02 * held[1]
