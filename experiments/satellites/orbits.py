"""Orbits from files, checked; their features; regimes by a rule."""

from __future__ import annotations

import csv
import io
import lzma
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.satellites.element_sets import Record, Row, is_line, omm_records, tle_records
from training.errors import DatasetError

EARTH_RADIUS = 6378.137  # km, at the equator, WGS 84
EARTH_MU = 398600.4418  # km^3 / s^2, WGS 84
SIDEREAL_DAY = 1436.07  # minutes
LOWEST_PERIGEE = 80.0  # km; below, nothing completes a revolution
# Beyond these, a figure contradicts perigee and apogee: a slip, not a manoeuvre since.
PERIOD_TOLERANCE = 0.25  # relative
ECCENTRICITY_TOLERANCE = 0.1  # absolute

ELEMENTS = ("period", "perigee", "apogee", "eccentricity", "inclination")
FEATURES = ("log10 period", "log10 perigee", "log10 apogee", "eccentricity", "inclination")
REGIMES = ("LEO", "MEO", "GEO", "Elliptical")

UCS_NAME = "Current Official Name of Satellite"
UCS_CLASS = "Class of Orbit"
UCS_COLUMNS = {
    "period": "Period (minutes)",
    "perigee": "Perigee (km)",
    "apogee": "Apogee (km)",
    "eccentricity": "Eccentricity",
    "inclination": "Inclination (degrees)",
}
EXPECTED = (
    "expected the UCS satellite database (tab-separated), two-line elements, or an Orbit "
    "Mean-Elements Message (XML, CSV or JSON)"
)


class Orbits(NamedTuple):
    """The N objects of a file that can be used.

    Attributes:
        source: What the file was read as.
        names: (N,) of the objects.
        elements: (N, 5) float64, the ``ELEMENTS``: period in minutes, perigee and apogee in km
            above the equator's radius, eccentricity, inclination in degrees.
        labels: (N,) classes that the file itself states, or None.
        rows: Objects in the file; blank lines are none.
        dropped: Reason to number of the objects left out.
        filled: Objects whose blank period or eccentricity follows from perigee and apogee.
    """

    source: str
    names: list[str]
    elements: NDArray[np.float64]
    labels: NDArray[np.str_] | None
    rows: int
    dropped: dict[str, int]
    filled: int


def read_orbits(path: Path) -> Orbits:
    """Orbits of a file; its content says of which kind it is.

    Args:
        path: The UCS satellite database (tab-separated), two-line elements, or an Orbit
            Mean-Elements Message as XML, CSV or JSON; plain, or compressed by xz.

    Raises:
        DatasetError: If the file is missing, of none of these kinds, lacks a column, or holds no
            object that can be used.
    """
    try:
        text = read_text(path)
        source, records = records_of(text)
        kept, dropped, filled = usable(records, labelled=source == "UCS")
    except DatasetError as error:
        raise DatasetError(f"{path}: {error}") from error
    if not kept:
        raise DatasetError(f"{path}, read as {source}: no object can be used, {dict(dropped)}")
    return Orbits(
        source=source,
        names=[row.name for row in kept],
        elements=np.array([[row.elements[name] for name in ELEMENTS] for row in kept]),
        labels=np.array([row.label for row in kept]) if source == "UCS" else None,
        rows=len(kept) + sum(dropped.values()),
        dropped=dict(dropped),
        filled=filled,
    )


def usable(records: Iterable[Record], labelled: bool) -> tuple[list[Row], Counter[str], int]:
    """Objects to keep with all elements, reasons of the others, and how many had a blank filled."""
    kept: list[Row] = []
    dropped: Counter[str] = Counter()
    filled = 0
    for record in records:
        made = checked(record, labelled) if isinstance(record, Row) else record
        if isinstance(made, str):
            dropped[made] += 1
            continue
        kept.append(made)
        filled += made != record
    return kept, dropped, filled


def read_text(path: Path) -> str:
    """A text file, plain or compressed by xz."""
    if not path.is_file():
        raise DatasetError(f"no such file; {EXPECTED}")
    try:
        content = path.read_bytes()
        return (lzma.decompress(content) if path.suffix == ".xz" else content).decode("utf-8-sig")
    except (UnicodeDecodeError, lzma.LZMAError) as error:
        raise DatasetError(f"cannot be read, {error}; {EXPECTED}, in UTF-8") from error


def records_of(text: str) -> tuple[str, Iterator[Record]]:
    """What a text is, ``"UCS"``, ``"TLE"`` or ``"OMM"``, and its objects."""
    lines = [line for line in text.splitlines() if line.strip()]
    head = lines[0] if lines else ""
    if re.match(r"\s*CCSDS_OMM_VERS\s*=", head):
        raise DatasetError(f"an Orbit Mean-Elements Message in KVN is not read; {EXPECTED}")
    if head.lstrip()[:1] in ("[", "{"):
        return "OMM", omm_records(text)
    if "\t" in head:
        return "UCS", ucs_records(text)
    if head.lstrip()[:1] == "<" or "MEAN_MOTION" in head:
        return "OMM", omm_records(text)
    if any(is_line(1, line) for line in lines):
        return "TLE", tle_records(text)
    raise DatasetError(f"its first line is {head[:60]!r}; {EXPECTED}")


def ucs_records(text: str) -> Iterator[Record]:
    """Objects of the UCS table; rows without any text are passed over.

    Args:
        text: The table, tab-separated, with a line of column names.

    Raises:
        DatasetError: If a column is missing.
    """
    table = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t", restval="")
    wanted = [UCS_NAME, UCS_CLASS, *UCS_COLUMNS.values()]
    if missing := [name for name in wanted if name not in (table.fieldnames or [])]:
        raise DatasetError(f"the table lacks the columns {missing}; expected {wanted}")
    for line in table:
        if not any(line[name].strip() for name in wanted):
            continue
        try:
            elements = {name: number(line[column]) for name, column in UCS_COLUMNS.items()}
        except ValueError:
            yield "elements that are no numbers"
            continue
        yield Row(line[UCS_NAME].strip(), regime_name(line[UCS_CLASS]), elements)


def number(text: str) -> float:
    """A number with thousands separators and spaces around it; NaN of a blank.

    Raises:
        ValueError: If it is none.

    Example:
        >>> number(" 5,585 "), number("1.51E-03"), number("")
        (5585.0, 0.00151, nan)
    """
    text = text.replace(",", "").strip()
    return float(text) if text else math.nan


def regime_name(text: str) -> str:
    """The regime that a cell means, whatever its case; another word as it stands.

    Example:
        >>> regime_name(" LEo "), regime_name("")
        ('LEO', '')
    """
    text = text.strip()
    return next((name for name in REGIMES if name.lower() == text.lower()), text)


def checked(row: Row, labelled: bool) -> Record:
    """A row with its blanks filled, or why it cannot be used.

    A blank period or eccentricity follows from perigee and apogee. A row is refused where an
    element is still missing or impossible, or where period or eccentricity contradicts perigee and
    apogee beyond ``PERIOD_TOLERANCE`` and ``ECCENTRICITY_TOLERANCE``.
    """
    if labelled and not row.label:
        return "no class"
    own = row.elements
    if any(math.isnan(own[name]) for name in ("perigee", "apogee", "inclination")):
        return "no perigee, apogee or inclination"
    perigee, apogee = own["perigee"], own["apogee"]
    if not LOWEST_PERIGEE <= perigee <= apogee or not 0 <= own["inclination"] <= 180:
        return "impossible perigee, apogee or inclination"
    implied = {
        "period": kepler_period(perigee, apogee),
        "eccentricity": (apogee - perigee) / (2 * EARTH_RADIUS + apogee + perigee),
    }
    own = own | {name: value for name, value in implied.items() if math.isnan(own[name])}
    period_off = abs(own["period"] / implied["period"] - 1)
    eccentricity_off = abs(own["eccentricity"] - implied["eccentricity"])
    if period_off > PERIOD_TOLERANCE or eccentricity_off > ECCENTRICITY_TOLERANCE:
        return "period or eccentricity contradicts perigee and apogee"
    return row if own == row.elements else row._replace(elements=own)


def kepler_period(perigee: float, apogee: float) -> float:
    """Period in minutes by Kepler's third law.

    Args:
        perigee: In km above the equator's radius.
        apogee: Likewise.

    Example:
        >>> round(kepler_period(35786.0, 35786.0), 1)  # geostationary: a sidereal day
        1436.1
    """
    axis = EARTH_RADIUS + (perigee + apogee) / 2
    return 2 * math.pi * math.sqrt(axis**3 / EARTH_MU) / 60


def features(elements: NDArray[np.float64]) -> NDArray[np.float64]:
    """What is clustered, the ``FEATURES``: periods and altitudes on a logarithmic scale.

    Args:
        elements: (N, 5), the ``ELEMENTS``.

    Returns:
        (N, 5), not standardised.

    Example:
        >>> features(np.array([[100.0, 1000.0, 10000.0, 0.3, 51.6]])).tolist()
        [[2.0, 3.0, 4.0, 0.3, 51.6]]
    """
    return np.concatenate([np.log10(elements[:, :3]), elements[:, 3:]], axis=1)


def regimes(elements: NDArray[np.float64]) -> NDArray[np.str_]:
    """Regimes by a rule of ours, for files that state none.

    Elliptical from an eccentricity of 0.2 on; else GEO within 5 % of a sidereal day, whatever the
    inclination; else LEO up to an apogee of 2,000 km; else MEO.

    Args:
        elements: (N, 5), the ``ELEMENTS``.

    Returns:
        (N,) names out of ``REGIMES``.

    Example:
        >>> regimes(np.array([[96.0, 550, 560, 0.001, 53], [1436.0, 35780, 35790, 0.0, 0.1]]))
        array(['LEO', 'GEO'], dtype='<U10')
    """
    period, _, apogee, eccentricity, _ = elements.T
    conditions = [
        eccentricity >= 0.2,
        np.abs(period / SIDEREAL_DAY - 1) <= 0.05,
        apogee <= 2000,
    ]
    return np.select(conditions, ["Elliptical", "GEO", "LEO"], default="MEO").astype("<U10")
