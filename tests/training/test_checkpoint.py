"""training.checkpoint: files are whole or not there, and what is wrong with one is said."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch

from models import build_model
from training.checkpoint import (
    FORMAT,
    KEYS,
    find_checkpoint,
    load_checkpoint,
    load_model,
    save_checkpoint,
    write_atomic,
)
from training.errors import CheckpointError, UserError

MODEL_CONFIG = {"hidden_channels": 4, "residual_channels": 4, "codebook_size": 6, "codebook_dim": 3}


def state(**changes) -> dict:
    """A checkpoint with every part, as small as can be."""
    model = build_model(MODEL_CONFIG)
    parts = {"config": {}, "optimizer": {}, "trackers": [], "step": 0, "sums": {}}
    parts |= {"seconds": 0.0, "best": 1.0}
    assert {*parts, "format", "model_config", "model"} == KEYS
    return parts | {"model_config": MODEL_CONFIG, "model": model.state_dict()} | changes


@pytest.fixture
def saved(tmp_path) -> Path:
    path = tmp_path / "last.pt"
    save_checkpoint(path, state())
    return path


# --- write_atomic -------------------------------------------------------------------------------


def test_a_file_is_written_with_its_folders_and_the_usual_mode(tmp_path):
    path = tmp_path / "a" / "b" / "file.txt"
    write_atomic(path, lambda file: file.write(b"hello"))
    assert path.read_bytes() == b"hello"
    assert list(path.parent.iterdir()) == [path]
    beside = tmp_path / "beside"
    beside.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(beside.stat().st_mode)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_a_writer_that_fails_leaves_the_old_file_whole(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(file):
        file.write(b"half of the new one")
        file.flush()
        raise error

    with pytest.raises(type(error)):
        write_atomic(path, write)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_is_there_until_the_new_one_is_whole_and_synced(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    events = []
    real_sync, real_replace = os.fsync, os.replace

    def fsync(descriptor):
        [new] = set(tmp_path.iterdir()) - {path}
        events.append(("sync", path.read_bytes(), new.read_bytes()))
        real_sync(descriptor)

    def replace(source, target):
        events.append(("replace", path.read_bytes(), Path(source).read_bytes()))
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_atomic(path, lambda file: file.write(b"new"))
    assert events == [("sync", b"old", b"new"), ("replace", b"old", b"new")]
    assert path.read_bytes() == b"new"


def test_a_checkpoint_that_cannot_be_saved_leaves_the_old_one(saved):
    before = saved.read_bytes()
    with pytest.raises(Exception, match="pickle"):
        save_checkpoint(saved, state(sums=lambda: None))
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


# --- load_checkpoint ----------------------------------------------------------------------------


def test_what_was_saved_comes_back(saved):
    loaded = load_checkpoint(saved)
    assert set(loaded) == {*KEYS, "digest"}
    assert loaded["format"] == FORMAT
    model = load_model(loaded)
    assert not model.training
    images = torch.rand(2, 3, 8, 8)
    twin = build_model(MODEL_CONFIG)
    twin.load_state_dict(loaded["model"])
    assert torch.equal(model.reconstruct(images), twin.eval().reconstruct(images))


def test_a_run_folder_means_its_best_checkpoint(tmp_path, saved):
    assert find_checkpoint(saved) == saved
    assert find_checkpoint(tmp_path) == saved
    best = tmp_path / "best.pt"
    save_checkpoint(best, state(step=7))
    assert find_checkpoint(tmp_path) == best
    assert load_checkpoint(tmp_path)["step"] == 7


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(CheckpointError, match=rf"{tmp_path}/x.pt does not exist; give a run"):
        load_checkpoint(tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=rf"{tmp_path} holds no best.pt or last.pt; give"):
        load_checkpoint(tmp_path)
    assert issubclass(CheckpointError, UserError)
    assert (CheckpointError.exit_code, UserError.exit_code) == (1, 2)


def one_line(error: pytest.ExceptionInfo) -> str:
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.9, 0.99, 0.9999])
def test_a_truncated_checkpoint_is_said(saved, share):
    data = saved.read_bytes()
    saved.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint") as error:
        load_checkpoint(saved)
    assert one_line(error).startswith(str(saved))
    assert "truncated" in one_line(error)


def test_damage_anywhere_is_said_or_harmless(saved):
    """Bytes turned over, one place at a time: never anything but a CheckpointError."""
    data = saved.read_bytes()
    failed = 0
    for place in range(0, len(data), len(data) // 100):
        saved.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        try:
            load_model(load_checkpoint(saved))
        except CheckpointError:
            failed += 1
    assert failed > 5


@pytest.mark.parametrize(
    "content", [b"hello, I am a text file\n", b"\x80", b"hf", b"(", b"PK\x03\x04", bytes(1000)]
)
def test_a_foreign_file_is_said(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint") as error:
        load_checkpoint(path)
    assert one_line(error).startswith(str(path))


@pytest.mark.parametrize("content", [[1, 2, 3], {"state_dict": {}}, {}, torch.zeros(2), None])
def test_another_programs_checkpoint_is_said(tmp_path, content):
    path = tmp_path / "model.pt"
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=r"is not a checkpoint of train\.py") as error:
        load_checkpoint(path)
    assert all(key in one_line(error) for key in KEYS)


@pytest.mark.parametrize("key", sorted(KEYS - {"format"}))
def test_a_missing_part_is_named(saved, key):
    parts = state()
    del parts[key]
    save_checkpoint(saved, parts)
    with pytest.raises(CheckpointError, match=rf"it lacks {key};"):
        load_checkpoint(saved)


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    path = tmp_path / "evil.pt"
    torch.save(state(sums=Evil()), path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(path)
    assert not (tmp_path / "owned").exists()


def test_another_format_is_named(saved):
    save_checkpoint(saved, state(format=FORMAT + 1))
    with pytest.raises(CheckpointError, match=rf"format {FORMAT + 1}, this version reads {FORMAT}"):
        load_checkpoint(saved)


# --- load_model ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codebook_size": 7}, r"size mismatch: codebook\S+ is \(6,.*\(7"),
        ({"hidden_channels": 8}, r"size mismatch: encoder\.0\.weight"),
        ({"quantizer": "vq"}, r"that of a DDCLEMCodebook, not of a VQCodebook"),
        ({"quantizer": "kmeans"}, r"unknown quantizer 'kmeans'"),
        ({"codebok_size": 7}, r"unknown keys.*codebok_size"),
        ({"codebook_size": 0}, r"codebook_size=0"),
        ({"temperature_mode": "warm"}, r"'warm'"),
    ],
)
def test_a_model_of_another_configuration_is_said(changes, message):
    wrong = state(model_config=MODEL_CONFIG | changes)
    with pytest.raises(CheckpointError, match=message) as error:
        load_model(wrong, "run/best.pt")
    assert one_line(error).startswith("run/best.pt does not fit the model that it describes (")


@pytest.mark.parametrize("part", ["model", "model_config"])
def test_parts_of_another_kind_are_said(part):
    with pytest.raises(CheckpointError, match="does not fit"):
        load_model(state(**{part: 3}))
