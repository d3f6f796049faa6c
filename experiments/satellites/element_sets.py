"""Two-line elements and Orbit Mean-Elements Messages, through the sgp4 package."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterator
from json import JSONDecodeError
from typing import IO, Any, NamedTuple
from xml.etree.ElementTree import ParseError

from eval.packages import require
from training.errors import DatasetError


class Row(NamedTuple):
    """An object as its file has it.

    Attributes:
        name: Of the object.
        label: Its class, "" where the file states none.
        elements: ``period`` (minutes), ``perigee`` and ``apogee`` (km above the equator's radius),
            ``eccentricity``, ``inclination`` (degrees); NaN where blank.
    """

    name: str
    label: str
    elements: dict[str, float]


# An object, or why it cannot be used.
Record = Row | str


def tle_records(text: str) -> Iterator[Record]:
    """Objects of two-line elements, each with or without a line of its name above it.

    Args:
        text: The file. A line that is neither line 1 nor line 2 names the object that follows.

    Returns:
        Records; a reason for a line without its other half, one cut off, a wrong checksum.

    Example:
        >>> lines = '''ISS (ZARYA)
        ... 1 25544U 98067A   19343.69339541  .00001764  00000-0  38792-4 0  9991
        ... 2 25544  51.6439 211.2001 0007417  17.6667  85.6398 15.50103472202482'''
        >>> row, = tle_records(lines)
        >>> row.name, round(row.elements["inclination"], 4)
        ('ISS (ZARYA)', 51.6439)
    """
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    name, place = "", 0
    while place < len(lines):
        line, place = lines[place], place + 1
        if is_line(2, line):
            yield "line 2 without line 1"
        elif not is_line(1, line):
            name = line.removeprefix("0 ").strip()
            continue
        elif place == len(lines) or not is_line(2, lines[place]):
            yield "line 1 without line 2"
        else:
            yield tle_record(name or line[2:7].strip(), line, lines[place])
            place += 1
        name = ""


def is_line(number: int, line: str) -> bool:
    """Whether a line is the first or the second of a pair.

    Example:
        >>> is_line(2, "2 25544  51.6439"), is_line(2, "2 SISTERS"), is_line(1, "2 25544  51.6439")
        (True, False, False)
    """
    return bool(re.match(rf"{number} [0-9A-Z ][0-9 ]{{3}}\d[ A-Z]", line))


def tle_record(name: str, first: str, second: str) -> Record:
    """The object of a pair of lines."""
    api, io_module = sgp4("api"), sgp4("io")
    if min(len(first), len(second)) < 69:
        return "line cut off"
    try:
        io_module.verify_checksum(first, second)
    except ValueError:
        return "wrong checksum"
    return record(name, lambda: api.Satrec.twoline2rv(first, second))


def omm_records(text: str) -> Iterator[Record]:
    """Objects of an Orbit Mean-Elements Message, XML, CSV or JSON.

    Args:
        text: The file. JSON is one object or a list of them, with the keys that the columns of
            CSV have.

    Returns:
        Records; a reason for one that lacks an element, or holds what is no number.

    Raises:
        DatasetError: If XML or JSON is damaged, or a segment of it lacks a part.
    """
    api, omm = sgp4("api"), sgp4("omm")
    start = text.lstrip()[:1]
    parse = omm.parse_xml if start == "<" else parse_json if start in "[{" else omm.parse_csv

    def satellite(fields: dict[str, Any]) -> Any:
        made = api.Satrec()
        omm.initialize(made, fields)
        return made

    try:
        for fields in parse(io.StringIO(text)):
            name = str(fields.get("OBJECT_NAME") or fields.get("NORAD_CAT_ID") or "?")
            yield record(name, lambda fields=fields: satellite(fields))  # type: ignore[misc]
    except (ParseError, JSONDecodeError, AttributeError, TypeError) as error:
        raise DatasetError(f"this is no Orbit Mean-Elements Message: {error}") from error


def parse_json(file: IO[str]) -> list[dict[str, Any]]:
    """The field dictionaries of a message in JSON, as sgp4's parsers give them.

    Raises:
        JSONDecodeError: If it is damaged.
        TypeError: If it is neither an object nor a list of objects.

    Example:
        >>> parse_json(io.StringIO('{"OBJECT_NAME": "ISS"}'))
        [{'OBJECT_NAME': 'ISS'}]
    """
    content = json.load(file)
    found = content if isinstance(content, list) else [content]
    for fields in found:
        if not isinstance(fields, dict):
            raise TypeError(f"expected a list of objects, got {json.dumps(fields):.40} in it")
    return found


def record(name: str, load: Callable[[], Any]) -> Record:
    """The object that sgp4 loads, or why it does not."""
    try:
        satellite = load()
    except KeyError as column:
        return f"no {column.args[0]}"
    except (ValueError, TypeError):
        return "elements that are no numbers"
    if satellite.error:
        return f"sgp4's error {satellite.error}"
    return Row(name.strip(), "", elements_of(satellite))


def elements_of(satellite: Any) -> dict[str, float]:
    """Mean elements at epoch.

    The period is that of the mean motion as published (Kozai's); perigee and apogee are sgp4's own,
    of the mean motion without Kozai's term (Brouwer's), which is up to 0.1 % apart.

    Args:
        satellite: A ``sgp4.api.Satrec``.
    """
    radius = satellite.radiusearthkm
    motion = satellite.no_kozai  # radians a minute
    return {
        "period": 2 * math.pi / motion if motion > 0 else math.nan,
        "perigee": satellite.altp * radius,
        "apogee": satellite.alta * radius,
        "eccentricity": satellite.ecco,
        "inclination": math.degrees(satellite.inclo),
    }


def sgp4(module: str) -> Any:
    """A module of the sgp4 package.

    Raises:
        UserError: If the package is not installed.
    """
    from importlib import import_module

    require("sgp4", purpose="reading orbital elements")
    return import_module(f"sgp4.{module}")
