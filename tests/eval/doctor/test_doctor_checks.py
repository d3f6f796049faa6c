"""The doctor's checks as pure functions: both sides of each threshold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from measures import normal, severity

from eval.doctor import geometry, gradient, temperature, usage, whole
from eval.doctor.finding import Finding, format_findings, sorted_findings
from eval.doctor.gradient import GradientFlow
from softvq.geometry import neighbour_distances, usual_distance
from training.config import TrainConfig

config_of = TrainConfig.from_options
DDCL, PAPER = TrainConfig(), config_of(quantizer="ddcl")
VQ, EMA = config_of(quantizer="vq"), config_of(quantizer="vq-ema")


@pytest.mark.parametrize(
    ("ratio", "separation", "name"),
    [
        (0.02, 1.3, None), (0.74, 0.51, None), (None, 0.51, None),
        (0.76, 1.0, "near-collapse"), (0.02, 0.49, "near-collapse"), (None, 0.3, "near-collapse"),
        (1.0, 1.0, "collapsed"), (0.5, 0.14, "collapsed"), (None, 0.0, "collapsed"),
    ],
)  # fmt: skip
def test_collapse(ratio, separation, name):
    finding = temperature.check_collapse(ratio, separation, DDCL)
    assert (finding and finding.name) == name
    assert severity(finding) == {"collapsed": "severe", "near-collapse": "warning"}.get(name)


@pytest.mark.parametrize(
    ("codes", "share", "ratio", "ended", "expected"),
    [
        (1.05, 0.02, 1.004, True, None), (1.3, 0.13, 1.024, True, None),
        (3.0, 0.4, 1.2, False, None),  # still cooling
        (3.0, 0.4, 1.2, True, "warning"), (2.0, 0.6, 1.0, True, "warning"),
        (9.0, 0.8, 1.6, True, "severe"),
        (1.0, 0.0, 1.6, True, None),  # hard: something else is wrong
    ],
)  # fmt: skip
def test_softness(codes, share, ratio, ended, expected):
    finding = temperature.check_too_soft(codes, share, ratio, ended, DDCL)
    assert severity(finding) == expected


def test_starvation_beyond_what_chance_explains():
    # 3 tokens a code, evenly: exp(-3) = 5 % have none by chance.
    drawn = torch.from_numpy(np.random.default_rng(0).multinomial(3000, [1e-3] * 1000))
    assert 30 < int((drawn == 0).sum()) < 70
    assert usage.check_starved_codes(drawn[None], "an epoch", EMA) is None
    many = torch.full((1, 1000), 100)
    many[0, :10] = 0
    assert usage.check_starved_codes(many, "an epoch", EMA) is None  # one percent
    many[0, :11] = 0
    assert severity(usage.check_starved_codes(many, "an epoch", EMA)) == "warning"
    many[0, :250] = 0
    finding = usage.check_starved_codes(many, "an epoch", EMA)
    assert finding.severity == "severe"
    assert "0, 1, 2, 3, 4, 5, 6, 7 and 242 more" in finding.evidence
    assert "--restart-threshold 0.2" in finding.advice


def test_starvation_says_since_when():
    history = torch.ones(5, 10, dtype=torch.int64) * 900
    history[:, 1] = 0
    history[3:, 2] = 0
    history[2:4, 4] = 0  # came back
    finding = usage.check_starved_codes(history, "training epoch 5", DDCL)
    assert "1 of them in no epoch, the others since epoch 4: 1, 2." in finding.evidence


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ([0.7, 0.2, 0.1, 0.1], "severe"),  # textbook
        ([0.1, 0.1, 0.1], "severe"),
        ([0.1, 0.1, 0.3], None),  # on its way
        ([0.1, 0.6, 0.2], None),  # starved, not "never recovered"
        ([0.1, 0.1], None),  # too early to say
    ],
)
def test_never_recovered(used, expected):
    history = torch.zeros(len(used), 100, dtype=torch.int64)
    for row, share in zip(history, used, strict=True):
        row[: round(share * 100)] = 50
    assert severity(usage.check_never_recovered(history, VQ)) == expected
    assert usage.check_never_recovered(history, DDCL) is None


@pytest.mark.parametrize(
    ("used", "expected"), [(64, None), (33, None), (32, "warning"), (9, "warning"), (8, "severe")]
)
def test_perplexity(used, expected):
    counts = torch.zeros(64)
    counts[:used] = 1000
    assert severity(usage.check_low_perplexity(counts, "an epoch", DDCL)) == expected


@pytest.mark.parametrize(
    ("tokens", "expected"), [(3900, None), (3899, "warning"), (400, "warning"), (399, "severe")]
)
def test_tokens_per_code(tokens, expected):
    finding = usage.check_too_many_codes(tokens, 100, config_of(codebook_size=100))
    assert severity(finding) == expected
    if finding:
        size = int(finding.advice.split("--codebook-size ")[1].split(",")[0])
        assert usage.check_too_many_codes(tokens, size, DDCL) is None


@pytest.mark.parametrize("copies", [2, 3, 4])
def test_doubles_are_found_even_where_all_codes_have_some(copies):
    codebook = normal(128, 16)
    assert geometry.check_duplicates(codebook, EMA) is None
    doubled = codebook.repeat(copies, 1) + 1e-4 * normal(128 * copies, 16, seed=1)
    finding = geometry.check_duplicates(doubled, EMA)
    assert finding.severity == "severe"
    distance, _ = neighbour_distances(codebook)
    assert usual_distance(doubled) >= 0.9 * float(distance.median())


def test_doubles_are_named():
    codebook = normal(64, 8)
    codebook[40] = codebook[7] + 1e-5
    finding = geometry.check_duplicates(codebook, EMA)
    assert finding.severity == "warning"
    assert "1 of 64 codes (1.6 %)" in finding.evidence
    assert "closest are 7 and 40" in finding.evidence


def test_codes_beyond_all_latents():
    latents = normal(4000, 8)
    codebook = latents[:64].clone()
    assert geometry.check_far_codes(codebook, latents, DDCL) is None
    codebook[3] *= 2.4 * math.sqrt(8) / codebook[3].norm()  # inside of 2.5 sqrt(tr C)
    assert geometry.check_far_codes(codebook, latents, DDCL) is None
    codebook[3] *= 1.2
    assert severity(geometry.check_far_codes(codebook, latents, DDCL)) == "warning"
    codebook[:20] = codebook[3]
    assert severity(geometry.check_far_codes(codebook, latents, DDCL)) == "severe"
    latents[5] *= 20 / latents[5].norm()  # a latent farther out still
    assert geometry.check_far_codes(codebook, latents, DDCL) is None


@pytest.mark.parametrize(("rank", "expected"), [(1, "warning"), (2, "note"), (6, None)])
def test_dimension_of_the_latents(rank, expected):
    turn = torch.linalg.qr(normal(128, rank)).Q
    latents = normal(3000, rank, seed=1) @ turn.mT
    finding = geometry.check_low_dimension(latents, DDCL)
    assert severity(finding) == expected
    if finding:
        assert "--codebook-dim 8." in finding.advice
    narrow = geometry.check_low_dimension(latents[:, :1] * torch.ones(8), DDCL)
    assert "--lr 0.001" in narrow.advice


def test_with_a_shared_scale_channels_may_vary_as_they_like_but_not_repeat_one():
    shared = config_of(shared_scale=True)
    latents = normal(3000, 8) * torch.tensor([20.0, 1, 1, 1, 1, 1, 1, 1])
    assert severity(geometry.check_low_dimension(latents, DDCL)) == "warning"
    assert geometry.check_low_dimension(latents, shared) is None
    latents[:, 1:] = latents[:, :1] * torch.arange(1, 8)
    assert severity(geometry.check_low_dimension(latents, shared)) == "warning"


@pytest.mark.parametrize(
    ("shift", "factor", "expected"),
    [
        (0.1, 1.1, None), (0.24, 1.99, None), (0.26, 1.0, "warning"), (0.0, 2.1, "warning"),
        (0.0, 1 / 2.1, "warning"), (1.1, 1.0, "severe"), (0.0, 4.1, "severe"),
    ],
)  # fmt: skip
def test_norm_statistics(shift, factor, expected):
    mean, variance = torch.full((6,), shift), torch.full((6,), factor)
    assert severity(geometry.check_norm_statistics(mean, variance)) == expected


def test_weights_that_are_not_finite():
    weights = {"a": torch.zeros(3), "b": torch.tensor([1.0, math.inf]), "c": torch.arange(3)}
    assert whole.check_non_finite({"a": weights["a"], "c": weights["c"]}, DDCL) is None
    finding = whole.check_non_finite(weights, DDCL)
    assert finding.severity == "severe"
    assert "1 values in 1 of 3 tensors are NaN or infinite: b." in finding.evidence


@pytest.mark.parametrize(
    ("ratio", "silent", "expected"),
    [
        (1.0, 0.0, None), (2.0, 0.34, None), (0.06, 0.5, None), (0.04, 0.5, "warning"),
        (1.0, 0.91, "warning"), (0.009, 0.5, "severe"), (1.0, 0.995, "severe"),
    ],
)  # fmt: skip
def test_dead_gradient(ratio, silent, expected):
    finding = gradient.check_dead_gradient(GradientFlow(ratio, silent), PAPER)
    assert severity(finding) == expected


@pytest.mark.parametrize(
    ("config", "scale", "expected"),
    [
        (PAPER, 1.0, None), (config_of(quantizer="ddcl", epsilon=0.1), 1.0, None),
        (config_of(quantizer="ddcl", epsilon=0.5, pull=0.0), 1.0, "warning"),
        (config_of(quantizer="ddcl", epsilon=1.0, pull=0.0), 1.0, "severe"),
        (config_of(quantizer="ddcl"), 1.0, None),  # soft EM keeps up with the encoder
        (config_of(quantizer="ddcl", epsilon=0.005), 1.0, "warning"),
        (config_of(quantizer="ddcl", epsilon=0.001), 1.0, "severe"),
        (PAPER, 0.002, "severe"),  # the same rate, on small latents
        (VQ, 1.0, None), (config_of(quantizer="vq", epsilon=3.0), 1.0, "warning"),
        (DDCL, 1.0, None), (EMA, 1.0, None),
    ],
)  # fmt: skip
def test_epsilon(config, scale, expected):
    assert severity(gradient.check_epsilon(scale, config)) == expected


def test_errors_against_the_mean_image():
    check = whole.check_worse_than_mean
    assert check(0.01, 0.06, "the tokens", DDCL) is None
    assert severity(check(0.04, 0.06, "the tokens", DDCL)) == "warning"
    assert severity(check(0.07, 0.06, "the tokens", DDCL)) == "severe"
    assert check(0.0, 0.0, "the tokens", DDCL) is None  # images of one colour


def test_a_run_that_got_worse():
    def lines(*errors: float, key: str = "mse_argmax") -> list[dict[str, object]]:
        none = {"mse_argmax": None} if key == "mse_soft" else {}
        return [
            {"split": "val", "epoch": n, key: error, **none}
            for n, error in enumerate(errors, start=1)
        ] + [{"split": "test", "epoch": 9, "mse_argmax": 99.0}]

    assert whole.check_got_worse([], DDCL) is None
    assert whole.check_got_worse(lines(0.3), DDCL) is None
    assert whole.check_got_worse(lines(0.3, 0.1, 0.109), DDCL) is None
    finding = whole.check_got_worse(lines(0.3, 0.1, 0.12), DDCL)
    assert finding.severity == "warning"
    assert "after epoch 2 and 0.12000 after epoch 3" in finding.evidence
    assert whole.check_got_worse(lines(0.1, 0.2, key="mse_soft"), DDCL) is not None


def test_unfinished():
    assert whole.check_unfinished(9, 9, 8, "1.05") is None
    late = whole.check_unfinished(8, 9, 7, "1.05").evidence
    assert "temperature" not in late
    assert "temperature" in whole.check_unfinished(5, 9, 7, "1.05").evidence


def test_findings_are_shown_severe_ones_first():
    made = [
        Finding("unfinished", "note", "Step 1.", "Go on."),
        Finding("starved-codes", "severe", "Some.", "Restart.", 2),
        Finding("starved-codes", "severe", "Some.", "Restart.", 1),
        Finding("too-soft", "warning", "Soft.", "Cool."),
    ]
    assert [f.level for f in sorted_findings(made)] == [1, 2, None, None]
    text = format_findings(made)
    heads = [line for line in text.splitlines() if line[:1].isupper()]
    assert heads == [
        "SEVERE starved-codes, level 1",
        "SEVERE starved-codes, level 2",
        "WARNING too-soft",
        "NOTE unfinished",
    ]
    assert text.splitlines()[-1] == "2 severe, 1 warning, 1 note"
