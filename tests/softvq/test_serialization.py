import json
import os
import sys
from dataclasses import dataclass

import pytest
import torch

from softvq import (
    Codebook,
    CodebookStack,
    CodesPerToken,
    ConstantTemperature,
    CriticalFraction,
    DDCLCodebook,
    DDCLEMCodebook,
    Schedule,
    TemperatureController,
    VQCodebook,
    VQEMACodebook,
)

pytest.importorskip("safetensors", reason="codebooks on disk need safetensors")
from safetensors import safe_open
from safetensors.torch import save_file

DIM, SIZE = 4, 9
KINDS = [DDCLCodebook, DDCLEMCodebook, VQCodebook, VQEMACodebook]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
CONTROLLERS = [
    ConstantTemperature(Schedule(0.5)),
    CriticalFraction(Schedule(0.4, 0.1, steps=9, hold=2)),
    CodesPerToken(Schedule(3.0, 1.5, steps=7), gain=0.3, ceiling=0.8),
]


def trained(kind=DDCLCodebook, seed=0, **arguments):
    """A codebook after two steps, so that no buffer has its first value."""
    torch.manual_seed(seed)
    codebook = kind(DIM, SIZE, **arguments)
    codebook.initialize(torch.randn(60, DIM))
    for _ in range(2):
        codebook.after_step(codebook(vectors(seed=5)))
    return codebook


def vectors(seed, dtype=torch.float32):
    return torch.randn(3, DIM, 4, generator=torch.Generator().manual_seed(seed)).to(dtype).mT


def state(codebook):
    return {name: (t.dtype, t.tolist()) for name, t in codebook.state_dict().items()}


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(params=["codebook.safetensors", "mine.safetensors", "folder"])
def path(request, tmp_path):
    return tmp_path / "new" / request.param


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_codebook_comes_back(kind, dtype, path):
    codebook = trained(kind).to(dtype)
    codebook.save_pretrained(path)
    for reader in (kind, Codebook):
        loaded = reader.from_pretrained(path)
        assert type(loaded) is kind
        assert not loaded.training
        assert state(loaded) == state(codebook)
    assert loaded.codebook.dtype == dtype
    first, second = codebook.eval()(vectors(seed=6)), loaded(vectors(seed=6))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on_to_the_bit(kind, tmp_path):
    codebook = trained(kind, restart_threshold=0.9)
    codebook.save_pretrained(str(tmp_path))
    loaded = kind.from_pretrained(str(tmp_path)).train()
    for seed in range(3):
        for each in (codebook, loaded):
            each.after_step(each(vectors(seed)))
        assert state(loaded) == state(codebook)


HARD = {"commitment": 0.5, "decay": 0.8, "restart_threshold": 0.3, "seed": 7, "channel_first": True}
SOFT = HARD | {"variance_weight": 2.0, "usage_weight": 0.1, "engine": "attention"}


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (DDCLCodebook, SOFT),
        (DDCLEMCodebook, SOFT | {"balance": 0.4}),
        (VQCodebook, HARD),
        (VQEMACodebook, HARD),
    ],
)
def test_every_argument_comes_back(kind, arguments, path):
    kind(DIM, SIZE, **arguments).save_pretrained(path)
    loaded = Codebook.from_pretrained(path)
    assert {name: getattr(loaded, name) for name in arguments} == arguments


@pytest.mark.parametrize("controller", CONTROLLERS, ids=lambda c: type(c).__name__)
def test_controllers_come_back(controller, path):
    trained(temperature=controller).save_pretrained(path)
    assert DDCLCodebook.from_pretrained(path).controller == controller


def test_a_folder_holds_a_config_that_people_can_read_and_change(tmp_path):
    codebook = trained(VQCodebook)
    codebook.save_pretrained(tmp_path)
    assert files(tmp_path).keys() == {"codebook.safetensors", "config.json"}
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["class"] == "VQCodebook"
    assert (config["dim"], config["codebook_size"], config["commitment"]) == (DIM, SIZE, 0.25)
    (tmp_path / "config.json").write_text(json.dumps(config | {"commitment": 0.75}))
    assert VQCodebook.from_pretrained(tmp_path).commitment == 0.75
    # The weights carry the config as well.
    (tmp_path / "config.json").unlink()
    assert VQCodebook.from_pretrained(tmp_path).commitment == 0.25


def test_saving_into_a_folder_in_use(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    trained(VQCodebook).save_pretrained(tmp_path)
    second = trained(DDCLCodebook, seed=1)
    second.save_pretrained(tmp_path)
    assert state(Codebook.from_pretrained(tmp_path)) == state(second)
    assert files(tmp_path).keys() == {"README.md", "codebook.safetensors", "config.json"}
    assert (tmp_path / "README.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "failing"),
    [
        ("one.safetensors", "first write"),
        ("one.safetensors", "rename"),
        ("folder", "first write"),
        ("folder", "second write"),
        ("folder", "rename"),
    ],
)
def test_a_failed_write_leaves_the_old_files_whole(name, failing, tmp_path, monkeypatch):
    folder = tmp_path / name if name == "folder" else tmp_path
    trained(VQCodebook).save_pretrained(tmp_path / name)
    before = files(folder)
    calls = []

    def fail(*_):
        calls.append(1)
        if failing != "second write" or len(calls) == 2:
            raise OSError("no space left")

    monkeypatch.setattr(os, "replace" if failing == "rename" else "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        trained(DDCLCodebook).save_pretrained(tmp_path / name)
    assert files(folder) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_codebook_of_another_class(kind, path):
    codebook = trained(kind)
    codebook.save_pretrained(path)
    for wrong in (other for other in KINDS if other is not kind):
        with pytest.raises(TypeError, match=f"holds a {kind.__name__}, not a {wrong.__name__}"):
            wrong.from_pretrained(path)


class Mine(VQCodebook):
    def __init__(self, dim, codebook_size, *, power=2.0, kept=True):
        super().__init__(dim, codebook_size)
        if kept:
            self.power = power
        self.kept = kept


class MyCodebook(Codebook):
    """A codebook from the base alone."""

    def __init__(self, dim, codebook_size, *, scale=1.0):
        super().__init__(dim, codebook_size)
        self.scale = scale
        self.register_buffer("codebook", scale * torch.randn(codebook_size, dim))


def test_a_subclass_from_outside_comes_back(path):
    mine = Mine(DIM, SIZE, power=3.0)
    stack = CodebookStack([mine, MyCodebook(DIM, SIZE, scale=2.0)])
    for whole in (mine, stack):
        whole.save_pretrained(path.with_name(type(whole).__name__))
        loaded = type(whole).from_pretrained(path.with_name(type(whole).__name__))
        assert state(loaded) == state(whole)
    first, second = loaded.codebooks
    assert (type(first), first.power) == (Mine, 3.0)
    assert (type(second), second.scale) == (MyCodebook, 2.0)


@pytest.mark.parametrize("kind", [VQCodebook, VQEMACodebook])
def test_the_running_usage_of_the_first_versions_comes_back(kind, path):
    codebook = trained(kind)
    whole = CodebookStack([codebook, trained(kind, seed=1)])
    old = {k.replace("running_usage", "cluster_size"): v for k, v in whole.state_dict().items()}
    assert any("cluster_size" in name for name in old)
    again = CodebookStack([kind(DIM, SIZE), kind(DIM, SIZE)])
    again.load_state_dict(old)
    assert state(again) == state(whole)
    codebook.save_pretrained(path)
    weights = path / "codebook.safetensors" if path.is_dir() else path
    with safe_open(weights, "pt") as file:
        metadata = file.metadata()
    old = {k.removeprefix("levels.0."): v for k, v in old.items() if "levels.0." in k}
    save_file(old, weights, metadata)
    assert state(Codebook.from_pretrained(path)) == state(codebook)


def test_a_state_says_whose_it_is():
    saved, other = trained(DDCLCodebook), DDCLEMCodebook(DIM, SIZE)
    before = state(other)
    for wrong, given in ((other, saved), (CodebookStack([other]), CodebookStack([saved]))):
        with pytest.raises(RuntimeError, match=r"is that of a DDCLCodebook, not of a DDCLEMCode"):
            wrong.load_state_dict(given.state_dict(), strict=False)
    with pytest.raises(RuntimeError, match="that of a VQCodebook, not of a VQEMACodebook"):
        VQEMACodebook(DIM, SIZE).load_state_dict(trained(VQCodebook).state_dict())
    assert state(other) == before
    # A subclass takes its base's state, and a state without the mark, as old ones are, any.
    Mine(DIM, SIZE).load_state_dict(trained(VQCodebook).state_dict())
    other.load_state_dict(dict(saved.state_dict()))
    assert state(other) == state(saved)


@dataclass(frozen=True)
class Falling(TemperatureController):
    def first(self, z, codebook, critical_temperature):
        return 1.0

    def next(self, step, temperature, codes_per_token, critical_temperature):
        return temperature


@pytest.mark.parametrize(
    ("codebook", "message"),
    [
        (Mine(DIM, SIZE, kept=False), r"a Mine keeps no plain value in \.power.*its state_dict"),
        (DDCLCodebook(DIM, SIZE, temperature=Falling(Schedule(1.0))), "not a Falling"),
    ],
)
def test_what_could_not_be_loaded_again_is_not_saved(codebook, message, tmp_path):
    with pytest.raises(TypeError, match=message):
        codebook.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_without_safetensors(tmp_path, monkeypatch):
    codebook = trained()
    codebook.save_pretrained(tmp_path)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for call in (codebook.save_pretrained, Codebook.from_pretrained):
        with pytest.raises(ImportError, match="pip install safetensors"):
            call(tmp_path)
