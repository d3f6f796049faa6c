"""The bytes of a file of tokens: round trip, size, and damage of every kind."""

import base64

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.codec.format import (
    LEAST,
    ImageEntry,
    TokenFile,
    TokenFileError,
    frequencies,
    frequency_table,
    from_bytes,
    to_bytes,
)

NAMES = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=12)


def made(sizes, names, lengths, seed=0, skew=2.0):
    """A file of random tokens, drawn from the frequencies that its tables give."""
    random = np.random.default_rng(seed)
    counts = [(1000 * random.random(size) ** skew).astype(int) for size in sizes]
    tables = tuple(frequency_table(own) for own in counts)
    images = tuple(
        ImageEntry(name, 1 + n % 3, 5, ("RGB", "L")[n % 2], lengths) for n, name in enumerate(names)
    )
    tokens = tuple(
        random.choice(size, len(names) * length, p=frequencies(table))
        for size, length, table in zip(sizes, lengths, tables, strict=True)
    )
    return TokenFile("0123abc", tuple(sizes), tables, images, tokens)


def assert_equal(first, second):
    assert first.model == second.model
    assert first.codebook_sizes == second.codebook_sizes
    assert first.images == second.images
    for mine, theirs in ((first.tables, second.tables), (first.tokens, second.tokens)):
        assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 700), min_size=1, max_size=3),
    names=st.lists(NAMES, max_size=5),
    data=st.data(),
)
def test_round_trip(sizes, names, data):
    lengths = tuple(
        data.draw(st.lists(st.integers(1, 90), min_size=len(sizes), max_size=len(sizes)))
    )
    file = made(sizes, names, lengths, seed=data.draw(st.integers(0, 99)))
    assert_equal(from_bytes(to_bytes(file)), file)


def test_codes_that_training_never_used_can_be_written():
    table = frequency_table([10**9, 0, 0])
    file = TokenFile(
        "m", (3,), (table,), (ImageEntry("a", 1, 1, "L", (4,)),), (np.array([2, 1, 0, 2]),)
    )
    assert_equal(from_bytes(to_bytes(file)), file)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50))
def test_a_table_is_within_five_percent_of_the_counts(counts):
    ours = frequencies(frequency_table(counts))
    exact = np.maximum((np.array(counts) + 0.5) / (np.array(counts) + 0.5).sum(), LEAST)
    assert ours.sum() == pytest.approx(1)
    # A relative error of 4.5 % in the weights, and as much in their sum.
    assert np.all(np.abs(np.log(ours / exact)) < 2 * 0.045)


def test_a_thousand_images_cost_what_their_entropy_is():
    names = [f"test/{number:04d}.png" for number in range(1000)]
    for sizes, lengths in (((512,), (64,)), ((512, 512, 512), (4, 16, 64))):
        file = made(sizes, names, lengths)
        pairs = zip(file.tables, file.tokens, strict=True)
        bound = sum(-np.log2(frequencies(t)[p]).sum() for t, p in pairs)
        assert file.bound() == pytest.approx(bound)
        assert bound / 8 < len(to_bytes(file)) < 1.02 * bound / 8


# Written by the last version, whose format had the number 1.
FIRST = (
    "c29mdHZxAZQAAAB42l2Muw6CQBRE/2XqCe7dB7KUNjZWtoRiQYIYQCJWGv/dXW2M3Z1zz8wT0/XUjSihRJvQtCDW"
    "4dGtKCtDXRNzmD6pUlRE2Ei2zD1qVpqW0OlSFKLJLgvqWBim0H8bEg1HHPc7JF3iNzKX2OGX5H9WHBm7ub+f04oY"
    "FrQRtbc2Zb11ylspnKfxvhBjJff16w03GTRVeNr7eff///8ADlAE1BQvSgIBAAAAAACAAmR/bwnBKiVv"
)


def test_files_of_the_last_version_are_read():
    expected = TokenFile(
        "0123abc",
        (3, 2),
        (frequency_table([5, 0, 9]), frequency_table([1, 1])),
        tuple(
            ImageEntry(name, 4 + n, 5, ("RGB", "L")[n % 2], (2, 1))
            for n, name in enumerate(("a/1.png", "a/2.png", "b.jpg"))
        ),
        (np.array([0, 2, 2, 0, 1, 2]), np.array([1, 0, 1])),
    )
    content = base64.b64decode(FIRST)
    assert_equal(from_bytes(content), expected)
    assert_equal(from_bytes(to_bytes(expected)), expected)
    with pytest.raises(TokenFileError, match="checksum"):
        from_bytes(content[:-1])


def test_every_damage_is_noticed():
    content = to_bytes(made((40, 9), ["a.png", "b.png"], (30, 7)))
    for place in range(len(content)):
        for change in (1, 128):
            damaged = bytearray(content)
            damaged[place] ^= change
            with pytest.raises(TokenFileError):
                from_bytes(bytes(damaged))
    for length in range(len(content)):
        with pytest.raises(TokenFileError):
            from_bytes(content[:length])
    with pytest.raises(TokenFileError, match="checksum"):
        from_bytes(content + b"\0")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a file of tokens"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "not a file of tokens"),
        (b"softvq\x07" + bytes(100), "version 7, this softvq reads 1 to 2"),
    ],
)
def test_foreign_files_are_named(content, words):
    with pytest.raises(TokenFileError, match=words):
        from_bytes(content)


def test_a_file_of_another_model_is_refused_before_its_tokens_are_read():
    content = to_bytes(made((40,), ["a.png"], (30,)))
    assert from_bytes(content, model="0123abc").model == "0123abc"
    with pytest.raises(TokenFileError, match="another model made it"):
        from_bytes(content, model="other")


@pytest.mark.parametrize(
    "image",
    [
        ImageEntry("a", 3.5, 5, "RGB", (4,)),
        ImageEntry("a", 1, 1, "RGB", (4_000_000,)),
        ImageEntry("a", 0, 5, "RGB", (4,)),
        ImageEntry("a", 9, 9, "CMYK", (4,)),
        ImageEntry("a", True, 5, "RGB", (4,)),
    ],
)
def test_a_header_of_nonsense_is_refused(image):
    table = frequency_table([1, 2])
    tokens = np.zeros(image.lengths[0], dtype=np.int64)
    with pytest.raises(TokenFileError, match="header"):
        from_bytes(to_bytes(TokenFile("m", (2,), (table,), (image,), (tokens,))))


def test_a_table_costs_little_against_the_counts_themselves():
    random = np.random.default_rng(0)
    counts = (1000 * random.random(512) ** 2).astype(int) + 1
    share = counts / counts.sum()
    ideal = -(share * np.log2(share)).sum()
    ours = -(share * np.log2(frequencies(frequency_table(counts)))).sum()
    assert ideal < ours < 1.002 * ideal
