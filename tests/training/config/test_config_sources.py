"""TrainConfig without the command line: its sources, its files, and the models built from it."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import train
from models import build_model
from models.build import ARCHITECTURES, CONTROLLERS
from models.build import QUANTIZERS as BUILDERS
from models.peers import PEERS
from training.config import TrainConfig
from training.config.migration import migrate_config, migrate_model_config
from training.config.quantizers import OWN, QUANTIZERS, SOFT, read_quantizers
from training.errors import UserError

ROOT = Path(train.__file__).parent
FIELDS = TrainConfig.fields()
config_of = TrainConfig.from_options


def test_a_quantizers_options_are_its_constructors():
    """What is read from the source is what the class has."""
    for name, quantizer in read_quantizers().items():
        parameters = inspect.signature(BUILDERS[name]).parameters
        assert quantizer.soft is ("temperature" in parameters)
        for option in quantizer.options.values():
            assert parameters[option.name].default == option.default
            assert type(option.default) is option.kind
            assert option.help.endswith(".")
    assert SOFT == ("ddcl-em", "ddcl")
    assert OWN == ("ddcl-em", "ddcl", "vq", "vq-ema")
    assert QUANTIZERS == tuple(BUILDERS) == (*OWN, "none", *PEERS)
    assert set(FIELDS["architecture"].choices) == set(ARCHITECTURES)
    assert set(FIELDS["temperature_mode"].choices) == set(CONTROLLERS)


def test_a_new_option_is_written_in_one_file(tmp_path):
    """A keyword and its sentence in the class: --help, config and model have it."""
    for part in ("softvq", "models", "training"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("*cache*"))
    shutil.copy(ROOT / "train.py", tmp_path)
    source = tmp_path / "softvq/codebooks/vq.py"
    text = source.read_text()
    start = text.index("class VQEMACodebook")
    own = text[start:].replace("    Args:\n", "    Args:\n        flavour: A taste, > 0.\n", 1)
    own = own.replace("        *,\n", "        *,\n        flavour: float = 0.7,\n", 1)
    own = own.replace(
        "        super().__init__(", "        print(flavour)\n        super().__init__(", 1
    )
    source.write_text(text[:start] + own)
    program = (
        "from models import build_model; from training.config import TrainConfig\n"
        "config = TrainConfig.from_options(quantizer='vq-ema', flavour=0.9, hidden_channels=8)\n"
        "build_model(config.model_config(1)); print(config.options()['flavour'])\n"
    )
    for words, expected in (
        (["train.py", "--help"], "A taste, > 0. [default: 0.7 for vq-ema]"),
        (["-c", program], "0.9 0.9"),
    ):
        result = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True
        )
        assert expected in " ".join(result.stdout.split()), result.stderr[-500:]


def test_options_that_go_together():
    # Below one is a temperature like any other in other modes, and nothing to other quantizers.
    config_of(temperature_mode="critical", temperature_start=0.5, temperature_end=0.1)
    config_of(quantizer="vq", temperature_end=0.5)
    assert config_of(quantizer="vqp-ema", levels=2).model.level_count == 2
    assert config_of(codebook_size=2).temperatures == (2, 1.05)


def test_json_round_trip():
    config = config_of(
        quantizer="vq", epsilon=0.5, out="a b/ü", augment=False, steps=7, decay=0.5, balance=None
    )
    text = config.to_json()
    assert json.loads(text) == config.options()
    assert TrainConfig.from_dict(json.loads(text)) == config
    assert TrainConfig.from_dict({}) == TrainConfig()
    with pytest.raises(UserError, match=r"does not know: colour, shape$"):
        TrainConfig.from_dict(config.options() | {"shape": 1, "colour": 2})
    with pytest.raises(UserError, match="no options colour"):
        config_of(colour=2)
    with pytest.raises(UserError, match="codebook_size must be at least 1, got 0"):
        TrainConfig.from_dict({"codebook_size": 0})
    with pytest.raises(UserError, match="codebook_size must be of type int, got 'many'"):
        TrainConfig.from_dict({"codebook_size": "many"})


def test_another_quantizer_drops_what_it_lacks():
    config = config_of(balance=0.5, commitment=0.2, lr=0.01)
    other = config.replace(quantizer="vq", epochs=3)
    assert other == config_of(quantizer="vq", commitment=0.2, lr=0.01, epochs=3)
    with pytest.raises(UserError, match="--balance is for ddcl-em and ddcl, not for vq"):
        config.replace(quantizer="vq", balance=0.5)


# What the recipe paper meant by default, and what its codebook had not got yet.
PAPER = {"temperature_end": 1.3, "noise": 0.0, "pull": 0.0}


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ({"quantizer": "ddcl", "recipe": "tokens", "balance": 0.5, "commitment": None,
          "decay": 0.99}, {"quantizer": "ddcl-em", "balance": 0.5}),
        ({"quantizer": "ddcl", "recipe": "tokens", "decay": 0.99, "lr": 0.1},
         {"quantizer": "ddcl-em", "balance": 0.0, "lr": 0.1}),
        ({"quantizer": "ddcl", "recipe": "paper", "usage_weight": 0.1, "balance": None,
          "decay": 0.99}, {"quantizer": "ddcl", "usage_weight": 0.1, "commitment": 0.25} | PAPER),
        ({"quantizer": "ddcl", "recipe": "paper", "commitment": 0.1, "codebook_size": 1},
         {"quantizer": "ddcl", "codebook_size": 1, "commitment": 0.1, "usage_weight": 0.05}
         | PAPER | {"temperature_end": 1}),
        ({"quantizer": "vq", "recipe": "tokens", "decay": 0.9, "balance": 0.3},
         {"quantizer": "vq", "decay": 0.9}),
        ({"quantizer": "fsq", "recipe": "tokens", "decay": 0.99, "commitment": 1.0},
         {"quantizer": "fsq"}),
        ({"quantizer": "ddcl", "decay": 0.5}, {"quantizer": "ddcl", "decay": 0.5}),
    ],
)  # fmt: skip
def test_options_of_the_last_version_become_todays(saved, expected):
    assert migrate_config(saved) == expected
    assert TrainConfig.from_dict(saved) == config_of(**expected)


def test_models_of_the_last_version_are_built_as_then():
    """It wrote the options of all quantizers, and the hard ones' decay, for each."""
    shared = {"commitment": 0.4, "usage_weight": 0.1, "decay": 0.99, "restart_threshold": 0.0}
    shape = {"hidden_channels": 8, "codebook_size": 4}
    kept = {
        "ddcl-em": shared | {"decay": 0.9, "balance": 0.0},
        "ddcl": shared | {"decay": 0.9, "noise": 0.0, "pull": 0.0},
        "vq": {name: shared[name] for name in ("commitment", "decay", "restart_threshold")},
        "none": {},
    }
    for quantizer, own in kept.items():
        migrated = migrate_model_config(shape | {"quantizer": quantizer} | shared)
        assert migrated == shape | {"quantizer": quantizer} | own
        codebook = build_model(migrated).codebook
        assert {name: getattr(codebook, name) for name in own} == own


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_every_quantizer_builds_from_the_config(quantizer):
    config = config_of(quantizer=quantizer, hidden_channels=8, codebook_size=64, codebook_dim=6)
    codebook = build_model(config.model_config(100)).codebook
    assert codebook.dim == 6
    assert codebook.codebook_size == (1 if quantizer == "none" else 64)
    assert {n: getattr(codebook, n) for n in config.quantizer.settings} == config.quantizer.settings


@pytest.mark.parametrize(
    ("mode", "given", "expected"),
    [
        ("codes", {}, (3.0, 1.05)),
        ("codes", {"quantizer": "ddcl"}, (3.0, 1.05)),
        ("codes", {"temperature_start": 5.0}, (5.0, 1.05)),
        ("critical", {}, (0.02, 0.002)),
        ("critical", {"temperature_end": 0.01}, (0.02, 0.01)),
        ("constant", {"temperature_start": 2.0}, (2.0, 2.0)),
        ("constant", {"temperature_start": 2.0, "temperature_end": 1.0}, (2.0, 1.0)),
    ],
)
def test_each_temperature_mode_has_defaults_of_its_own_unit(mode, given, expected):
    built = config_of(temperature_mode=mode, **given).model_config(total_steps=10)
    assert (built["temperature_start"], built["temperature_end"]) == expected


def test_shares_of_the_training_become_steps():
    config = config_of(temperature_hold=0.25, temperature_until=0.8)
    built = config.model_config(total_steps=200)
    assert (built["temperature_hold_steps"], built["temperature_steps"]) == (50, 160)
    assert (built["temperature_start"], built["temperature_end"]) == (3.0, 1.05)
    # Rounding must not put the hold after the end.
    for steps in range(1, 40):
        build_model(config.replace(temperature_hold=0.8).model_config(steps))


def test_defaults_that_depend_on_the_quantizer():
    def of(quantizer: str, **options: Any) -> tuple[bool, float, float]:
        config = config_of(quantizer=quantizer, **options)
        restarts = config.model_config(1)["restart_threshold"]
        return config.quantizer.kmeans_init, config.timescale_ratio, restarts

    # The textbook baseline gets none of the remedies.
    assert of("vq") == (False, 1.0, 0.0)
    assert of("vq-ema") == (True, 1.0, 0.1)
    assert of("ddcl") == of("ddcl-em") == (True, 1.0, 0.02)
    assert of("ddcl", pull=0.0) == (True, 0.03, 0.02)
    given = {"init": "kmeans", "epsilon": 0.5, "restart_threshold": 0.3}
    assert {of(quantizer, **given) for quantizer in OWN} == {(True, 0.5, 0.3)}
    assert of("ddcl", init="random", restart_threshold=0.0) == (False, 1.0, 0.0)
