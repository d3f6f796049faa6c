"""Image files as people have them: odd, damaged, and hostile."""

import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
from odd_images import photo
from PIL import Image

from training.data.image_file import MAX_PIXELS, open_image, suffixes
from training.data.image_folder import find_images
from training.errors import DatasetError
from training.losses import data_variance


@pytest.mark.parametrize("suffix", ["pgm", "png", "tif"])
def test_16_bits_are_scaled_in_every_format(tmp_path, suffix):
    ramp = np.tile(np.linspace(0, 65_535, 64).astype(np.uint16), (8, 1))
    path = tmp_path / f"ramp.{suffix}"
    if suffix == "pgm":
        path.write_bytes(b"P5 64 8 65535\n" + ramp.astype(">u2").tobytes())
    else:
        Image.fromarray(ramp).save(path)
    np.testing.assert_array_equal(np.asarray(open_image(path)), ramp // 257)


@pytest.mark.parametrize("value", range(1, 9))
def test_orientation_is_that_of_pillow(tmp_path, value):
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = value
    path = photo(tmp_path / "a.png", exif=exif)
    with Image.open(path) as image:
        np.testing.assert_array_equal(
            np.asarray(open_image(path)), np.asarray(ImageOps.exif_transpose(image))
        )


def exif_of(entries: list[tuple[int, int, int, bytes]]) -> bytes:
    """EXIF with any tag, type, count and four bytes of value."""
    packed = b"".join(struct.pack("<HHI", *entry[:3]) + entry[3] for entry in entries)
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + packed + b"\0\0\0\0"


ORIENTATION = (0x0112, 3, 1, struct.pack("<HH", 6, 0))


@pytest.mark.parametrize(
    ("entries", "size"),
    [
        ([ORIENTATION, (0x011A, 2, 4, b"abc\0")], (20, 40)),  # text where a ratio should be
        ([ORIENTATION, (0x8769, 4, 1, b"\xff\xff\xff\xff")], (20, 40)),  # leads nowhere
        ([(0x0112, 2, 4, b"six\0")], (40, 20)),
        ([(0x0112, 3, 1, struct.pack("<HH", 99, 0))], (40, 20)),
        ([(0x0112, 3, 2**31, b"\xff\xff\xff\xff")], (40, 20)),
    ],
)
def test_damaged_exif_costs_no_image(tmp_path, entries, size):
    path = photo(tmp_path / "a.jpg", exif=exif_of(entries))
    assert open_image(path).size == size


def png_of(width: int, height: int) -> bytes:
    """A PNG of a few bytes with any size in its header."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("size", [(8193, 8193), (2**31 - 1, 2**31 - 1), (MAX_PIXELS + 1, 1)])
def test_sizes_that_lie_are_refused_before_anything_is_decoded(tmp_path, size):
    (tmp_path / "big.png").write_bytes(png_of(*size))
    with pytest.raises(DatasetError, match=r"cannot read image .*big\.png"):
        open_image(tmp_path / "big.png")


@pytest.mark.parametrize("size", [(1, 20_000), (60_000, 1), (3, 5_000), (5, 30)])
def test_a_line_of_pixels_costs_no_more_than_a_square(tmp_path, size):
    for name in ("train", "val", "test"):
        photo(tmp_path / name / "line.png", size)
    code = (
        "import resource, sys\n"
        "from training.data.splits import load_splits\n"
        "from torchvision.transforms.functional import resize\n"
        "load_splits('patches', limit_train=1, limit_test=1, image_size=8)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "images = load_splits('folder', sys.argv[1], image_size=256).train\n"
        "assert images.shape == (1, 3, 256, 256) and images.float().std() > 0\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert int(result.stdout) < 40 * 1024  # KiB


def test_memory_of_a_folder_is_that_of_its_images(tmp_path):
    for number in range(40):
        photo(tmp_path / f"{number}.png", (32, 32))
    code = (
        "import resource, sys\n"
        "from training.data.image_folder import find_images, read_images\n"
        "from training.losses import data_variance\n"
        "paths = find_images(__import__('pathlib').Path(sys.argv[1])).paths\n"
        "data_variance(read_images(paths, 32))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "images = read_images(paths * 10, 512)\n"
        "data_variance(images)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)\n"
        "print(images.numel())\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    peak, size = map(int, result.stdout.split())
    assert peak < 1.5 * size


def test_variance_is_that_of_the_floats():
    images = torch.randint(0, 200, (30, 3, 8, 8), dtype=torch.uint8)
    images[:, 1] //= 3
    expected = images.double().div(255).var(dim=(0, 2, 3)).mean()
    assert data_variance(images) == pytest.approx(float(expected), rel=1e-12)
    assert data_variance(torch.full((1, 3, 1, 1), 9, dtype=torch.uint8)) == 1e-6


@pytest.mark.parametrize(
    "suffix", ["jfif", "jpe", "jp2", "tga", "apng", "mpo", "avif", "pnm", "bmp", "webp", "gif"]
)
def test_every_suffix_that_pillow_reads_is_read(tmp_path, suffix):
    if f".{suffix}" not in suffixes():
        pytest.skip(f"this Pillow has no .{suffix}")
    form = {"apng": "PNG", "jfif": "JPEG", "jpe": "JPEG", "pnm": "PPM", "jp2": "JPEG2000"}
    path = photo(tmp_path / f"a.{suffix}", (24, 16), format=form.get(suffix, suffix.upper()))
    (tmp_path / "a.heic").write_text("who knows")
    (tmp_path / "README").write_text("text")
    files = find_images(tmp_path)
    assert files.paths == [path]
    assert open_image(path).size == (24, 16)
    assert files.skipped == {"files *.heic": 1, "files without a suffix": 1}


@pytest.mark.parametrize(
    "header", [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"\x89HDF"]
)
def test_other_formats_under_an_images_name_are_not_opened(tmp_path, monkeypatch, header):
    monkeypatch.setattr(subprocess, "Popen", None)  # Ghostscript, say
    (tmp_path / "photo.jpg").write_bytes(header + b"showpage\n" * 20)
    with pytest.raises(DatasetError, match="cannot identify image file"):
        open_image(tmp_path / "photo.jpg")
