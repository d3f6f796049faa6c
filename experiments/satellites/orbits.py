"""Orbits of the UCS satellite database, checked, and their features."""

from __future__ import annotations

import lzma
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.errors import DatasetError

EARTH_RADIUS = 6378.137  # km, at the equator, WGS 84
EARTH_MU = 398600.4418  # km^3 / s^2, WGS 84
LOWEST_PERIGEE = 80.0  # km; below, nothing completes a revolution
# Beyond these, a figure contradicts perigee and apogee: a slip, not a manoeuvre since.
PERIOD_TOLERANCE = 0.25  # relative
ECCENTRICITY_TOLERANCE = 0.1  # absolute

FEATURES = ("log10 period", "log10 perigee", "log10 apogee", "eccentricity", "inclination")
REGIMES = ("LEO", "MEO", "GEO", "Elliptical")

NAME = "Current Official Name of Satellite"
CLASS = "Class of Orbit"
COLUMNS = {
    "period": "Period (minutes)",
    "perigee": "Perigee (km)",
    "apogee": "Apogee (km)",
    "eccentricity": "Eccentricity",
    "inclination": "Inclination (degrees)",
}
EXPECTED = "expected the UCS satellite database, tab-separated text in UTF-8"


class Orbits(NamedTuple):
    """The N objects of a file that can be used.

    Attributes:
        names: The names of the objects.
        elements: The columns of ``COLUMNS``, float64 (N, 5): period in minutes, perigee and apogee
            in km above the equator's radius, eccentricity, inclination in degrees.
        labels: The classes of the orbits, strings (N,).
        description: What results say of the file: the number of its ``objects``, blank lines being
            none; of those ``used``; of those ``dropped``, for each reason; of those ``filled``,
            whose blank period or eccentricity is that of perigee and apogee; and of each class.
    """

    names: list[str]
    elements: NDArray[np.float64]
    labels: NDArray[np.str_]
    description: dict[str, Any]


def read_orbits(path: Path) -> Orbits:
    """Read the UCS satellite database, plain or compressed by xz.

    Args:
        path: The file, tab-separated, with a line of column names.

    Raises:
        DatasetError: If the file is missing or damaged, lacks a column, or holds no object that can
            be used.
    """
    table = ucs_table(path)
    perigee, apogee = table["perigee"], table["apogee"]
    implied_period = kepler_period(perigee, apogee)
    implied_eccentricity = (apogee - perigee) / (2 * EARTH_RADIUS + apogee + perigee)
    blank = table[["period", "eccentricity"]].isna().any(axis=1)
    table = table.fillna({"period": implied_period, "eccentricity": implied_eccentricity})
    contradicted = (table["period"] / implied_period - 1).abs() > PERIOD_TOLERANCE
    contradicted |= (table["eccentricity"] - implied_eccentricity).abs() > ECCENTRICITY_TOLERANCE
    possible = perigee.between(LOWEST_PERIGEE, apogee)
    possible &= table["inclination"].between(0, 180)
    missing = table[["perigee", "apogee", "inclination"]].isna().any(axis=1)
    refused = {
        "elements that are no numbers": table["words"],
        "no class": table["label"] == "",
        "no perigee, apogee or inclination": missing,
        "impossible perigee, apogee or inclination": ~possible,
        "period or eccentricity contradicts perigee and apogee": contradicted,
    }
    reasons = np.select(list(refused.values()), list(refused), default="")
    dropped = dict(Counter(reason for reason in reasons.tolist() if reason))
    usable = reasons == ""
    if not usable.any():
        raise DatasetError(f"{path}: no object can be used, {dropped}")
    used = table[usable]
    description = {
        "objects": len(table),
        "used": len(used),
        "dropped": dropped,
        "filled": int(blank[usable].sum()),
        "classes": dict(Counter(used["label"]).most_common()),
    }
    elements, labels = used[list(COLUMNS)].to_numpy(), used["label"].to_numpy(dtype=str)
    return Orbits(used["name"].tolist(), elements, labels, description)


def ucs_table(path: Path) -> Any:
    """Read the columns that are needed, as a data frame; rows without any text are passed over.

    Blank numbers are NaN, and so are words; ``words`` says which rows have such.
    """
    import pandas as pd

    if not path.is_file():
        raise DatasetError(f"{path}: no such file; {EXPECTED}")
    how: Any = {"sep": "\t", "dtype": str, "keep_default_na": False, "encoding": "utf-8-sig"}
    try:
        found = pd.read_csv(path, **how)
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise DatasetError(f"{path} cannot be read, {error}; {EXPECTED}") from error
    wanted = [NAME, CLASS, *COLUMNS.values()]
    if missing := [name for name in wanted if name not in found.columns]:
        raise DatasetError(f"{path} lacks the columns {missing}; {EXPECTED}")
    found = found[wanted].apply(lambda column: column.str.strip())
    found = found[(found != "").any(axis=1)]
    named = {name.lower(): name for name in REGIMES}
    labels = [named.get(label.lower(), label) for label in found[CLASS]]
    cells = found[list(COLUMNS.values())].apply(lambda column: column.str.replace(",", ""))
    numbers = cells.apply(pd.to_numeric, errors="coerce").set_axis(list(COLUMNS), axis=1)
    words = (numbers.isna().to_numpy() & (cells != "").to_numpy()).any(axis=1)
    return numbers.astype(float).assign(name=found[NAME], label=labels, words=words)


def kepler_period(perigee: Any, apogee: Any) -> Any:
    """Return periods in minutes by Kepler's third law.

    Args:
        perigee: The altitudes in km above the equator's radius, numbers or arrays.
        apogee: Likewise.

    Example:
        >>> round(float(kepler_period(35786.0, 35786.0)), 1)  # geostationary: a sidereal day
        1436.1
    """
    axis = EARTH_RADIUS + (perigee + apogee) / 2
    return 2 * np.pi * np.sqrt(axis**3 / EARTH_MU) / 60


def features(elements: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what is clustered, the ``FEATURES``: periods and altitudes on a logarithmic scale.

    Args:
        elements: (N, 5) The columns of ``COLUMNS``.

    Returns:
        (N, 5), not standardised.

    Example:
        >>> features(np.array([[100.0, 1000.0, 10000.0, 0.3, 51.6]])).tolist()
        [[2.0, 3.0, 4.0, 0.3, 51.6]]
    """
    return np.concatenate([np.log10(elements[:, :3]), elements[:, 3:]], axis=1)
