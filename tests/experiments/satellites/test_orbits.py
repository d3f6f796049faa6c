"""Orbits from the UCS table, two-line elements and OMM, against Kepler and against sgp4."""

import json
import lzma
import math
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sgp4.api import WGS72, Satrec

from experiments.satellites.element_sets import elements_of, is_line
from experiments.satellites.orbits import (
    EARTH_MU,
    EARTH_RADIUS,
    ELEMENTS,
    FEATURES,
    UCS_CLASS,
    UCS_COLUMNS,
    UCS_NAME,
    features,
    kepler_period,
    number,
    read_orbits,
    regimes,
)
from training.errors import DatasetError, UserError

LINES = """1 25544U 98067A   19343.69339541  .00001764  00000-0  38792-4 0  9991
2 25544  51.6439 211.2001 0007417  17.6667  85.6398 15.50103472202482"""
FIELDS = {
    "OBJECT_NAME": "ISS (ZARYA)",
    "OBJECT_ID": "1998-067A",
    "EPOCH": "2019-12-09T16:38:29.363424",
    "MEAN_MOTION": "15.50103472",
    "ECCENTRICITY": ".0007417",
    "INCLINATION": "51.6439",
    "RA_OF_ASC_NODE": "211.2001",
    "ARG_OF_PERICENTER": "17.6667",
    "MEAN_ANOMALY": "85.6398",
    "EPHEMERIS_TYPE": "0",
    "CLASSIFICATION_TYPE": "U",
    "NORAD_CAT_ID": "25544",
    "ELEMENT_SET_NO": "999",
    "REV_AT_EPOCH": "20248",
    "BSTAR": ".38792E-4",
    "MEAN_MOTION_DOT": ".1764E-4",
    "MEAN_MOTION_DDOT": "0",
}
WORDS = ("OBJECT_NAME", "OBJECT_ID", "EPOCH", "CLASSIFICATION_TYPE")
NUMBERS = {
    key: value if key in WORDS else int(value) if value.isdigit() else float(value)
    for key, value in FIELDS.items()
}
IN_METADATA = ("OBJECT_NAME", "OBJECT_ID")
IN_ELEMENTS = (
    "EPOCH",
    "MEAN_MOTION",
    "ECCENTRICITY",
    "INCLINATION",
    "RA_OF_ASC_NODE",
    "ARG_OF_PERICENTER",
    "MEAN_ANOMALY",
)


def as_csv(fields):
    return ",".join(fields) + "\n" + ",".join(fields.values()) + "\n"


def as_xml(fields):
    def part(tag, names):
        return f"<{tag}>" + "".join(f"<{n}>{fields[n]}</{n}>" for n in names) + f"</{tag}>"

    rest = [n for n in fields if n not in IN_METADATA + IN_ELEMENTS]
    metadata = part("metadata", IN_METADATA)
    data = part("meanElements", IN_ELEMENTS) + part("tleParameters", rest)
    body = f"<segment>{metadata}<data>{data}</data></segment>"
    return f'<?xml version="1.0"?>\n<ndm><omm><body>{body}</body></omm></ndm>'


def row(name="A", label="LEO", perigee="500", apogee="510", e="7.3e-4", i="97.4", period="94.7"):
    return {
        UCS_NAME: name,
        UCS_CLASS: label,
        "Type of Orbit": "Polar",
        "Perigee (km)": perigee,
        "Apogee (km)": apogee,
        "Eccentricity": e,
        "Inclination (degrees)": i,
        "Period (minutes)": period,
    }


def as_table(rows):
    return "\n".join(["\t".join(rows[0]), *("\t".join(one.values()) for one in rows)]) + "\n"


@pytest.fixture
def read(tmp_path):
    def of(text, name="orbits.txt"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_orbits(path)

    return of


@pytest.mark.parametrize(
    ("text", "value"),
    [("35,778", 35778), (" 5,585 ", 5585), ("1,234,567.5", 1234567.5), ("1.51E-03", 0.00151)],
)
def test_numbers_with_separators_and_spaces(text, value):
    assert number(text) == value


def test_blank_numbers_are_nan_and_words_are_refused():
    assert math.isnan(number("  "))
    with pytest.raises(ValueError, match="could not convert"):
        number("about 500")


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
    assert orbits.source == "UCS"
    assert orbits.names == list("ABCDE")
    assert orbits.labels.tolist() == ["LEO", "LEO", "GEO", "Elliptical", "MEO"]
    assert (orbits.rows, orbits.dropped, orbits.filled) == (5, {}, 1)
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
    assert (orbits.rows, orbits.dropped) == (3, {reason: 2})


def test_the_table_may_be_compressed_and_begin_with_a_byte_order_mark(read):
    text = as_table([row()])
    plain = read(text)
    for content, name in ((lzma.compress(text.encode()), "t.csv.xz"), ("\ufeff" + text, "t.csv")):
        other = read(content, name)
        assert np.array_equal(other.elements, plain.elements)
        assert other.names == plain.names


def test_the_class_never_reaches_the_features(read):
    rows = [row(), row("C", "GEO", "35,778", "35,793", "1.78E-04", "0.05", "1,436.1")]
    swapped = [one | {UCS_CLASS: "MEO", "Type of Orbit": "Equatorial"} for one in rows]
    first, second = read(as_table(rows)), read(as_table(swapped))
    assert first.labels.tolist() != second.labels.tolist()
    assert np.array_equal(features(first.elements), features(second.elements))
    assert not {UCS_CLASS, "Type of Orbit"} & set(UCS_COLUMNS.values())
    assert not [name for name in FEATURES if "class" in name.lower()]
    assert set(UCS_COLUMNS) == set(ELEMENTS)


def test_features_are_logarithms_of_period_and_altitudes():
    elements = np.array([[94.7, 500, 510, 7e-4, 97.4], [1436.1, 35778, 35793, 2e-4, 0.05]])
    found = features(elements)
    assert found.shape == (2, len(FEATURES))
    np.testing.assert_allclose(10 ** found[:, :3], elements[:, :3])
    assert np.array_equal(found[:, 3:], elements[:, 3:])


def test_two_line_elements_agree_with_kepler_and_with_the_propagated_orbit(read):
    orbits = read(f"ISS (ZARYA)\n{LINES}\n")
    assert (orbits.source, orbits.names, orbits.labels) == ("TLE", ["ISS (ZARYA)"], None)
    period, perigee, apogee, eccentricity, inclination = orbits.elements[0]
    assert period == pytest.approx(1440 / 15.50103472, rel=1e-9)
    assert (eccentricity, inclination) == pytest.approx((0.0007417, 51.6439))
    axis = (EARTH_MU * (60 * period / (2 * math.pi)) ** 2) ** (1 / 3)
    assert EARTH_RADIUS + (perigee + apogee) / 2 == pytest.approx(axis, rel=1e-3)
    assert (apogee - perigee) / 2 == pytest.approx(axis * eccentricity, rel=1e-2)
    satellite = Satrec.twoline2rv(*LINES.splitlines())
    times = np.linspace(0, period / 1440, 200)
    _, positions, _ = satellite.sgp4_array(
        np.full(200, satellite.jdsatepoch), satellite.jdsatepochF + times
    )
    heights = np.linalg.norm(positions, axis=1) - EARTH_RADIUS
    # The Earth's flattening moves the radius by some ten kilometres within a revolution.
    assert heights.min() == pytest.approx(perigee, abs=20)
    assert heights.max() == pytest.approx(apogee, abs=20)


@settings(deadline=None, max_examples=50)
@given(st.floats(200, 40000), st.floats(0, 0.7), st.floats(0, 3.1))
def test_sgp4s_altitudes_obey_keplers_third_law(perigee, eccentricity, inclination):
    axis = (EARTH_RADIUS + perigee) / (1 - eccentricity)
    motion = math.sqrt(EARTH_MU / axis**3) * 60
    satellite = Satrec()
    satellite.sgp4init(
        WGS72, "i", 1, 25000.0, 0.0, 0.0, 0.0, eccentricity, 0.3, inclination, 0.2, motion, 0.1
    )
    found = elements_of(satellite)
    assert found["perigee"] == pytest.approx(perigee, abs=2e-3 * axis)
    apogee = axis * (1 + eccentricity) - EARTH_RADIUS
    assert found["apogee"] == pytest.approx(apogee, abs=2e-3 * axis)
    assert kepler_period(found["perigee"], found["apogee"]) == pytest.approx(
        found["period"], rel=3e-3
    )


def test_omm_says_what_the_two_lines_say(read):
    expected = read(LINES)
    assert expected.names == ["25544"]
    texts = (as_csv(FIELDS), as_xml(FIELDS), json.dumps(FIELDS), json.dumps([NUMBERS], indent="\t"))
    for text in texts:
        orbits = read(text)
        assert (orbits.source, orbits.names) == ("OMM", ["ISS (ZARYA)"])
        np.testing.assert_allclose(orbits.elements, expected.elements, rtol=1e-9)


def test_damaged_element_sets_are_counted(read):
    first, second = LINES.splitlines()
    wrong = second[:-1] + "3"
    lines = [first, wrong, second, first, "0 NAMED", first, second, first[:40], second[:40]]
    orbits = read("\n".join(lines))
    assert orbits.names == ["NAMED"]
    assert orbits.dropped == {
        "wrong checksum": 1,
        "line 2 without line 1": 1,
        "line 1 without line 2": 1,
        "line cut off": 1,
    }
    assert not is_line(1, "1 KUIPER TEST")


def test_a_missing_sgp4_is_one_line_that_says_how_to_install_it(read, monkeypatch):
    monkeypatch.setitem(sys.modules, "sgp4", None)
    for text in (LINES, as_csv(FIELDS)):
        with pytest.raises(UserError) as caught:
            read(text)
        expected = 'reading orbital elements needs sgp4: pip install -e ".[experiments]"'
        assert str(caught.value) == expected


def test_damaged_omm_records_are_counted(read):
    broken = FIELDS | {"MEAN_MOTION": "fast"}
    text = as_csv(FIELDS) + ",".join(broken.values()) + "\n"
    assert read(text).dropped == {"elements that are no numbers": 1}


def test_damaged_records_of_json_are_counted(read):
    broken = [
        FIELDS | {"MEAN_MOTION": "fast"},
        FIELDS | {"ECCENTRICITY": None},
        FIELDS | {"OBJECT_ID": 1998},
        {key: value for key, value in NUMBERS.items() if key != "BSTAR"},
    ]
    orbits = read(json.dumps([NUMBERS | {"OBJECT_NAME": None}, *broken]))
    assert orbits.names == ["25544"]
    assert orbits.dropped == {"elements that are no numbers": 3, "no BSTAR": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected the UCS satellite database"),
        ("hello\nworld\n", "first line is 'hello'; expected the UCS"),
        (b"\xff\xfe\x00\x01", "cannot be read"),
        ("Name\tPerigee (km)\n1\t2\n", "lacks the columns.*Class of Orbit.*expected"),
        ("[]", "no object can be used"),
        ('[{"OBJECT_NAME": "ISS"', "no Orbit Mean-Elements Message"),
        ("[1, 2]", "no Orbit Mean-Elements Message: expected a list of objects, got 1"),
        ("CCSDS_OMM_VERS = 2.0\nMEAN_MOTION = 15.5\n", "in KVN is not read; expected"),
        ("<ndm><omm>", "no Orbit Mean-Elements Message"),
        ("<ndm><segment/></ndm>", "no Orbit Mean-Elements Message"),
        ("OBJECT_NAME,MEAN_MOTION\nISS,15.5\n", "no object can be used.*no CLASSIFICATION_TYPE"),
        (as_table([row(e="575")]), "no object can be used.*contradicts"),
    ],
)
def test_other_files_get_one_clear_line(read, content, message):
    with pytest.raises(DatasetError, match=message) as caught:
        read(content)
    assert "\n" not in str(caught.value)
    assert "orbits.txt" in str(caught.value)


def test_missing_and_damaged_files_are_named(tmp_path, read):
    with pytest.raises(DatasetError, match=r"gone\.csv: no such file; expected the UCS"):
        read_orbits(tmp_path / "gone.csv")
    with pytest.raises(DatasetError, match="cannot be read"):
        read(b"no xz", "bad.csv.xz")


def test_regimes_by_rule():
    elements = np.array(
        [
            [95.0, 500, 510, 0.001, 97],
            [127.0, 1999, 1999, 0.0, 50],
            [127.1, 1990, 2010, 0.001, 50],
            [718.0, 20180, 20190, 0.001, 55],
            [1436.1, 35780, 35790, 0.0, 0.1],
            [1436.1, 35700, 35880, 0.002, 55],
            [718.0, 1000, 39000, 0.74, 63.4],
        ]
    )
    assert regimes(elements).tolist() == ["LEO", "LEO", "MEO", "MEO", "GEO", "GEO", "Elliptical"]


def test_the_real_table(shared):
    orbits = read_orbits(shared / "satellites" / "ucs_satellite_database.csv.xz")
    assert orbits.rows == 7560
    assert len(orbits.names) == len(orbits.labels) == len(orbits.elements)
    assert sum(orbits.dropped.values()) < 0.01 * orbits.rows
    counts = Counter(orbits.labels.tolist())
    assert set(counts) == {"LEO", "GEO", "MEO", "Elliptical"}
    assert counts["LEO"] > 6700
    assert np.isfinite(features(orbits.elements)).all()
    assert np.mean(regimes(orbits.elements) == orbits.labels) > 0.99
