"""Run folders that others use, too, checkpoints that are damaged, and weights of strangers."""

import multiprocessing
import os
import pickle
import signal
import sys
import time

import pytest
import torch
from small_runs import arguments, command

from training.checkpoint import load_checkpoint, load_model, save_checkpoint
from training.errors import CheckpointError, UserError
from training.run_folder import FILES, held_run_folder
from training.weights import WEIGHTS_ONLY, WeightsError, fetch_weights


def hold(folder, ready):
    with held_run_folder(folder):
        ready.set()
        time.sleep(60)


@pytest.fixture
def holder(tmp_path):
    """Another process that trains in ``tmp_path / "run"``."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=hold, args=(tmp_path / "run", ready))
    process.start()
    assert ready.wait(60)
    yield process
    process.kill()
    process.join()


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
def test_a_second_training_in_one_folder_is_told(tmp_path, holder):
    result = command(*arguments(out=tmp_path / "run", steps=1))
    assert result.exit_code == 2
    assert "another process is training in" in result.stderr
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == []
    os.kill(holder.pid, signal.SIGKILL)  # whoever held it may die in any way
    holder.join()
    assert command(*arguments(out=tmp_path / "run", steps=1)).exit_code == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", '{"name": "my-website"}'),
        ("config.json", "{}"),
        ("config.json", "[1, 2]"),
        ("config.json", "[" * 100_000),
        ("metrics.jsonl", '{"loss": 1}\n'),
        ("best.pt", "mine"),
        ("status.json", "{}"),
    ],
)
def test_files_of_others_are_not_overwritten(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    result = command(*arguments(out=tmp_path, steps=1))
    assert result.exit_code == 2
    assert f"holds a {name} that train.py did not write" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == text


def test_a_run_that_died_before_its_first_checkpoint_starts_anew(tmp_path):
    assert command(*arguments(out=tmp_path, steps=1)).exit_code == 0
    (tmp_path / "last.pt").unlink()
    assert command(*arguments(out=tmp_path, steps=1)).exit_code == 0
    (tmp_path / "notes.txt").write_text("mine")  # files of other names do not matter
    (tmp_path / "last.pt").unlink()
    assert command(*arguments(out=tmp_path, steps=1)).exit_code == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_what_killed_writes_left_is_swept(tmp_path):
    for name in FILES:
        (tmp_path / f".{name}.abc123").write_text("half")
    (tmp_path / ".hidden").write_text("mine")
    assert command(*arguments(out=tmp_path, steps=1)).exit_code == 0
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == [".hidden"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    assert command(*arguments(out=folder, steps=1)).exit_code == 0
    return folder / "last.pt"


def test_every_changed_tensor_is_noticed(checkpoint, tmp_path):
    state = load_checkpoint(checkpoint)
    copy = tmp_path / "last.pt"
    for part in ("model", "trackers", "optimizer"):
        changed = torch.load(checkpoint, weights_only=True)
        own = changed[part]
        tensors = {
            "model": lambda own=own: list(own.values()),
            "trackers": lambda own=own: [v for tracker in own for v in tracker.values()],
            "optimizer": lambda own=own: [v for s in own["state"].values() for v in s.values()],
        }[part]()
        tensor = next(t for t in tensors if t.numel() > 1)
        storage = tensor.untyped_storage()
        flat = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),))
        flat[len(flat) // 2] ^= 1
        torch.save(changed, copy)
        with pytest.raises(CheckpointError, match="digest differs"):
            load_checkpoint(copy)
        del changed["digest"]  # as the error says
        torch.save(changed, copy)
        assert load_checkpoint(copy)["step"] == state["step"]


def test_flipped_bits_of_the_file_load_as_what_was_saved_or_not_at_all(checkpoint, tmp_path):
    data, copy = bytearray(checkpoint.read_bytes()), tmp_path / "last.pt"
    digest, generator = load_checkpoint(checkpoint)["digest"], torch.Generator().manual_seed(0)
    refused = 0
    for _ in range(60):
        place = int(torch.randint(len(data) * 8, (1,), generator=generator))
        data[place // 8] ^= 1 << place % 8
        copy.write_bytes(data)
        try:
            assert load_checkpoint(copy)["digest"] == digest
        except CheckpointError:
            refused += 1
        data[place // 8] ^= 1 << place % 8
    assert refused > 20  # most of a file is tensors


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_one_line(checkpoint, tmp_path, value):
    from click.testing import CliRunner

    from eval.__main__ import main

    state = load_checkpoint(checkpoint)
    name = next(name for name in state["model"] if name.endswith("codebook"))
    state["model"][name][1, 0] = value
    del state["digest"], state["format"]
    save_checkpoint(tmp_path / "best.pt", state)
    with pytest.raises(CheckpointError, match=f"NaN or infinity in {name}"):
        load_model(load_checkpoint(tmp_path))
    result = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert result.exit_code == 1  # as for each damaged file
    assert "holds NaN or infinity" in result.output
    assert "Traceback" not in result.output


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


def test_a_cached_pickle_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(WEIGHTS_ONLY, raising=False)
    torch.save({"weight": Evil()}, tmp_path / "cached.pth")
    (tmp_path / "legacy.pkl").write_bytes(pickle.dumps(Evil(), protocol=2))
    for name in ("cached.pth", "legacy.pkl"):

        def fetch(name=name):
            return torch.load(tmp_path / name, weights_only=False)

        with pytest.raises(WeightsError, match="give the file with --lpips-weights"):
            fetch_weights(fetch, "--lpips-weights", "weights of a net")
        assert not (tmp_path / "evil").exists()
    assert WEIGHTS_ONLY not in os.environ


def test_a_folder_that_is_held_is_free_again_after(tmp_path):
    with held_run_folder(tmp_path / "run"):
        pass
    with held_run_folder(tmp_path / "run"):
        pass
    again = held_run_folder(tmp_path / "run")
    with held_run_folder(tmp_path / "run"), pytest.raises(UserError, match="another process"):
        again.__enter__()
    assert list(tmp_path.iterdir()) == []  # nothing was trained
