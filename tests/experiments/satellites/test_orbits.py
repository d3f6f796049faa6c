"""Orbits from the UCS table: odd cells, refused rows, Kepler's third law."""

from __future__ import annotations

import lzma
import math
from collections import Counter

import numpy as np
import pytest

from experiments.satellites.orbits import (
    CLASS,
    COLUMNS,
    EARTH_MU,
    EARTH_RADIUS,
    FEATURES,
    NAME,
    features,
    read_orbits,
)
from training.errors import DatasetError


def row(name="A", label="LEO", perigee="500", apogee="510", e="7.3e-4", i="97.4", period="94.7"):
    return {
        NAME: name, CLASS: label, "Type of Orbit": "Polar", "Perigee (km)": perigee,
        "Apogee (km)": apogee, "Eccentricity": e, "Inclination (degrees)": i,
        "Period (minutes)": period,
    }  # fmt: skip


def as_table(rows):
    return "\n".join(["\t".join(rows[0]), *("\t".join(one.values()) for one in rows)]) + "\n"


@pytest.fixture
def read(tmp_path):
    def of(text, name="orbits.txt"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_orbits(path)

    return of


def test_odd_cells_of_the_table_are_read(read):
    rows = [
        row(),
        row("B", " LEo", " 1,440 ", '"1,459"', "0.00121", "52", " 115.0 "),
        row("C", "GEO", '"35,778"', '"35,793"', "1.78E-04", "0.05", '" 1,436.10 "'),
        row("D", "elliptical", "1,000", "39,000", "0.72", "63.4", "704"),
        dict.fromkeys(row(), ""),
        row("E", "MEO", "20,000", "20,100", "", "55", ""),
    ]
    orbits = read(as_table(rows))
    assert orbits.names == list("ABCDE")
    assert orbits.labels.tolist() == ["LEO", "LEO", "GEO", "Elliptical", "MEO"]
    assert [orbits.description[key] for key in ("objects", "dropped", "filled")] == [5, {}, 1]
    assert orbits.elements[1].tolist() == [115.0, 1440, 1459, 0.00121, 52]
    assert orbits.elements[2].tolist() == [1436.1, 35778, 35793, 1.78e-4, 0.05]
    axis = EARTH_RADIUS + 20050
    period = 2 * math.pi * math.sqrt(axis**3 / EARTH_MU) / 60
    assert orbits.elements[4].tolist() == pytest.approx([period, 20000, 20100, 50 / axis, 55])


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"label": ""}, "no class"),
        ({"perigee": ""}, "no perigee, apogee or inclination"),
        ({"i": ""}, "no perigee, apogee or inclination"),
        ({"apogee": "49"}, "impossible perigee, apogee or inclination"),
        ({"perigee": "20"}, "impossible perigee, apogee or inclination"),
        ({"i": "181"}, "impossible perigee, apogee or inclination"),
        ({"e": "575"}, "period or eccentricity contradicts perigee and apogee"),
        ({"period": "1,436"}, "period or eccentricity contradicts perigee and apogee"),
        ({"period": "9"}, "period or eccentricity contradicts perigee and apogee"),
        ({"period": "about 95"}, "elements that are no numbers"),
    ],
)
def test_rows_that_cannot_be_used_are_dropped_and_counted(read, wrong, reason):
    orbits = read(as_table([row(), row("X", **wrong), row("Y", **wrong)]))
    assert orbits.names == ["A"]
    assert (orbits.description["objects"], orbits.description["dropped"]) == (3, {reason: 2})


def test_the_table_may_be_compressed_and_begin_with_a_byte_order_mark(read):
    text = as_table([row()])
    plain = read(text)
    for content, name in ((lzma.compress(text.encode()), "t.csv.xz"), ("\ufeff" + text, "t.csv")):
        other = read(content, name)
        assert np.array_equal(other.elements, plain.elements)
        assert other.names == plain.names


def test_the_class_never_reaches_the_features(read):
    rows = [row(), row("C", "GEO", "35,778", "35,793", "1.78E-04", "0.05", "1,436.1")]
    swapped = [one | {CLASS: "MEO", "Type of Orbit": "Equatorial"} for one in rows]
    first, second = read(as_table(rows)), read(as_table(swapped))
    assert first.labels.tolist() != second.labels.tolist()
    assert np.array_equal(features(first.elements), features(second.elements))
    np.testing.assert_allclose(10 ** features(first.elements)[:, :3], first.elements[:, :3])
    assert np.array_equal(features(first.elements)[:, 3:], first.elements[:, 3:])
    assert not {CLASS, "Type of Orbit"} & set(COLUMNS.values())
    assert not [name for name in FEATURES if "class" in name.lower()]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read.*expected the UCS satellite database"),
        ("hello\nworld\n", "lacks the columns.*expected the UCS"),
        (b"\xff\xfe\x00\x01", "cannot be read"),
        ("Name\tPerigee (km)\n1\t2\n", "lacks the columns.*Class of Orbit.*expected"),
        (as_table([row(e="575")]), "no object can be used.*contradicts"),
        (lzma.compress(as_table([row()] * 99).encode())[:-30], "cannot be read"),
    ],
)
def test_other_files_get_one_clear_line(tmp_path, read, content, message):
    name = "bad.csv.xz" if content[:1] == b"\xfd" else "orbits.txt"
    with pytest.raises(DatasetError, match=message) as caught:
        read(content, name)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)
    with pytest.raises(DatasetError, match=r"gone\.csv: no such file; expected the UCS"):
        read_orbits(tmp_path / "gone.csv")


def test_the_real_table(shared):
    orbits = read_orbits(shared / "satellites" / "ucs_satellite_database.csv.xz")
    assert orbits.description["objects"] == 7560
    assert len(orbits.names) == len(orbits.labels) == len(orbits.elements)
    assert sum(orbits.description["dropped"].values()) < 75
    counts = Counter(orbits.labels.tolist())
    assert set(counts) == {"LEO", "GEO", "MEO", "Elliptical"}
    assert counts["LEO"] > 6700
    assert np.isfinite(features(orbits.elements)).all()
