"""TrainConfig and the options of train.py: one source of names, defaults, ranges and help."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import click
import pytest
from small_runs import command

import train
from models import build_model
from models.build import ARCHITECTURES, CONTROLLERS
from models.build import QUANTIZERS as BUILDERS
from training.config import PRESETS, QUANTIZERS, TrainConfig
from training.errors import UserError

FIELDS = {spec.name: spec for spec in fields(TrainConfig)}
OPTIONS = {option.name: option for option in train.main.params}
# Values that a range of one option needs of another.
COMPANIONS = {
    "temperature_until": {"temperature_hold": 0.0},
    "temperature_hold": {"temperature_until": 1.0},
    "level_dropout": {"levels": 2},
}


@pytest.fixture
def called(monkeypatch) -> list[tuple[TrainConfig, bool]]:
    """The calls of train() that the command makes, without training."""
    calls: list[tuple[TrainConfig, bool]] = []

    def fake(config: TrainConfig, *, resume: bool = False) -> Path:
        calls.append((config, resume))
        return Path("somewhere")

    monkeypatch.setattr(train, "train", fake)
    return calls


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def test_every_field_is_an_option_and_every_option_a_field():
    assert set(OPTIONS) == {*FIELDS, "preset", "resume"}
    for name, spec in FIELDS.items():
        option = OPTIONS[name]
        assert option.opts == [flag(name)]
        assert option.default == spec.default, name
        assert option.help == spec.metadata["help"], name
        assert option.help.endswith("."), name
        assert option.show_default is (spec.default is not None), name
        assert not option.required
        if spec.type == "bool":
            assert option.secondary_opts == [f"--no-{flag(name)[2:]}"]
    assert list(OPTIONS["preset"].type.choices) == sorted(PRESETS)


def test_help_shows_defaults_and_ranges():
    help_text = " ".join(command("--help").stdout.split())
    assert "[default: ddcl]" in help_text
    assert "[default: 512; x>=1]" in help_text
    assert "[default: 0.002; x>0]" in help_text
    assert "[0<=x<=0.99]" in help_text
    assert "[ddcl|vq|vq-ema|none|vqp-ema|vqp-rotation|simvq|fsq|lfq]" in help_text


@pytest.mark.parametrize(
    ("quantizer", "words"),
    [
        ("vq", ["--usage-weight", 0.1]),
        ("none", ["--temperature-start", 3]),
        ("ddcl", ["--decay", 0.5]),
        ("vq-ema", ["--epsilon", 0.5]),
        ("vq", ["--recipe", "paper"]),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(called, quantizer, words):
    result = command("--quantizer", quantizer, *words)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {words[0]} is for ")
    assert result.stderr.rstrip().endswith(f"not for {quantizer}; leave it out")
    assert called == []


def test_prototypes_without_a_learning_rate_take_no_ratio_of_rates(called):
    result = command("--epsilon", 0.5)
    assert result.exit_code == 2
    assert "--epsilon is for --recipe paper" in result.stderr
    assert command("--epsilon", 0.5, "--recipe", "paper").exit_code == 0
    assert len(called) == 1


def test_prototypes_by_gradient_take_no_balance(called):
    result = command("--balance", 0.5, "--recipe", "paper")
    assert result.exit_code == 2
    assert "balance does nothing with the recipe paper" in result.stderr
    assert command("--balance", 0.5).exit_code == 0
    assert len(called) == 1
    defaults = {"tokens": 0.3, "paper": 0.0}
    assert {r: TrainConfig(recipe=r).usage_balance for r in defaults} == defaults
    assert TrainConfig(quantizer="vq").usage_balance == 0


@pytest.mark.parametrize("quantizer", ["fsq", "lfq"])
def test_quantizers_of_whole_bits_refuse_levels(quantizer):
    with pytest.raises(UserError, match="one level only"):
        TrainConfig(quantizer=quantizer, levels=2)
    assert TrainConfig(quantizer="vqp-ema", levels=2).level_count == 2


def test_more_codes_per_token_than_codes_are_refused():
    with pytest.raises(UserError, match="more codes than there are"):
        TrainConfig(codebook_size=8, temperature_start=9.0)
    assert TrainConfig(codebook_size=2).temperatures == (2, 1.05)


@pytest.mark.parametrize("name", ["lr", "temperature_start", "commitment"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_must_be_finite(name, value):
    with pytest.raises(UserError, match=f"{name} must be a finite number"):
        TrainConfig(**{name: value})


def test_no_options_are_the_dataclass_defaults(called):
    assert command().exit_code == 0
    assert called == [(TrainConfig(), False)]


def test_every_option_reaches_its_field(called):
    given: dict[str, Any] = {
        "quantizer": "vq-ema", "recipe": "paper", "dataset": "folder", "data_dir": "images",
        "out": "runs/x", "seed": 3, "epochs": 4, "steps": 5, "batch_size": 6, "lr": 0.07,
        "lr_schedule": "constant", "epsilon": 0.08,
        "limit_train": 9, "limit_test": 10, "image_size": 16, "augment": False,
        "architecture": "vqvae2", "levels": 2, "level_pool": None, "level_sizes": "16,17",
        "level_dropout": 0.5, "hidden_channels": 13, "residual_channels": 14, "residual_blocks": 15,
        "codebook_size": 16, "codebook_dim": 17, "normalize_latents": False, "init": "random",
        "commitment": 0.18, "usage_weight": 0.19, "temperature_mode": "critical",
        "temperature_start": 0.21, "temperature_end": 0.022, "temperature_hold": 0.23,
        "temperature_until": 0.24, "decay": 0.25, "restart_threshold": 0.26, "precision": "bf16",
        "device": "cpu", "compile": True, "perceptual_weight": 0.27, "lpips": "alex",
        "lpips_weights": "weights.pth", "balance": 0.28, "shared_scale": True,
    }  # fmt: skip
    assert set(given) == set(FIELDS)
    given["level_pool"] = "2,1"
    given["architecture"] = "vqvae"
    same = {name for name, value in given.items() if value == FIELDS[name].default}
    assert same == {"architecture"}  # the other one has no level_pool
    given["shared_scale"] = False  # there is no scale; tests/test_shared_scale_norm.py
    # Options of the other quantizers, which the command line refuses, reach it from code only.
    foreign = {
        n: FIELDS[n].default for n, s in FIELDS.items() if "vq-ema" not in s.metadata["only"]
    }
    given |= foreign
    words = []
    for name, value in given.items():
        if name in foreign:
            continue
        if value is False:
            words.append(f"--no-{flag(name)[2:]}")
        else:
            words += [flag(name)] if value is True else [flag(name), value]
    assert command(*words).exit_code == 0
    [(config, resume)] = called
    assert asdict(config) == given
    assert {name: type(value) for name, value in asdict(config).items()} == {
        name: type(value) for name, value in given.items()
    }
    assert not resume


def test_presets_are_defaults_that_options_override(called):
    for name, preset in PRESETS.items():
        assert set(preset) <= set(FIELDS)
        assert command("--preset", name).exit_code == 0
        assert called.pop()[0] == TrainConfig(**preset)
    default = FIELDS["epochs"].default
    assert PRESETS["quick"]["epochs"] != default
    assert command("--preset", "quick", "--epochs", default, "--seed", 5).exit_code == 0
    assert called == [(TrainConfig(**(PRESETS["quick"] | {"epochs": default, "seed": 5})), False)]


def out_of_range() -> list[tuple[str, float, float | None]]:
    """(option, a value just outside its range, one just inside)."""
    cases: list[tuple[str, float, float | None]] = []
    for name, spec in FIELDS.items():
        rule = spec.metadata
        step = 1 if "int" in str(spec.type) else 1e-6
        if rule["minimum"] is not None:
            cases.append((name, rule["minimum"] - step, rule["minimum"]))
        if rule["maximum"] is not None:
            cases.append((name, rule["maximum"] + step, rule["maximum"]))
        if rule["above"] is not None:
            cases.append((name, rule["above"], None))
    return cases


def refused(*words: object) -> str:
    """The one error line of a call that click or TrainConfig refuses."""
    result = command(*words)
    assert result.exit_code == 2
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error:")]
    assert len(errors) == 1
    return errors[0]


def test_the_ranges_hold_what_they_must():
    named = {name for name, _, _ in out_of_range()}
    assert named >= {
        "codebook_size", "codebook_dim", "epochs", "steps", "batch_size", "lr", "epsilon", "seed",
        "limit_train", "limit_test", "image_size", "hidden_channels", "residual_channels",
        "residual_blocks", "commitment", "usage_weight", "temperature_start", "temperature_end",
        "temperature_hold", "temperature_until", "decay", "restart_threshold",
    }  # fmt: skip


@pytest.mark.parametrize(("name", "outside", "inside"), out_of_range())
def test_values_out_of_range_are_refused(called, name, outside, inside):
    with pytest.raises(UserError, match=rf"^{name} must be .*{outside}"):
        TrainConfig(**{name: outside})
    assert flag(name) in refused(flag(name), outside)
    assert called == []
    if inside is not None:
        quantizer = FIELDS[name].metadata["only"][0]
        options = {name: inside, "quantizer": quantizer} | COMPANIONS.get(name, {})
        TrainConfig(**options)
        words = [word for key, value in options.items() for word in (flag(key), value)]
        result = command(*words)
        assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("name", [n for n, s in FIELDS.items() if s.metadata["choices"]])
def test_choices(called, name):
    choices = FIELDS[name].metadata["choices"]
    assert FIELDS[name].default in choices
    for choice in choices:
        TrainConfig(**{name: choice, "temperature_start": 2.0})
    with pytest.raises(UserError, match=rf"{name} must be one of {', '.join(choices)}, got 'x'"):
        TrainConfig(**{name: "x"})
    message = refused(flag(name), "x")
    assert all(choice in message for choice in choices)
    assert called == []


@pytest.mark.parametrize("value", ["nan", "-inf"])
def test_what_is_no_number_is_refused(called, value):
    for name in ("lr", "commitment", "temperature_hold"):
        refused(f"{flag(name)}={value}")
    assert "--epochs" in refused("--epochs", "2.5")
    assert called == []


def test_options_that_do_not_go_together(called):
    cases: list[tuple[dict[str, Any], str]] = [
        ({"image_size": 30}, "multiple of 4 for vqvae, got 30"),
        ({"temperature_hold": 0.8, "temperature_until": 0.7}, "0.8 and 0.7"),
        ({"temperature_start": 3.0, "temperature_end": 0.5}, "3.0 and 0.5"),
        ({"temperature_start": 0.5, "temperature_end": 1.5}, "0.5 and 1.5"),
        ({"architecture": "vqvae2", "image_size": 20}, "multiple of 8 for vqvae2, got 20"),
        ({"level_pool": "2,1"}, "level_pool: for several levels only"),
        ({"level_dropout": 0.1}, "level_dropout: for several levels only"),
        ({"levels": 2, "level_pool": "4,2,1"}, "level_pool must be 2 positive whole numbers"),
        ({"levels": 2, "level_sizes": "4,0"}, "level_sizes must be 2 positive whole numbers"),
        ({"levels": 2, "level_sizes": "4,x"}, "got '4,x'"),
        ({"levels": 2, "quantizer": "none"}, "no codebook, so no levels"),
        ({"architecture": "vqvae2", "levels": 3}, "vqvae2 has two levels"),
        ({"architecture": "vqvae2", "level_pool": "2,1"}, "vqvae2 has two levels"),
    ]
    for options, message in cases:
        with pytest.raises(UserError, match=message):
            TrainConfig(**options)
        words = [word for name, value in options.items() for word in (flag(name), value)]
        assert message in refused(*words)
    assert called == []
    # Below one is a temperature like any other in the other modes, and nothing to other quantizers.
    TrainConfig(temperature_mode="critical", temperature_start=0.5, temperature_end=0.1)
    TrainConfig(quantizer="vq", temperature_end=0.5)


def test_json_round_trip():
    config = TrainConfig(quantizer="vq", epsilon=0.5, out="a b/ü", augment=False, steps=7)
    text = config.to_json()
    assert json.loads(text) == asdict(config)
    assert TrainConfig.from_dict(json.loads(text)) == config
    assert TrainConfig.from_dict({}) == TrainConfig()
    with pytest.raises(UserError, match=r"does not know: colour, shape$"):
        TrainConfig.from_dict(asdict(config) | {"shape": 1, "colour": 2})
    with pytest.raises(UserError, match="codebook_size must be at least 1, got 0"):
        TrainConfig.from_dict({"codebook_size": 0})


def test_the_names_of_quantizers_and_temperatures_are_those_that_are_built():
    built = {
        TrainConfig(quantizer=quantizer, recipe=recipe).model_config(9)["quantizer"]
        for quantizer in QUANTIZERS
        for recipe in FIELDS["recipe"].metadata["choices"]
    }
    assert built == set(BUILDERS)
    assert set(FIELDS["architecture"].metadata["choices"]) == set(ARCHITECTURES)
    assert set(FIELDS["temperature_mode"].metadata["choices"]) == set(CONTROLLERS)


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_every_quantizer_builds_from_the_config(quantizer):
    config = TrainConfig(quantizer=quantizer, hidden_channels=8, codebook_size=64, codebook_dim=6)
    model = build_model(config.model_config(100))
    assert model.codebook.dim == 6
    assert model.codebook.codebook_size == (1 if quantizer == "none" else 64)


@pytest.mark.parametrize(
    ("mode", "given", "expected"),
    [
        ("codes", {}, (3.0, 1.05)),
        ("codes", {"recipe": "paper"}, (3.0, 1.3)),
        ("codes", {"temperature_start": 5.0}, (5.0, 1.05)),
        ("critical", {}, (0.02, 0.002)),
        ("critical", {"temperature_end": 0.01}, (0.02, 0.01)),
        ("constant", {"temperature_start": 2.0}, (2.0, 2.0)),
        ("constant", {"temperature_start": 2.0, "temperature_end": 1.0}, (2.0, 1.0)),
    ],
)
def test_each_temperature_mode_has_defaults_of_its_own_unit(mode, given, expected):
    built = TrainConfig(temperature_mode=mode, **given).model_config(total_steps=10)
    assert (built["temperature_start"], built["temperature_end"]) == expected


def test_a_constant_temperature_must_be_given():
    with pytest.raises(UserError, match="temperature_mode constant needs temperature_start"):
        TrainConfig(temperature_mode="constant")


def test_shares_of_the_training_become_steps():
    config = TrainConfig(temperature_hold=0.25, temperature_until=0.8)
    built = config.model_config(total_steps=200)
    assert (built["temperature_hold_steps"], built["temperature_steps"]) == (50, 160)
    assert (built["temperature_start"], built["temperature_end"]) == (3.0, 1.05)
    # Rounding must not put the hold after the end.
    for steps in range(1, 40):
        build_model(replace(config, temperature_hold=0.8).model_config(steps))


def test_defaults_that_depend_on_the_quantizer():
    def of(quantizer: str, **options: Any) -> tuple[bool, float, float]:
        config = TrainConfig(quantizer=quantizer, **options)
        restarts = config.model_config(1)["restart_threshold"]
        return config.kmeans_init, config.timescale_ratio, restarts

    # The textbook baseline gets none of the remedies.
    assert of("vq") == (False, 1.0, 0.0)
    assert of("vq-ema") == (True, 0.03, 0.1)
    assert of("ddcl") == (True, 0.03, 0.02)
    given = {"init": "kmeans", "epsilon": 0.5, "restart_threshold": 0.3}
    assert {of(quantizer, **given) for quantizer in QUANTIZERS} == {(True, 0.5, 0.3)}
    assert of("ddcl", init="random", restart_threshold=0.0) == (False, 0.03, 0.0)


def test_options_have_the_types_of_their_fields():
    kinds = {"int": click.IntRange, "float": click.FloatRange, "bool": click.types.BoolParamType}
    for name, spec in FIELDS.items():
        kind = str(spec.type).removesuffix(" | None")
        if kind in kinds:
            assert isinstance(OPTIONS[name].type, kinds[kind]), name
        elif spec.metadata["choices"]:
            assert isinstance(OPTIONS[name].type, click.Choice), name
        else:
            assert OPTIONS[name].type is click.STRING, name
