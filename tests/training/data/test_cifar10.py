"""CIFAR-10 of training.data.cifar10: the official files, the download and its failures."""

from __future__ import annotations

import hashlib
import http.server
import pickle
import socket
import tarfile
import threading
import urllib.error
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10

from training.data import cifar10
from training.data.splits import load_splits
from training.errors import DatasetError

SPLITS = ("train", "val", "test")


def test_real_cifar10_has_the_official_images_in_order(cifar10_dir):
    said: list[str] = []
    splits = load_splits("auto", cifar10_dir, announce=said.append)
    assert said == []
    assert splits.name == "cifar10"
    assert str(cifar10_dir) in splits.source
    sizes = [getattr(splits, split).shape for split in SPLITS]
    assert sizes == [(45_000, 3, 32, 32), (5_000, 3, 32, 32), (10_000, 3, 32, 32)]

    def batch(name: str) -> tuple[np.ndarray, list[int]]:
        with open(cifar10_dir / "cifar-10-batches-py" / name, "rb") as file:
            entry = pickle.load(file, encoding="bytes")
        return entry[b"data"].reshape(-1, 3, 32, 32), entry[b"labels"]

    checks = [
        (splits.train[:10_000], splits.train_labels[:10_000], *batch("data_batch_1")),
        (
            splits.train[40_000:],
            splits.train_labels[40_000:],
            *(x[:5_000] for x in batch("data_batch_5")),
        ),
        (splits.val, splits.val_labels, *(x[5_000:] for x in batch("data_batch_5"))),
        (splits.test, splits.test_labels, *batch("test_batch")),
    ]
    for images, labels, expected_images, expected_labels in checks:
        assert images.dtype == torch.uint8
        assert labels.dtype == torch.int64
        np.testing.assert_array_equal(images.numpy(), expected_images)
        assert labels.tolist() == expected_labels


class Served:
    """A tiny CIFAR-10 with its own md5s, as an archive on a local server and unpacked."""

    def __init__(self, folder: Path) -> None:
        self.archive = folder / "site" / "cifar-10-python.tar.gz"
        self.unpacked = folder / "unpacked"
        self.requests: list[str] = []


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Two images per batch; torchvision believes that this is the official data."""
    served = Served(tmp_path)
    batch_dir = served.unpacked / "cifar-10-batches-py"
    batch_dir.mkdir(parents=True)
    served.archive.parent.mkdir()
    random = np.random.default_rng(0)
    md5s = {}
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch", "batches.meta"]:
        pixels = random.integers(0, 256, (2, 3072), dtype=np.uint8)
        labels = random.integers(0, 10, 2).tolist()
        entry = {"data": pixels, "labels": labels, "label_names": list("abcdefghij")}
        data = pickle.dumps(entry, protocol=2)
        (batch_dir / name).write_bytes(data)
        md5s[name] = hashlib.md5(data).hexdigest()
    with tarfile.open(served.archive, "w:gz") as tar:
        tar.add(batch_dir, arcname=batch_dir.name)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(served.archive.parent))

        def log_message(self, *args):
            served.requests.append(self.requestline)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    address = f"http://127.0.0.1:{server.server_port}/{served.archive.name}"
    monkeypatch.setattr(CIFAR10, "url", address)
    archive_md5 = hashlib.md5(served.archive.read_bytes()).hexdigest()
    monkeypatch.setattr(CIFAR10, "tgz_md5", archive_md5)
    for attribute in ("train_list", "test_list"):
        names = [[name, md5s[name]] for name, _ in getattr(CIFAR10, attribute)]
        monkeypatch.setattr(CIFAR10, attribute, names)
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": md5s["batches.meta"]})
    monkeypatch.setattr(cifar10, "TRAIN_IMAGES", 7)
    yield served
    server.shutdown()
    server.server_close()
    thread.join()


def test_cifar10_limits_are_prefixes_and_at_most_what_is_there(tiny):
    splits = load_splits("cifar10", tiny.unpacked)
    limited = load_splits("cifar10", str(tiny.unpacked), limit_train=60_000, limit_test=2)
    assert len(limited.train) == len(limited.train_labels) == 7
    assert torch.equal(limited.val, splits.val[:2])
    assert torch.equal(limited.test_labels, splits.test_labels[:2])
    fewer = load_splits("cifar10", tiny.unpacked, limit_train=4, limit_test=1)
    assert torch.equal(fewer.train, splits.train[:4])
    assert torch.equal(fewer.train_labels, splits.train_labels[:4])
    assert len(fewer.val) == len(fewer.val_labels) == len(fewer.test) == 1


@pytest.fixture
def offline(monkeypatch):
    """torchvision's download fails as it does without a network; records its time-out."""
    timeouts = []

    def download(self):
        timeouts.append(socket.getdefaulttimeout())
        print("Downloading ...")
        raise urllib.error.URLError(OSError(-2, "Name or service\nnot known"))

    monkeypatch.setattr(CIFAR10, "download", download)
    return timeouts


@pytest.mark.parametrize("dataset", ["auto", "cifar10"])
def test_cifar10_is_downloaded_into_the_data_folder(tiny, tmp_path, capfd, dataset):
    data_dir = tmp_path / "new" / "data"
    splits = load_splits(dataset, data_dir)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (7, 3, 2)
    assert capfd.readouterr() == (f"downloading CIFAR-10 into {data_dir}\n", "")
    assert [path.name for path in data_dir.iterdir()] == ["cifar-10-batches-py"]
    assert tiny.requests
    tiny.requests.clear()
    again = load_splits(dataset, data_dir)
    assert torch.equal(again.train, splits.train)
    assert capfd.readouterr() == ("", "")
    assert not tiny.requests


def test_an_archive_in_the_data_folder_is_unpacked_without_the_network(tiny, tmp_path, capfd):
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    archive = data_dir / tiny.archive.name
    archive.write_bytes(tiny.archive.read_bytes())
    splits = load_splits("cifar10", data_dir, download=False)
    expected = load_splits("cifar10", tiny.unpacked)
    assert torch.equal(splits.train, expected.train)
    assert not tiny.requests
    assert sorted(path.name for path in data_dir.iterdir()) == [
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
    ]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dataset", ["auto", "cifar10"])
@pytest.mark.parametrize("damage", ["changed", "missing", "empty folder", "archive"])
def test_a_damaged_copy_is_an_error_and_is_left_alone(tiny, tmp_path, dataset, damage):
    folder = tiny.unpacked / "cifar-10-batches-py"
    data_dir, named = tiny.unpacked, folder
    if damage == "changed":
        (folder / "data_batch_3").write_bytes(b"something else")
    elif damage == "missing":
        (folder / "batches.meta").unlink()
    elif damage == "empty folder":
        data_dir = tmp_path / "data"
        named = data_dir / "cifar-10-batches-py"
        named.mkdir(parents=True)
    else:
        data_dir = tmp_path / "data"
        data_dir.mkdir()
        named = data_dir / "cifar-10-python.tar.gz"
        named.write_bytes(tiny.archive.read_bytes()[:-10])

    def listing() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()}

    before = listing()
    with pytest.raises(DatasetError, match=rf"{named} is .*md5.*move it away"):
        load_splits(dataset, data_dir)
    assert listing() == before
    assert not tiny.requests


def test_auto_falls_back_to_patches_with_one_line(offline, tmp_path, capfd):
    previous = socket.getdefaulttimeout()
    splits = load_splits("auto", tmp_path / "data", limit_train=20, limit_test=5)
    out, err = capfd.readouterr()
    assert splits.name == "patches"
    assert torch.equal(splits.train, load_splits("patches", "", limit_train=20).train)
    assert err == ""
    assert out.count("\n") == 1
    assert str(tmp_path / "data") in out
    assert "Name or service not known" in out
    assert "--dataset patches" in out
    assert not (tmp_path / "data").exists()  # made for the download, and removed again
    assert offline == [20.0]
    assert socket.getdefaulttimeout() == previous


@pytest.mark.parametrize(
    "error", [RuntimeError("File not found or corrupted."), OSError(28, "full")]
)
def test_auto_falls_back_whatever_stops_the_download(monkeypatch, tmp_path, error):
    def download(self):
        Path(self.root, "cifar-10-python.tar.gz").write_bytes(b"half of it")
        raise error

    monkeypatch.setattr(CIFAR10, "download", download)
    said: list[str] = []
    assert load_splits("auto", tmp_path, limit_train=1, announce=said.append).name == "patches"
    assert len(said) == 1
    assert str(error) in said[0]
    assert list(tmp_path.iterdir()) == []


def test_a_broken_connection_falls_back_too(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(CIFAR10, "tgz_md5", "0" * 32)
    said: list[str] = []
    splits = load_splits("auto", tmp_path / "data", limit_train=1, announce=said.append)
    assert splits.name == "patches"
    assert len(said) == 2  # the download had begun
    assert "corrupted" in said[1]
    assert not (tmp_path / "data").exists()  # made for the download, and removed again


def test_a_copy_that_another_run_completes_meanwhile_is_used(tiny, tmp_path, monkeypatch):
    real_download = CIFAR10.download

    def download(self):
        real_download(self)
        (tiny.unpacked / "cifar-10-batches-py").rename(tmp_path / "data" / "cifar-10-batches-py")

    monkeypatch.setattr(CIFAR10, "download", download)
    assert load_splits("cifar10", tmp_path / "data").name == "cifar10"
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["cifar-10-batches-py"]


def test_download_can_be_switched_off(offline, tmp_path):
    said: list[str] = []
    splits = load_splits("auto", tmp_path, download=False, limit_train=1, announce=said.append)
    assert splits.name == "patches"
    assert len(said) == 1
    assert "switched off" in said[0]
    with pytest.raises(DatasetError, match="switched off"):
        load_splits("cifar10", tmp_path, download=False)
    assert offline == []


def test_cifar10_never_falls_back_and_names_three_ways_out(offline, tmp_path, capfd):
    with pytest.raises(DatasetError) as caught:
        load_splits("cifar10", tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    for part in [
        f"no cifar-10-batches-py in {tmp_path}",
        "--data-dir",
        "$SOFTVQ_DATA",
        "allow the network",
        "--dataset patches",
        "--dataset folder",
    ]:
        assert part in message
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
