"""Token files with a right checksum whose headers lie: refused at once, in little memory."""

from __future__ import annotations

import json
import resource
import struct
import time
import zlib

import numpy as np
import pytest

from eval.codec.format import (
    MAGIC,
    ImageEntry,
    TokenFile,
    TokenFileError,
    _checksum,
    frequency_table,
    from_bytes,
    to_bytes,
)

START = len(MAGIC) + 1 + 4


def honest(codes: int = 64, count: int = 64, counts: np.ndarray | None = None) -> bytes:
    tokens = np.random.default_rng(0).integers(0, codes, count)
    if counts is not None:
        tokens = np.full(count, int(counts.argmax()))
    table = frequency_table(np.ones(codes) if counts is None else counts)
    image = ImageEntry("a.png", 32, 32, "RGB", (count,))
    return to_bytes(TokenFile("0123", (codes,), (table,), (image,), (tokens,)))


def with_header(data: bytes, text: str) -> bytes:
    (length,) = struct.unpack("<I", data[START - 4 : START])
    packed = zlib.compress(text.encode(), 9)
    body = data[: START - 4] + struct.pack("<I", len(packed)) + packed + data[START + length : -8]
    return body + _checksum(body)


def header_of(data: bytes) -> dict:
    (length,) = struct.unpack("<I", data[START - 4 : START])
    return json.loads(zlib.decompress(data[START : START + length]))


def assert_refused_cheaply(data: bytes) -> None:
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(TokenFileError, match="its header is not one of softvq's"):
        from_bytes(data)
    assert time.monotonic() - start < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024  # KiB


@pytest.mark.parametrize(
    "images",
    [
        [[1, 400_000, 400_000, "RGB", [10**11]]],
        [[1, 40_000, 40_000, "RGB", [10**9]]],
        [[1, 4_000, 4_000, "RGB", [10**7]]],
        [[1, 32, 32, "RGB", [65]]],
        [[10**12, 32, 32, "RGB", [64]]],
        [[1, 2**70, 2**70, "RGB", [2**100]]],
    ],
)
def test_sizes_that_lie(images):
    data = honest()
    assert_refused_cheaply(with_header(data, json.dumps(header_of(data) | {"images": images})))


def test_a_code_that_costs_nothing_fills_no_memory():
    data = honest(codes=1)
    images = [[1, 10**6, 10**6, "RGB", [10**11]]]
    assert_refused_cheaply(with_header(data, json.dumps(header_of(data) | {"images": images})))


def test_a_header_that_inflates():
    data = honest()
    assert_refused_cheaply(with_header(data, '{"model": "' + "a" * 2**28 + '"}'))


def test_a_header_that_is_deep():
    data = honest()
    assert_refused_cheaply(with_header(data, "[" * 200_000 + "]" * 200_000))


@pytest.mark.parametrize("codes", [1, 2, 64])
def test_many_tokens_of_a_code_that_is_nearly_certain_are_read(codes):
    counts = np.zeros(codes)
    counts[-1] = 10**9
    data = honest(codes, 300_000, counts)
    assert len(data) < 2_000
    assert (from_bytes(data).tokens[0] == codes - 1).all()
