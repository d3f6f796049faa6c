"""The doctor's advice: options that train.py takes beside the run's own, with other values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch

from eval.doctor import geometry, gradient, temperature, usage, whole
from eval.doctor.finding import Finding
from eval.doctor.gradient import GradientFlow
from training.config import TrainConfig
from training.config.checks import check_given
from training.config.quantizers import SOFT

config_of = TrainConfig.from_options
CRITICAL = {"temperature_mode": "critical"}
CONSTANT = {"temperature_mode": "constant", "temperature_start": 0.4}
RUNS: dict[str, dict[str, Any]] = {
    "tokens": {},
    "paper": {"quantizer": "ddcl"},
    "paper-epsilon": {"quantizer": "ddcl", "epsilon": 1.0},
    "steps": {"steps": 50, "precision": "bf16", "lr_schedule": "constant", "lr": 0.001},
    "hot": {"temperature_start": 9.0, "temperature_end": 9.0},
    "cold": {"temperature_start": 1.01, "temperature_end": 1.0},
    "hold-all": {"temperature_hold": 0.9, "temperature_until": 0.9},
    "critical": CRITICAL,
    "critical-hot": CRITICAL | {"temperature_start": 1.2, "temperature_end": 1.2},
    "critical-cold": CRITICAL | {"temperature_start": 1e-5, "temperature_end": 1e-5},
    "constant": CONSTANT,
    "free": CONSTANT | {"normalize_latents": False, "init": "random"},
    "few-codes": {"codebook_size": 16, "temperature_start": 16.0, "temperature_end": 9.0},
    "two-codes": {"codebook_size": 2},
    "levels": {"levels": 3},
    "level-sizes": {"levels": 2, "level_sizes": "64,8", "temperature_start": 8.0},
    "vqvae2": {"architecture": "vqvae2", "quantizer": "vq-ema"},
    "no-restarts": {"restart_threshold": 0.0},
    "restarts": {"restart_threshold": 0.9},
    "usage": {"usage_weight": 0.2},
    "vq": {"quantizer": "vq"},
    "vq-mended": {
        "quantizer": "vq", "init": "kmeans", "restart_threshold": 0.1, "epsilon": 0.03
    },
    "vq-fast": {"quantizer": "vq", "lr": 0.5, "epsilon": 1.0},
    "vq-ema": {"quantizer": "vq-ema"},
    "vq-ema-decay": {"quantizer": "vq-ema", "decay": 0.5},
    "vqp-ema": {"quantizer": "vqp-ema", "codebook_size": 16},
    "simvq": {"quantizer": "simvq", "codebook_size": 4},
    "lfq": {"quantizer": "lfq", "codebook_size": 64},
    "none": {"quantizer": "none"},
}  # fmt: skip


def of_whole(config: TrainConfig) -> Iterator[Finding | None]:
    """Findings of the run, from measures that are as bad as can be, and less."""
    yield whole.check_non_finite({"a": torch.tensor([float("nan")])}, config)
    yield whole.check_worse_than_mean(1.0, 0.1, "the tokens", config)
    val = [{"split": "val", "epoch": n, "mse_argmax": 0.1 * n} for n in (1, 2)]
    yield whole.check_got_worse(val, config)
    yield gradient.check_dead_gradient(GradientFlow(0.0, 1.0), config)
    for scale in (1e-6, 0.01, 0.2, 1.0, 30.0):
        yield gradient.check_epsilon(scale, config)
    yield from of_latents(config)


def of_latents(config: TrainConfig) -> Iterator[Finding | None]:
    """Findings of latents that lie badly."""
    for dim in (8, 64):
        yield geometry.check_low_dimension(torch.randn(99, 1) * torch.ones(dim), config)


def of_level(config: TrainConfig, number: int) -> Iterator[Finding | None]:
    """Findings of a level."""
    codes = config.model.codebook_sizes[number]
    for used in {1, codes // 3, codes // 2, codes - 1} - {0}:
        counts = torch.zeros(4, codes, dtype=torch.int64)
        counts[:, :used] = 10**4
        yield usage.check_starved_codes(counts, "an epoch", config, number)
        yield usage.check_never_recovered(counts, config, number)
        yield usage.check_low_perplexity(counts[-1], "an epoch", config, number)
        codebook = torch.randn(codes, 8, generator=torch.Generator().manual_seed(0))
        codebook[used:] = codebook[0]
        yield geometry.check_duplicates(codebook, config, number)
    for tokens in (1, 60, 1000):
        yield usage.check_too_many_codes(tokens, codes, config, number)
    yield geometry.check_far_codes(torch.full((codes, 8), 99.0), torch.randn(500, 8), config)
    soft = config.quantizer.name in SOFT
    if soft:
        for spoken in (1.03, config.temperatures[1], 3.08, 40.0):
            yield temperature.check_too_soft(spoken, 0.7, 1.2, True, config)
    yield temperature.check_collapse(1.5 if soft else None, 0.0, config)


@cache
def findings(config: TrainConfig) -> list[Finding]:
    made = [*of_whole(config)]
    for number in range(config.model.level_count if config.quantizer.name != "none" else 0):
        made += of_level(config, number)
    return [finding for finding in made if finding is not None]


def options_of(advice: str) -> dict[str, Any]:
    """The options of train.py that an advice names with their values."""
    found: dict[str, Any] = {}
    for flag, text in re.findall(r"--([a-z][a-z-]*)(?: ([\w.,-]+))?", advice):
        name, value = flag.replace("-", "_"), text.rstrip(".,")
        kind = TrainConfig.kinds()[name]
        if kind is bool:
            found[name] = True
        elif value:
            found[name] = kind(value)
    return found


def effective(config: TrainConfig, name: str) -> Any:
    """What a run has, with the defaults that depend on other options filled in."""
    filled = {
        "epsilon": config.timescale_ratio,
        "init": "kmeans" if config.quantizer.kmeans_init else "random",
        "level_sizes": ",".join(map(str, config.model.codebook_sizes)),
    }
    return (config.options(defaults=True) | filled).get(name)


def alternatives(advice: str) -> list[str]:
    """The parts that one may follow alone."""
    return advice.split(", or ")


@pytest.mark.parametrize("name", RUNS)
def test_advice_is_options_that_go_with_the_runs_own(name):
    own = config_of(**RUNS[name])
    made = findings(own)
    assert len({finding.name for finding in made}) >= (4 if own.quantizer.name == "none" else 8)
    for finding in made:
        for part in [finding.advice, *alternatives(finding.advice)]:
            own.replace(**options_of(part))
        for part in alternatives(finding.advice):
            given = options_of(part)
            check_given(own.replace(**given), given)


@pytest.mark.parametrize("name", RUNS)
def test_advice_changes_what_the_run_has(name):
    own = config_of(**RUNS[name])
    for finding in findings(own):
        advised = options_of(finding.advice)
        ends = ("temperature_start", "temperature_end")
        # Both or none: one alone may be of another mode. One of them may stay as it is.
        assert (ends[0] in advised) == (ends[1] in advised), finding
        if ends[0] in advised and advised.get("temperature_mode") is None:
            assert (advised[ends[0]], advised[ends[1]]) != own.temperatures, finding
        for option, value in advised.items():
            if option not in ends:
                assert value != effective(own, option), finding


@pytest.mark.parametrize("name", [name for name in RUNS if "quantizer" not in RUNS[name]])
@pytest.mark.parametrize("codes", [1.05, 1.3, 3.08])
def test_no_advice_against_softness_heats(name, codes):
    own = config_of(**RUNS[name])
    advice = temperature.check_too_soft(codes, 0.7, 1.2, True, own).advice
    given = options_of(advice)
    new = own.replace(**given)
    if (
        new.quantizer.temperature_mode == own.quantizer.temperature_mode
        and "temperature_end" in given
    ):
        assert new.temperatures[1] < own.temperatures[1]
        assert new.temperatures[0] <= max(own.temperatures)
    else:
        later_ = {"epochs", "steps", "temperature_until", "temperature_hold"}
        assert set(given) <= later_ or new.quantizer.temperature_mode == "codes"


def test_a_target_that_was_not_met_asks_for_time_not_for_another_target():
    finding = temperature.check_too_soft(3.08, 0.7, 1.2, True, config_of(epochs=6))
    assert "3.08 codes per token, its target of 1.05 not met" in finding.evidence
    assert options_of(finding.advice) == {
        "epochs": 12, "temperature_hold": 0.25, "temperature_until": 0.675,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("share", "ratio", "named", "absent"),
    [
        (0.7, 1.0, "V / L_q is 0.70 (limit 0.5)", "error is"),
        (0.1, 1.3, "error is 1.30 times the soft one, 1.1 dB (limit 1.1)", "L_q"),
    ],
)
def test_softness_names_the_criterion_that_fired(share, ratio, named, absent):
    finding = temperature.check_too_soft(1.06, share, ratio, True, TrainConfig())
    assert named in finding.evidence
    assert absent not in finding.evidence


@pytest.mark.parametrize(
    ("options", "scale"),
    [
        ({"quantizer": "vq", "lr": 0.5, "epsilon": 1.0}, 1.0),
        ({"quantizer": "ddcl", "lr": 0.3}, 1.0),
        ({"quantizer": "ddcl", "lr": 0.02, "epsilon": 0.03}, 1.0),
        ({"quantizer": "ddcl", "pull": 0.0, "epsilon": 1.0}, 1.0),
        ({"quantizer": "ddcl", "pull": 0.0, "epsilon": 1.0, "lr": 0.02}, 1.0),
        ({"quantizer": "vq", "epsilon": 3.0}, 0.05),
    ],
)
def test_epsilon_that_is_advised_is_not_found_again(options, scale):
    finding = gradient.check_epsilon(scale, config_of(**options))
    assert re.search(r"limit 0\.25|above (0\.3|1) it outruns", finding.evidence)
    mended = config_of(**(options | options_of(finding.advice)))
    assert gradient.check_epsilon(scale, mended) is None


def test_a_lattice_gets_a_smaller_power_of_two_or_none():
    for codes, used, expected in [(16, 15, None), (16, 8, 8), (512, 100, 128), (4, 1, None)]:
        config = config_of(quantizer="lfq", codebook_size=codes)
        given = options_of(usage.starved_advice(config, used))
        assert given.get("codebook_size") == expected


def test_advice_on_one_level_keeps_the_others():
    counts = torch.zeros(1, 512, dtype=torch.int64)
    counts[0, :100] = 1000
    for finding in (
        usage.check_low_perplexity(counts[0], "an epoch", config_of(levels=3), 1),
        usage.check_too_many_codes(5000, 512, config_of(levels=3), 1),
    ):
        assert "--level-sizes 512,128,512" in finding.advice
        assert "--codebook-size" not in finding.advice
