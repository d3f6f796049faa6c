"""Models of several levels, from training to the report."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from small_runs import (
    arguments,
    checkpoint,
    command,
    differences,
    metrics,
    run_small,
    untimed,
    without_figures,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn import functional as F

from eval.__main__ import main
from eval.report.levels import level_ablation
from eval.run import open_run
from models import VQVAE2, build_model
from models.build import QUANTIZERS
from training.data.feed import to_float
from training.metrics import (
    code_figures,
    evaluate_split,
    finish_code_figures,
    trackers_of,
)

# Two of vector-quantize-pytorch need powers of two, which not all of these levels are.
OWN_AND_PEERS = sorted(set(QUANTIZERS) - {"none", "fsq", "lfq"})
FEW = ("--limit-test", "64")
TINY = {"hidden_channels": 8, "residual_channels": 6, "codebook_size": 16, "codebook_dim": 5}
SHAPES = {
    "residual": {"level_pools": [1, 1]},
    "pyramid": {"level_pools": [4, 2, 1], "level_sizes": [5, 9, 16]},
    "odd": {"level_pools": [5, 3], "level_sizes": [7, 16]},
    "vqvae2": {"architecture": "vqvae2", "level_sizes": [7, 16]},
}
RUNS = {
    "pyramid": {"levels": 3, "level_pool": "4,2,1", "level_sizes": "5,9,16"},
    "vqvae2": {"architecture": "vqvae2"},
    "one": {},
}


def images(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def model_of(shape, **config):
    torch.manual_seed(0)
    model = build_model(TINY | SHAPES[shape] | config)
    model.initialize([images(16, 3, 32, 32, seed=s) for s in range(4)])
    return model


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        without_figures(patch)
        return {name: run_small(root / name, epochs=1, **options) for name, options in RUNS.items()}


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
    model = model_of("vqvae2", level_dropout=1.0).train()
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


@pytest.mark.parametrize("name", ["pyramid", "vqvae2"])
def test_a_run_of_levels_goes_on_where_it_was_stopped(tmp_path, monkeypatch, name):
    without_figures(monkeypatch)
    options = RUNS[name] | {"quantizer": "vq-ema", "lr_schedule": "constant", "level_dropout": 0.3}
    whole = run_small(tmp_path / "whole", **options)
    out = run_small(tmp_path / "run", **options, epochs=1)
    assert command("--resume", "--epochs", 2, "--out", out).exit_code == 0
    for part in ("model", "optimizer", "trackers"):
        assert differences(checkpoint(whole)[part], checkpoint(out)[part], part) == []
    assert untimed(whole) == untimed(out)


def test_evaluation_counts_the_tokens_of_every_level(runs):
    run = open_run(runs["pyramid"])
    figures = evaluate_split(run.model, run.test_images, batch_size=20)
    tokens = run.model.split(run.model.tokens(to_float(run.test_images)))
    for level, part, size in zip(figures["levels"], tokens, (5, 9, 16), strict=True):
        counts = torch.bincount(part.flatten(), minlength=size).double()
        share = counts[counts > 0] / counts.sum()
        assert level["utilization"] == pytest.approx((counts > 0).double().mean())
        assert level["perplexity"] == pytest.approx(float((-share * share.log()).sum().exp()))
        assert level["dead_codes"] == (counts == 0).sum()


def test_the_ablation_by_hand(runs):
    run = open_run(runs["pyramid"])
    rows = level_ablation(run.model, run.test_images, batch_size=20)
    batch = to_float(run.test_images)
    with torch.no_grad():
        tokens = run.model.split(run.model.tokens(batch))
        codes = run.model.codes(tokens)

        def psnr(codes):
            mse = (run.model.decode_codes(codes).clamp(0, 1) - batch).square().mean(dim=(1, 2, 3))
            return float(-10 * mse.log10().mean())

        for number in range(3):
            assert rows[number]["prefix_psnr"] == pytest.approx(psnr(codes[: number + 1]), abs=1e-4)
            mean = codes[number].mean(dim=(0, 1, 2)).expand_as(codes[number])
            without = [*codes[:number], mean, *codes[number + 1 :]]
            drop = psnr(codes) - psnr(without)
            assert rows[number]["psnr_drop_without"] == pytest.approx(drop, abs=1e-3)
    assert [row["tokens_per_image"] for row in rows] == [4, 16, 64]
    bits = 4 * math.log2(5) + 16 * math.log2(9) + 64 * 4
    assert rows[-1]["prefix_bits_per_pixel"] == pytest.approx(bits / 1024)


def test_the_report_has_a_line_for_each_level(runs, tmp_path):
    out = tmp_path / "report.json"
    result = CliRunner().invoke(main, ["report", str(runs["pyramid"]), "--json", str(out), *FEW])
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text())
    assert figures["codebook_size"] == [5, 9, 16]
    assert figures["tokens_per_image"] == 84
    assert figures["bits_per_pixel"] == pytest.approx(
        figures["levels"][-1]["prefix_bits_per_pixel"]
    )
    assert figures["psnr_argmax"] == pytest.approx(figures["levels"][-1]["prefix_psnr"], abs=1e-4)
    table = result.stdout.split("level ")[1].splitlines()
    assert [line.split()[:2] for line in table[1:4]] == [["1", "5"], ["2", "9"], ["3", "16"]]
    assert "K = 5 + 9 + 16" in result.stdout


def test_tensorboard_has_every_level(tmp_path):
    run = run_small(tmp_path / "run", epochs=1, **RUNS["pyramid"])
    events = EventAccumulator(str(run / "train"), size_guidance={"images": 0})
    events.Reload()
    tags = events.Tags()
    line = metrics(run)[0]
    for number, level in enumerate(line["levels"], start=1):
        for key in ("utilization", "perplexity", "loss_q"):
            [scalar] = events.Scalars(f"codebook_level_{number}/{key}")
            assert scalar.value == pytest.approx(level[key], rel=1e-5)
        assert f"temperature_level_{number}/temperature_ratio" in tags["scalars"]
        assert f"usage_level_{number}/usage_curve" in tags["images"]
    [scalar] = events.Scalars("codebook/utilization")
    assert scalar.value == pytest.approx(min(level["utilization"] for level in line["levels"]))


def test_levels_through_the_command_line(tmp_path):
    words = arguments(levels=2, level_pool="2,1", epochs=1)
    result = command(*words, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert checkpoint(tmp_path / "run")["model_config"]["level_pools"] == [2, 1]
    result = command(*arguments(level_pool="2,1"), "--out", tmp_path / "other")
    assert result.exit_code == 2
    assert result.stderr == "Error: level_pool: for several levels only; give --levels, too\n"


def test_rate_and_distortion(runs, tmp_path):
    out, data = tmp_path / "rate.png", tmp_path / "rate.json"
    words = ["rate", runs["pyramid"], runs["one"], "-o", out, "--json", data, "--limit-test", 20]
    result = CliRunner().invoke(main, list(map(str, words)))
    assert result.exit_code == 0, result.output
    assert out.read_bytes().startswith(b"\x89PNG")
    figures = json.loads(data.read_text())
    curves = {curve["name"]: curve["points"] for curve in figures["curves"]}
    assert set(curves) == {
        "pyramid", "one", "jpeg, files", "jpeg, sheet", "webp, files", "webp, sheet",
    }  # fmt: skip
    assert [point["levels"] for point in curves["pyramid"]] == [1, 2, 3]
    run = open_run(runs["pyramid"], limit_test=20)
    rows = level_ablation(run.model, run.test_images)
    for point, row in zip(curves["pyramid"], rows, strict=True):
        # Pixels are rounded to eight bits.
        assert point["psnr"] == pytest.approx(row["prefix_psnr"], abs=0.05)
        assert point["bound_bits_per_pixel"] < point["bits_per_pixel"]
    for name in ("jpeg", "webp"):
        files, sheet = curves[f"{name}, files"], curves[f"{name}, sheet"]
        assert files[0]["bits_per_pixel"] > sheet[0]["bits_per_pixel"]
        rates = [point["bits_per_pixel"] for point in sheet]
        assert rates == sorted(rates)
        assert sheet[-1]["psnr"] > 30
    assert np.isfinite([p["ssim"] for points in curves.values() for p in points]).all()
    twice = CliRunner().invoke(main, ["rate", str(runs["one"]), str(runs["one"]), "-o", str(out)])
    assert twice.exit_code == 2
    assert twice.output == "Error: a run was given twice\n"


def test_batch_norms_of_both_levels_are_calibrated():
    model = model_of("vqvae2")
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 2
    model.calibrate([images(8, 3, 32, 32, seed=s) for s in range(3)])
    assert all(int(norm.num_batches_tracked) == 3 for norm in norms)
    assert all(norm.momentum == 0.1 for norm in norms)


def test_pools_that_do_not_divide_the_grid_train_and_report(tmp_path):
    run = run_small(tmp_path / "run", epochs=1, levels=2, level_pool="3,2")
    out = tmp_path / "report.json"
    result = CliRunner().invoke(main, ["report", str(run), "--json", str(out), *FEW])
    assert result.exit_code == 0, result.output
    assert [level["tokens_per_image"] for level in json.loads(out.read_text())["levels"]] == [9, 16]


def test_tokens_of_dropped_levels_decode_to_zero_and_others_are_refused():
    model = model_of("residual", level_dropout=1.0).train()
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
        for name, value in code_figures(code).items():
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
