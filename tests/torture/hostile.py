"""Files and folders that lie: token files, checkpoints, images."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from odd_images import photo
from PIL import Image
from small_runs import command, evaluate, run_small
from torture.child import Outcome, in_child, status_of

from eval.codec.format import MAGIC, UNPACKING, TokenFileError, _checksum, from_bytes
from training.checkpoint import digest_of, load_checkpoint
from training.data.splits import load_splits
from training.errors import UserError

Case = tuple[Outcome, str]
START = len(MAGIC) + 1 + 4
# What a header's values become.
LIES = (
    *(None, -1, 0, 1, 2**31, 2**63, 10**30, 1.5, float("nan"), "", "a/../../b", "\ud800"),
    *([], {}, [[]], [10**9] * 4, "x" * 300, True),
)


def _small_files(folder: Path) -> tuple[Path, Path]:
    """A run, and a file of tokens of three pictures of photographs' sizes."""
    run, pictures = folder / "run", folder / "pictures"
    if not run.exists():
        run_small(run, steps=2)
        for number in range(3):
            photo(pictures / f"{number}.png", (40 + number, 24))
        assert status_of(evaluate("compress", run, pictures, "-o", folder / "t.svq")) == 0
    return run, folder / "t.svq"


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all that is inside nested dictionaries and lists."""
    if at:
        yield at
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield from _places(value[key], (*at, key))


def _lie(value: Any, lies: tuple[Any, ...], generator: random.Random) -> None:
    """Change, delete or double one thing of a nested value in place."""
    *path, last = generator.choice(list(_places(value)))
    for key in path:
        value = value[key]
    act = generator.random()
    if act < 0.15:
        del value[last]
    elif act < 0.25 and isinstance(value, list):
        value.append(copy.deepcopy(value[last]))
    else:
        value[last] = generator.choice(lies)


def _mended(data: bytes, generator: random.Random) -> bytes:
    """Another header with a right length and checksum, or other bytes with a right checksum."""
    (length,) = struct.unpack("<I", data[START - 4 : START])
    header = json.loads(zlib.decompress(data[START : START + length]))
    if generator.random() < 0.6:
        for _ in range(generator.randint(1, 3)):
            _lie(header, LIES, generator)
        packed = zlib.compress(json.dumps(header).encode())
        body = data[: START - 4] + struct.pack("<I", len(packed)) + packed + data[START + length :]
        body = body[:-8]
    else:
        changed = bytearray(data[:-8])
        for _ in range(generator.randint(1, 8)):
            changed[generator.randrange(len(MAGIC), len(changed))] = generator.randrange(256)
        body = bytes(changed)
    return body + _checksum(body)


def token_files(folder: Path, times: int) -> Iterator[Case]:
    """Half damaged at random, half with a right checksum; a hundred in each process."""
    _, file = _small_files(folder)
    data = file.read_bytes()
    honest = from_bytes(data)
    for start in range(0, times, 100):

        def read(start: int = start) -> int:
            generator = random.Random(start)
            for number in range(100):
                mended = number % 2 == 0
                changed = bytearray(data)
                changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
                given = _mended(data, generator) if mended else bytes(changed)
                try:
                    found = from_bytes(given)
                except TokenFileError:
                    continue
                if not mended:
                    return 1
                assert all(len(t) < 10**6 for t in found.tokens)
            return 0

        outcome = in_child(read)
        # The time of a hundred files.
        yield outcome._replace(seconds=outcome.seconds / 100), "wrong" if outcome.status else ""
    assert honest.tokens


def damaged_pictures(folder: Path, times: int) -> Iterator[Case]:
    """`eval decompress` of files with a right checksum: pictures or one line, not both."""
    run, file = _small_files(folder)
    for number in range(times):
        changed, out = folder / "changed.svq", folder / f"out-{number}"
        changed.write_bytes(_mended(file.read_bytes(), random.Random(10_000 + number)))
        outcome = in_child(
            lambda changed=changed, out=out: status_of(
                evaluate("decompress", run, changed, "-o", out)
            )
        )
        wrong = "" if outcome.trace or outcome.status in (0, 1, 2) else "wrong"
        if outcome.status and out.exists() and any(out.rglob("*.png")):
            wrong = "wrong"
        # Bounds hold for what is refused; a picture takes what the model takes.
        yield outcome._replace(seconds=0.0 if outcome.status == 0 else outcome.seconds), wrong
        shutil.rmtree(out, ignore_errors=True)


def checkpoints(folder: Path, times: int) -> Iterator[Case]:
    """One thing of last.pt changed, its digest mended: resumed, or one line."""
    run, _ = _small_files(folder)
    state = torch.load(run / "last.pt", weights_only=True)
    lies = (*LIES[:-1], torch.zeros(3), torch.zeros(2, 2, dtype=torch.int64), {"a": {}})
    for number in range(times):
        out = folder / "edited"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(run, out)
        changed = copy.deepcopy(state)
        _lie(changed, lies, random.Random(number))
        if isinstance(changed.get("config"), dict):  # by default it would load CIFAR-10
            changed["config"].setdefault("dataset", "patches")
        changed.pop("digest", None)
        changed["digest"] = digest_of(changed)
        torch.save(changed, out / "last.pt")

        def resume(out: Path = out) -> int:
            return status_of(command("--resume", "--out", out, "--steps", 2))

        outcome = in_child(resume)
        wrong = "" if outcome.trace or outcome.status in (0, 1, 2) else "wrong"
        yield outcome._replace(seconds=0.0), wrong


def bit_flips(folder: Path, times: int) -> Iterator[Case]:
    """One bit of last.pt: the tensors that were saved, or refused."""
    run, _ = _small_files(folder)
    data, digest = (run / "last.pt").read_bytes(), load_checkpoint(run / "last.pt")["digest"]
    for start in range(0, times, 50):

        def read(start: int = start) -> int:
            for number in range(start, start + 50):
                place = random.Random(number).randrange(len(data) * 8)
                changed = bytearray(data)
                changed[place // 8] ^= 1 << place % 8
                file = folder / "flipped.pt"
                file.write_bytes(changed)
                try:
                    state = load_checkpoint(file)
                except UserError:
                    continue
                if digest_of(state) != digest or state["digest"] != digest:
                    return 1
            return 0

        outcome = in_child(read)
        yield outcome._replace(seconds=outcome.seconds / 50), "wrong" if outcome.status else ""


def odd_folders(folder: Path, times: int) -> Iterator[Case]:
    """Folders of odd and hostile files, with and without --skip-bad."""
    for number in range(times):
        generator, root = random.Random(number), folder / f"odd-{number}"
        for name in range(8):
            photo(root / "class" / f"{name}.png", (20 + name, 18))
        for _ in range(generator.randint(1, 6)):
            generator.choice(ODD)(root, f"odd{generator.randrange(1000)}", generator)

        def load(root: Path = root, number: int = number) -> int:
            try:
                splits = load_splits(
                    "folder", root, image_size=16, skip_bad=number % 2 == 0, announce=lambda _: None
                )
            except UserError:
                return 0 if number % 2 else 1
            hashes = [
                {image.numpy().tobytes() for image in part} for part in (splits.train, splits.test)
            ]
            return 0 if sum(splits.sizes) >= 8 and not hashes[0] & hashes[1] else 1

        outcome = in_child(load)
        yield outcome, "wrong" if outcome.status else ""
        shutil.rmtree(root)


def _bytes(suffix: str, content: Callable[[random.Random], bytes]) -> Callable[..., None]:
    def write(root: Path, name: str, generator: random.Random) -> None:
        (root / f"{name}{suffix}").write_bytes(content(generator))

    return write


def _image(suffix: str, size: tuple[int, int], mode: str, **options: Any) -> Callable[..., None]:
    def write(root: Path, name: str, generator: random.Random) -> None:
        pixels = np.frombuffer(generator.randbytes(size[0] * size[1]), np.uint8)
        image = Image.fromarray(pixels.reshape(size[1], size[0])).convert(mode)
        image.save(root / f"{name}{suffix}", **options)

    return write


def _copy_in(hidden: str) -> Callable[..., None]:
    def write(root: Path, name: str, generator: random.Random) -> None:
        (root / hidden).mkdir(exist_ok=True)
        shutil.copy(root / "class" / "0.png", root / hidden / f"{name}.png")

    return write


def _png(size: tuple[int, int]) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


ODD: list[Callable[..., None]] = [
    *(_image(".png", (9, 9), mode) for mode in ("L", "LA", "P", "1", "RGBA", "I;16")),
    _image(".jpg", (9, 9), "CMYK"),
    _image(".gif", (9, 9), "P"),
    _image(".webp", (12, 9), "RGB"),
    _image(".png", (1, 30_000), "L"),
    _image(".tif", (30_000, 1), "L"),
    _bytes(".png", lambda g: _png((g.randrange(1, 2**31), g.randrange(1, 2**31)))),
    _bytes(".png", lambda g: b"\x89PNG\r\n\x1a\n" + g.randbytes(100)),
    _bytes(".jpg", lambda g: b"%!PS-Adobe-3.0 EPSF-3.0\n"),
    _bytes(".bmp", lambda g: b"BM" + g.randbytes(60)),
    _bytes(".tif", lambda g: b"II*\0\x08\0\0\0" + g.randbytes(90)),
    _bytes(".webp", lambda g: b"RIFF\xff\xff\xff\xffWEBPVP8L" + g.randbytes(40)),
    _bytes(".gif", lambda g: b"GIF89a\xff\xff\xff\xff" + g.randbytes(40)),
    _bytes(".pgm", lambda g: b"P5 99999 99999 255\n"),
    _bytes(".tga", lambda g: g.randbytes(40)),
    _bytes(".jpeg", lambda g: b""),
    _bytes(".txt", lambda g: b"text"),
    _copy_in(".ipynb_checkpoints"),
    _copy_in("__MACOSX"),
    lambda root, name, _: (root / name).symlink_to(root),
    lambda root, name, _: (root / f"{name}.png").symlink_to(root / "class" / "1.png"),
    lambda root, name, _: (root / f"{name}.png").symlink_to(root / "nowhere"),
    lambda root, name, _: os.mkfifo(root / f"{name}.png"),
    lambda root, name, _: (root / f"{name}.png").mkdir(),
    lambda root, name, _: os.link(root / "class" / "2.png", root / f"{name}.png"),
]
HOSTILE: dict[str, tuple[Callable[[Path, int], Iterator[Case]], int]] = {
    "token files, a hundred a process": (token_files, 4000),
    "pictures of mended token files": (damaged_pictures, 60),
    "edited checkpoints": (checkpoints, 600),
    "bit flips in checkpoints, fifty a process": (bit_flips, 300),
    "folders of odd images": (odd_folders, 40),
}
assert UNPACKING
