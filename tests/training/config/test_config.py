"""TrainConfig and the options of train.py: one source of names, defaults, ranges and help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from small_runs import command

import train
from training.checkpoint import new_model
from training.config import PRESETS, TrainConfig
from training.config.quantizers import OWN, QUANTIZERS, read_quantizers
from training.config.sections import SECTIONS
from training.errors import UserError

ROOT = Path(train.__file__).parent
FIELDS = TrainConfig.fields()
# Arguments of constructors, by name, with a quantizer that has them.
ARGUMENTS = {name: q for q in reversed(OWN) for name in read_quantizers()[q].options}
OPTIONS = {option.name: option for option in train.main.params}
# Values that a range of one option needs of another.
COMPANIONS = {
    "temperature_until": {"temperature_hold": 0.0},
    "temperature_hold": {"temperature_until": 1.0},
    "level_dropout": {"levels": 2},
}
config_of = TrainConfig.from_options


@pytest.fixture
def called(monkeypatch) -> list[tuple[TrainConfig, bool]]:
    """The calls of train() that the command makes, without training."""
    calls: list[tuple[TrainConfig, bool]] = []

    def fake(config: TrainConfig, *, resume: bool = False, changed_images: bool = False) -> Path:
        assert not changed_images
        calls.append((config, resume))
        return Path("somewhere")

    monkeypatch.setattr(train, "train", fake)
    return calls


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def words_of(options: dict[str, Any]) -> list[object]:
    return [word for name, value in options.items() for word in (flag(name), value)]


def refused(*words: object) -> str:
    """The one error line of a call that click or TrainConfig refuses."""
    result = command(*words)
    assert result.exit_code == 2
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error:")]
    assert len(errors) == 1
    return errors[0]


def test_every_field_and_argument_is_an_option_and_every_option_one_of_them():
    assert set(OPTIONS) == {*FIELDS, *ARGUMENTS, "preset", "resume", "changed_images"}
    assert set(TrainConfig.kinds()) == {*FIELDS, *ARGUMENTS}
    for name, kind in TrainConfig.kinds().items():
        option = OPTIONS[name]
        assert option.opts == [flag(name)]
        assert not option.required
        if kind is bool:
            assert option.secondary_opts == [f"--no-{flag(name)[2:]}"]
    kinds = {int: click.IntRange, float: click.FloatRange, str: click.types.StringParamType}
    kinds[bool] = click.types.BoolParamType
    for name, spec in FIELDS.items():
        option = OPTIONS[name]
        kind = click.Choice if spec.choices else kinds[TrainConfig.kinds()[name]]
        assert isinstance(option.type, kind), name
        assert option.default == spec.default, name
        assert option.help.startswith(spec.help), name
        assert option.help.endswith("."), name
        assert option.show_default is (spec.default is not None), name
    assert list(OPTIONS["preset"].type.choices) == sorted(PRESETS)


def test_help_shows_defaults_ranges_and_quantizers_in_groups():
    lines = command("--help").stdout.splitlines()
    titles = [line for line in lines if line and not line.startswith(" ")]
    assert titles[1:] == ["Data:", "Model:", "Quantizer:", "Optimiser:", "Run:"]
    help_text = " ".join(" ".join(lines).split()).replace("ddcl- em", "ddcl-em")
    assert "[default: ddcl-em]" in help_text
    assert "[default: 512; x>=1]" in help_text
    assert "[default: 0.002; x>0]" in help_text
    assert "[default: 0.0; 0<=x<=0.99]" in help_text
    assert f"[{'|'.join(QUANTIZERS)}]" in help_text
    assert "[default: 0.1 for ddcl-em, ddcl; 0.25 for vq, vq-ema]" in help_text
    assert "For ddcl, vq. [x>0]" in help_text


@pytest.mark.parametrize(
    ("quantizer", "words", "only"),
    [
        ("vq", ["--usage-weight", 0.1], "ddcl-em and ddcl"),
        ("none", ["--temperature-start", 3], "ddcl-em and ddcl"),
        ("fsq", ["--decay", 0.5], "ddcl-em and ddcl and vq and vq-ema"),
        ("vq-ema", ["--epsilon", 0.5], "ddcl and vq"),
        ("ddcl-em", ["--epsilon", 0.5], "ddcl and vq"),  # soft EM has no learning rate
        ("ddcl-em", ["--noise", 0.5], "ddcl"),  # straight through
    ],
)
def test_an_option_that_would_do_nothing_is_refused(called, quantizer, words, only):
    message = refused("--quantizer", quantizer, *words)
    assert message == f"Error: {words[0]} is for {only}, not for {quantizer}; leave it out"
    assert called == []
    assert command("--quantizer", only.split(" ")[0], *words).exit_code == 0


@pytest.mark.parametrize("name", ["lr", "temperature_start", "commitment"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_must_be_finite(called, name, value):
    with pytest.raises(UserError, match=f"{name} must be a finite number"):
        config_of(**{name: value})
    refused(f"{flag(name)}={value}")
    assert called == []


def test_what_is_no_number_is_refused(called):
    assert "--epochs" in refused("--epochs", "2.5")
    assert "--commitment" in refused("--commitment", "much")
    assert "--engine" in refused("--engine", "steam")
    for name, value in (("commitment", "much"), ("engine", "steam"), ("engine", 3)):
        with pytest.raises(UserError, match=f"^{name} "):
            config_of(**{name: value})
    assert called == []


def test_no_options_are_the_dataclass_defaults(called):
    assert command().exit_code == 0
    assert called == [(TrainConfig(), False)]
    assert TrainConfig() == config_of() == TrainConfig(**{n: s() for n, s in SECTIONS.items()})


def test_every_option_reaches_its_field(called):
    given: dict[str, Any] = {
        "dataset": "folder", "data_dir": "images", "limit_train": 9, "limit_test": 10,
        "image_size": 16, "skip_bad": True, "augment": False, "architecture": "vqvae",
        "hidden_channels": 13,
        "residual_channels": 14, "residual_blocks": 15, "codebook_size": 16, "codebook_dim": 17,
        "levels": 2, "level_pool": "2,1", "level_sizes": "16,17", "level_dropout": 0.5,
        "normalize_latents": False, "shared_scale": False, "quantizer": "ddcl",
        "temperature_mode": "critical", "temperature_start": 0.21, "temperature_end": 0.022,
        "temperature_hold": 0.23, "temperature_until": 0.24, "init": "random", "lr": 0.07,
        "lr_schedule": "constant", "epsilon": 0.08, "batch_size": 6, "epochs": 4, "steps": 5,
        "perceptual_weight": 0.27, "lpips": "alex", "lpips_weights": "weights.pth",
        "out": "runs/x", "seed": 3, "device": "cpu", "precision": "bf16", "compile": True,
        "commitment": 0.18, "variance_weight": 1.9, "usage_weight": 0.19, "decay": 0.25,
        "restart_threshold": 0.26, "engine": "dense", "noise": 0.31, "pull": 0.32, "balance": 0.33,
    }  # fmt: skip
    assert set(given) == set(TrainConfig.kinds())
    same = {name for name, spec in FIELDS.items() if given[name] == spec.default}
    # The other architecture has no level_pool; without normalisation there is no scale to share.
    assert same == {"architecture", "shared_scale"}
    words = []
    for name, value in given.items():
        if value is False:
            words.append(f"--no-{flag(name)[2:]}")
        else:
            words += [flag(name)] if value is True else [flag(name), value]
    assert command(*words).exit_code == 0
    [(config, resume)] = called
    assert config.options() == given
    assert config.options(defaults=True) == given
    assert {n: type(v) for n, v in config.options().items()} == {
        n: type(v) for n, v in given.items()
    }
    assert not resume


def test_presets_are_defaults_that_options_override(called):
    for name, preset in PRESETS.items():
        assert set(preset) <= set(FIELDS)
        assert command("--preset", name).exit_code == 0
        assert called.pop()[0] == config_of(**preset)
    default = FIELDS["epochs"].default
    assert PRESETS["quick"]["epochs"] != default
    assert command("--preset", "quick", "--epochs", default, "--seed", 5).exit_code == 0
    assert called == [(config_of(**(PRESETS["quick"] | {"epochs": default, "seed": 5})), False)]


def out_of_range() -> list[tuple[str, float, float | None]]:
    """(option, a value just outside its range, one just inside)."""
    cases: list[tuple[str, float, float | None]] = []
    for name, spec in FIELDS.items():
        step = 1 if TrainConfig.kinds()[name] is int else 1e-6
        low, high, above = spec.minimum, spec.maximum, spec.above
        cases += [(name, low - step, low)] if low is not None else []
        cases += [(name, high + step, high)] if high is not None else []
        cases += [(name, above, None)] if above is not None else []
    return cases


def test_every_number_has_a_range():
    numbers = {n for n in FIELDS if TrainConfig.kinds()[n] in (int, float)}
    assert {name for name, _, _ in out_of_range()} == numbers


@pytest.mark.parametrize(("name", "outside", "inside"), out_of_range())
def test_values_out_of_range_are_refused(called, name, outside, inside):
    with pytest.raises(UserError, match=rf"^{name} must be .*{outside}"):
        config_of(**{name: outside})
    assert flag(name) in refused(flag(name), outside)
    assert called == []
    if inside is not None:
        quantizer = (FIELDS[name].only or QUANTIZERS)[0]
        options = {name: inside, "quantizer": quantizer} | COMPANIONS.get(name, {})
        config_of(**options)
        result = command(*words_of(options))
        assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("name", "outside", "inside"),
    [
        ("commitment", -1e-6, 0.0),
        ("variance_weight", 0.0, 1e-6),
        ("balance", 1.000001, 1.0),
        ("decay", 1.0, 0.999999),
    ],
)
def test_a_constructors_ranges_are_checked_before_data_is_read(name, outside, inside):
    quantizer = ARGUMENTS[name]
    shape = {"quantizer": quantizer, "hidden_channels": 8, "codebook_size": 4}
    # There is no such data: the model is built first.
    message = refused(*words_of(shape | {name: outside, "dataset": "folder"}))
    assert name in message
    assert str(outside) in message
    new_model(config_of(**shape, **{name: inside}).model_config(1))


@pytest.mark.parametrize("name", [n for n, s in FIELDS.items() if s.choices])
def test_choices(called, name):
    choices = FIELDS[name].choices
    assert FIELDS[name].default in choices
    for choice in choices:
        config_of(**{name: choice, "temperature_start": 2.0})
    with pytest.raises(UserError, match=rf"{name} must be one of {', '.join(choices)}, got 'x'"):
        config_of(**{name: "x"})
    message = refused(flag(name), "x")
    assert all(choice in message for choice in choices)
    assert called == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
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
        ({"levels": 2, "quantizer": "fsq"}, "fsq has one level only"),
        ({"levels": 2, "quantizer": "lfq"}, "lfq has one level only"),
        ({"codebook_size": 8, "temperature_start": 9.0}, "more codes than there are"),
        ({"temperature_mode": "constant"}, "temperature_mode constant needs temperature_start"),
    ],
)
def test_options_that_do_not_go_together(called, options, message):
    with pytest.raises(UserError, match=message):
        config_of(**options)
    assert message in refused(*words_of(options))
    assert called == []
