"""Tokens on disk: entropy-coded indices of images, with all that it takes to read them.

    magic, version | length of header | header | body | checksum
    version: one byte; length: four bytes, little-endian
    header: JSON, deflated: model, codebook sizes, names, images, CRCs of tokens, lengths
    body:   a frequency table of K bytes for each level, all deflated; then a stream for each level

The streams are asymmetric numeral systems (``constriction``) under the table's frequencies, all
images of a level one after the other. The checksum, SHA-256 cut to 8 bytes, is of all before it.
Names are written column by column, so that those of numbered files deflate to less than a byte
each. Version 1, which is still read, wrote of each name what the name before it did not have.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.errors import UserError

MAGIC = b"softvq"
VERSION = 2
READABLE = (1, 2)
CHECKSUM_BYTES = 8
# Fills up the shorter names of a file; no name has it, for it is half of a character.
PAD = "\ud800"
# Frequencies are powers of 2 ** (1 / STEPS): a byte reaches from 1 to 2 ** -31, within 4.5 %.
STEPS = 8
# The coder's frequencies have 24 bits.
LEAST = 2.0**-20

# Bytes that a header or the tables may have once inflated.
MOST_INFLATED = 2**26
# More tokens than the first must not come from fewer bytes of a file than tokens over the second.
MANY_TOKENS, MOST_PER_BYTE = 2**24, 2**12
UNPACKING = (struct.error, zlib.error, RecursionError, MemoryError)

Tokens = NDArray[np.int64]


class TokenFileError(UserError):
    """A file of tokens that cannot be read, or not with this model."""

    exit_code = 1


@dataclass(frozen=True)
class ImageEntry:
    """An image of a file.

    Attributes:
        name: Relative path with forward slashes.
        width: Pixels.
        height: Pixels.
        mode: ``RGB`` or ``L``, what the picture is to be again.
        lengths: Tokens of each level in the file.
    """

    name: str
    width: int
    height: int
    mode: str
    lengths: tuple[int, ...]

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.width, self.height


@dataclass(frozen=True)
class TokenFile:
    """What a file holds.

    Attributes:
        model: Hash of the model that made the tokens.
        codebook_sizes: K of each level in the file, coarse first.
        tables: For each level uint8 (K,), what :func:`frequency_table` gives.
        images: In the order of their tokens.
        tokens: For each level int64 (M,), those of all images, row by row.
    """

    model: str
    codebook_sizes: tuple[int, ...]
    tables: tuple[NDArray[np.uint8], ...]
    images: tuple[ImageEntry, ...]
    tokens: tuple[Tokens, ...]

    def bound(self) -> float:
        """Bits of an ideal coder with the frequencies of the tables."""
        pairs = zip(self.tokens, self.tables, strict=True)
        return float(sum(-np.log2(frequencies(table)[part]).sum() for part, table in pairs))


def frequency_table(counts: Sequence[int] | NDArray[Any]) -> NDArray[np.uint8]:
    """Counts as the bytes of a file; no code is impossible.

    Example:
        >>> frequencies(frequency_table([7, 3, 0])).round(2).tolist()
        [0.66, 0.3, 0.04]
    """
    seen = np.asarray(counts, dtype=np.float64) + 0.5
    levels = 255 + np.round(STEPS * np.log2(seen / seen.max()))
    return levels.clip(0, 255).astype(np.uint8)


def frequencies(table: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Probabilities (K,) that a table stands for, none below what the coder can tell apart."""
    weights = np.exp2((table.astype(np.float64) - 255) / STEPS)
    weights = np.maximum(weights / weights.sum(), LEAST)
    return weights / weights.sum()


def to_bytes(file: TokenFile) -> bytes:
    """The bytes of a file."""
    streams = [_coded(part, table) for part, table in zip(file.tokens, file.tables, strict=True)]
    tables = zlib.compress(b"".join(table.tobytes() for table in file.tables), 9)
    names = [image.name for image in file.images]
    header = {
        "model": file.model,
        "sizes": file.codebook_sizes,
        "names": list(map("".join, itertools.zip_longest(*names, fillvalue=PAD))),
        "images": _grouped(file.images),
        "lengths": [len(tables), *map(len, streams)],
        "crcs": [_crc(part) for part in file.tokens],
    }
    packed = zlib.compress(json.dumps(header, separators=(",", ":")).encode(), 9)
    start = MAGIC + bytes([VERSION]) + struct.pack("<I", len(packed))
    data = start + packed + tables + b"".join(streams)
    return data + _checksum(data)


def from_bytes(data: bytes, model: str | None = None) -> TokenFile:
    """Read the bytes of a file.

    Args:
        data: All of them.
        model: Hash of the model that has to have made it; any by default.

    Raises:
        TokenFileError: If they are not of such a file, of another version or model, or damaged.
    """
    if not data.startswith(MAGIC):
        raise TokenFileError("not a file of tokens: give what `python -m eval compress` wrote")
    version = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 1], "big")
    if version not in READABLE and len(data) > len(MAGIC):
        raise TokenFileError(
            f"its format has version {version}, this softvq reads {READABLE[0]} to {VERSION}: use "
            "the version that wrote it"
        )
    body, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
    if _checksum(body) != checksum:
        raise TokenFileError("it is truncated or damaged (its checksum is wrong): copy it again")
    try:
        return _parsed(body, model)
    except (ValueError, TypeError, LookupError, OverflowError, *UNPACKING) as error:
        raise TokenFileError(f"its header is not one of softvq's ({error})") from error


def check_model(made_by: str, model: str) -> None:
    """Refuse a file that another model made.

    Raises:
        TokenFileError: If its tokens mean something else to this one.
    """
    if made_by != model:
        raise TokenFileError(
            f"another model made it ({made_by[:12]}, this one is {model[:12]}): give the run, and "
            "its best.pt or last.pt, that it was compressed with"
        )


def _parsed(body: bytes, model: str | None) -> TokenFile:
    start = len(MAGIC) + 1 + 4
    (length,) = struct.unpack("<I", body[start - 4 : start])
    header = json.loads(_inflated(body[start : start + length], MOST_INFLATED))
    if model is not None:
        check_model(header["model"], model)
    lengths = [start + length, *header["lengths"]]
    if sum(lengths) != len(body):
        raise ValueError("the lengths of its parts do not add up")
    ends = list(itertools.accumulate(lengths))
    parts = [body[a:b] for a, b in itertools.pairwise(ends)]
    sizes = tuple(int(size) for size in header["sizes"])
    joined = np.frombuffer(_inflated(parts[0], MOST_INFLATED), dtype=np.uint8)
    if sum(sizes) != len(joined) or min(sizes, default=0) < 1:
        raise ValueError("its tables are not of the sizes of its codebooks")
    tables = tuple(np.split(joined, np.cumsum(sizes)[:-1]))
    if [len(table) for table in tables] != list(sizes) or len(parts) != len(sizes) + 1:
        raise ValueError("its tables are not of the sizes of its codebooks")
    read_names = _from_columns if body[len(MAGIC)] == VERSION else _from_front_coded
    names = read_names(header["names"])
    images = _from_groups(header["images"], names)
    totals = [sum(image.lengths[n] for image in images) for n in range(len(sizes))]
    for part, table, total in zip(parts[1:], tables, totals, strict=True):
        bits = -total * float(np.log2(frequencies(table).max()))
        if bits > 8 * len(part) + 64 or total > max(MANY_TOKENS, MOST_PER_BYTE * len(body)):
            raise ValueError(f"{total:,} tokens cannot be in {len(part):,} bytes")
    tokens = tuple(map(_decoded, parts[1:], tables, totals))
    if [_crc(part) for part in tokens] != header["crcs"]:
        raise ValueError("its streams do not decode to the tokens that were written")
    return TokenFile(str(header["model"]), sizes, tables, images, tokens)


def _inflated(data: bytes, most: int) -> bytes:
    """Inflate what may be at most so many bytes."""
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(data, most)
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError(f"a part of it is cut, or has more than {most:,} bytes")
    return content


def _coded(tokens: Tokens, table: NDArray[np.uint8]) -> bytes:
    """A stream of little-endian 32-bit words; none for a codebook of one code."""
    from constriction import stream

    if len(table) == 1 or not len(tokens):
        return b""
    coder = stream.stack.AnsCoder()
    model = stream.model.Categorical(frequencies(table), perfect=False)
    coder.encode_reverse(tokens.astype(np.int32), model)
    return coder.get_compressed().astype("<u4").tobytes()


def _decoded(data: bytes, table: NDArray[np.uint8], count: int) -> Tokens:
    from constriction import stream

    if len(table) == 1 or not count:
        return np.zeros(count, dtype=np.int64)
    coder = stream.stack.AnsCoder(np.frombuffer(data, dtype="<u4").astype(np.uint32))
    model = stream.model.Categorical(frequencies(table), perfect=False)
    return coder.decode(model, count).astype(np.int64)


def _grouped(images: Sequence[ImageEntry]) -> list[list[Any]]:
    """Runs of images of one shape: [count, width, height, mode, lengths]."""
    shapes = ((image.width, image.height, image.mode, image.lengths) for image in images)
    return [[len(list(run)), *shape] for shape, run in itertools.groupby(shapes)]


def _from_groups(groups: list[list[Any]], names: list[str]) -> tuple[ImageEntry, ...]:
    images, left = [], iter(names)
    for count, width, height, mode, lengths in groups:
        numbers = (count, width, height, *lengths)
        if any(type(number) is not int or number < 1 for number in numbers):
            raise ValueError(f"it has an image of {width} x {height} pixels and {lengths} tokens")
        if max(lengths) > (width + 1024) * (height + 1024) or mode not in ("L", "RGB"):
            raise ValueError(f"it has an image of {lengths} tokens and mode {mode}")
        for name in itertools.islice(left, count):
            images.append(ImageEntry(str(name), width, height, mode, tuple(lengths)))
    if len(images) != len(names) or sum(group[0] for group in groups) != len(names):
        raise ValueError("it has not as many names as images")
    return tuple(images)


def _crc(tokens: Tokens) -> int:
    return zlib.crc32(tokens.astype("<i8").tobytes())


def _from_columns(columns: list[str]) -> list[str]:
    return ["".join(characters).rstrip(PAD) for characters in zip(*columns, strict=True)]


def _from_front_coded(coded: list[list[Any]]) -> list[str]:
    """Names as [characters at the start, at the end, that the name before had; the rest]."""
    names: list[str] = []
    last = ""
    for front, back, middle in coded:
        last = last[:front] + middle + last[len(last) - back :]
        names.append(last)
    return names


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:CHECKSUM_BYTES]
