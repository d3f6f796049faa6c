"""Files that cannot be read, and what is said about them."""

import json

import pytest
import torch

from softvq import Codebook, DDCLCodebook

pytest.importorskip("safetensors", reason="codebooks on disk need safetensors")
from safetensors.torch import save_file

DIM, SIZE = 4, 9


@pytest.fixture(params=["codebook.safetensors", "folder"])
def path(request, tmp_path):
    DDCLCodebook(DIM, SIZE).save_pretrained(tmp_path / request.param)
    return tmp_path / request.param


@pytest.fixture
def folder(tmp_path):
    DDCLCodebook(DIM, SIZE).save_pretrained(tmp_path)
    return tmp_path


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="none: give a folder or a file of save_pretrained"):
        Codebook.from_pretrained(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"codebook\.safetensors"):
        Codebook.from_pretrained(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9])
def test_a_truncated_file(share, path):
    weights = path / "codebook.safetensors" if path.is_dir() else path
    data = weights.read_bytes()
    weights.write_bytes(data[: int(share * len(data))])
    with pytest.raises(ValueError, match=rf"{weights.name} is damaged or no safetensors file"):
        Codebook.from_pretrained(path)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_weights_of_someone_else(metadata, tmp_path):
    save_file({"codebook": torch.zeros(SIZE, DIM)}, tmp_path / "their.safetensors", metadata)
    with pytest.raises(ValueError, match=r"their\.safetensors was not written by softvq"):
        Codebook.from_pretrained(tmp_path / "their.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codebook_size": SIZE + 1}, "do not fit its config.*size mismatch for codebook"),
        ({"dim": DIM - 1}, "do not fit its config.*size mismatch for codebook"),
        ({"class": "VQCodebook"}, "do not fit its config.*Unexpected key"),
        ({"class": "Unknown"}, "config.json is damaged or unknown.*'Unknown'; known:"),
        ({"codebook_size": 0}, "config.json is damaged or unknown.*codebook_size=0"),
        ({"heads": 8}, "does not fit this version.*'heads'"),
        ({"temperature": {"class": "Hot", "schedule": {"start": 1.0}}}, "controller 'Hot'; known:"),
        ({"temperature": {"class": "Schedule", "schedule": {"start": 1.0}}}, "controller 'Sche"),
        ({"temperature": {"class": "CodesPerToken"}}, "does not fit this version.*'schedule'"),
        ({"temperature": 3.0}, "does not fit this version"),
        (None, "config.json is damaged or unknown.*an object with names"),
    ],
    ids=str,
)
def test_a_config_that_was_edited(change, message, folder):
    config = json.loads((folder / "config.json").read_text())
    if change == {"class": "VQCodebook"}:
        config = {name: config[name] for name in ("dim", "codebook_size")}
    config = [] if change is None else config | change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"(?s){message}"):
        Codebook.from_pretrained(folder)


@pytest.mark.parametrize("text", [b"", b'{"class": ', b"\xff\xfe"], ids=["empty", "cut", "binary"])
def test_a_config_that_is_no_json(text, folder):
    (folder / "config.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"config\.json is damaged or unknown"):
        Codebook.from_pretrained(folder)
