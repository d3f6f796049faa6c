"""One page on a run, for people: a single HTML file that needs no network and no script."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from eval.report.html_template import filled
from eval.report.html_words import PICTURES, QUANTIZERS, SEVERITIES
from eval.report.text import GAP_COLUMNS, LEVEL_COLUMNS, LINES, QUALITY, cell
from training.checkpoint import write_text
from training.figures import to_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = Path(__file__).with_name("report.html.jinja")
DISTANCES = (("rFID", "rfid"), ("ResNet-56 distance", "rfd_resnet56"))
# A path from the root of a file system, up to its last part; not the slashes of an address.
ROOTED = re.compile(r"(?<![\w.:/~])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\'\"<>]+[/\\])+")


class Problem(Protocol):
    """What the page shows of a finding of the doctor; :class:`eval.doctor.Finding` is one."""

    @property
    def name(self) -> str:
        """Short name."""

    @property
    def severity(self) -> str:
        """``"severe"``, ``"warning"`` or ``"note"``."""

    @property
    def evidence(self) -> str:
        """What was measured."""

    @property
    def advice(self) -> str:
        """What to change."""

    @property
    def level(self) -> int | None:
        """From 1, or None."""


class Table(NamedTuple):
    """Cells as text; the first column names the rows."""

    heads: list[str]
    rows: list[list[str]]


class Picture(NamedTuple):
    """A picture as the template shows it; ``source`` is a data URI, sizes are in pixels."""

    name: str
    title: str
    caption: str
    source: str
    width: int
    height: int


def write_page(
    path: Path,
    report: Mapping[str, Any],
    pictures: Mapping[str, Figure] | None = None,
    findings: Sequence[Problem] | None = None,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Write the page.

    What is not given, or not in the report, is left out. Folders of this machine are not named:
    of every path only the last part is shown, of the checkpoint's the run folder too.

    Args:
        path: The file; an older one is replaced once the new one is whole.
        report: What :func:`eval.report.evaluate.evaluate_run` returns.
        pictures: Figures by name, as :func:`training.figures.codebook_pictures` names them.
        findings: Of the doctor; None where it was not asked.
        config: The options of the training.
    """
    shown = [shown_picture(name, figure) for name, figure in (pictures or {}).items()]
    content = cleaned(
        head(report)
        | {
            "tiles": tiles(report),
            "findings": None if findings is None else problems(findings),
            "quality": quality_table(report),
            "gap": gap_table(report),
            "bounds": bounds_table(report),
            "levels": levels_table(report),
            "usage": usage_table(report),
            "definitions": list((report.get("definitions") or {}).items()),
            "unavailable": list(report.get("unavailable") or []),
            "versions": list((report.get("versions") or {}).items()),
            "options": [(k, v) for k, v in (config or {}).items() if v is not None],
        }
    )
    write_text(path, filled(TEMPLATE, **content, pictures=shown))


def head(report: Mapping[str, Any]) -> dict[str, Any]:
    """Name of the run, and what it is in words."""
    named = str(report.get("checkpoint") or "a model").replace("\\", "/")
    if not PurePath(named).parent.name and Path(named).is_file():
        named = str(Path(named).resolve())  # a run given as "." has a name all the same
    *folders, file = PurePath(named).parts
    # train.py gives all runs' files these names, so the folder's says more.
    named_by_folder = file in ("best.pt", "last.pt") and folders
    quantizer = report.get("quantizer")
    sizes = report.get("codebook_size")
    tokenless = quantizer == "none" or report.get("mse_argmax", 0) is None
    return {
        "run": folders[-1] if named_by_folder else file,
        "file": file if named_by_folder else None,
        "quantizer": QUANTIZERS.get(str(quantizer), quantizer),
        "sizes": [f"{size:,}" for size in (sizes if isinstance(sizes, list) else [sizes]) if size],
        "tokenless": tokenless,
        "hard": not tokenless and not any(report.get("gap_levels") or []),
        **{
            name: report.get(name)
            for name in ("dataset", "test_images", "tokens_per_image", "step", "refit_steps")
        },
    }


def tiles(report: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The figures to see first: label, value, and what it is."""
    soft, argmax = report.get("mse_soft"), report.get("mse_argmax")
    found = [
        ("PSNR of the tokens", _value(report, "psnr_argmax", ".1f", " dB"), "higher is better"),
        ("bits per token", _value(report, "bits_per_token", ".4g"), "log2 of the number of codes"),
        ("codes used", _value(report, "utilization", ".1%"), "of the test images"),
        (
            "tokens against soft code",
            None if not soft or argmax is None else f"{argmax / soft:.3f}",
            "ratio of their errors; 1 where nothing is lost",
        ),
    ]
    if argmax is None:
        found.append(("PSNR", _value(report, "psnr_soft", ".1f", " dB"), "higher is better"))
    return [(label, value, note) for label, value, note in found if value is not None]


def quality_table(report: Mapping[str, Any]) -> Table:
    """Soft and argmax side by side; rows of what was measured."""
    rows = []
    for label, key, form in QUALITY:
        both = [report.get(f"{key}_{mode}") for mode in ("soft", "argmax")]
        if any(value is not None for value in both):
            rows.append([label, *(cell(value, form) for value in both)])
    for label, key in DISTANCES:
        own = report.get(key)
        if own:
            for end, note in (("", ""), ("_half", ", of every second image")):
                cells = (cell(own.get(f"{mode}{end}"), ".2f") for mode in ("soft", "argmax"))
                rows.append([f"{label}{note}", *cells])
    return Table(["", "soft", "argmax"], rows)


def gap_table(report: Mapping[str, Any]) -> Table | None:
    """Each way to decode; known columns first, in their order, then any others with figures."""
    rows = report.get("gap")
    if not rows:
        return None
    known = {key: (label, form.lstrip("0123456789")) for label, key, form in GAP_COLUMNS}
    names = [*known, *(key for row in rows for key in row if key not in known)]
    columns = [
        name
        for name in dict.fromkeys(names)
        if name != "decode" and any(isinstance(row.get(name), int | float) for row in rows)
    ]
    heads = [known[name][0] if name in known else name.replace("_", " ") for name in columns]
    forms = [known[name][1] if name in known else ".4g" for name in columns]
    cells = [
        [str(row["decode"]), *(cell(row.get(n), f) for n, f in zip(columns, forms, strict=True))]
        for row in rows
    ]
    return Table(["decoded from", *heads], cells)


def bounds_table(report: Mapping[str, Any]) -> Table | None:
    """What tokens lose against the soft code, beside its bounds, for each soft level."""
    levels = report.get("gap_levels") or []
    names = ("argmax_distance", "argmax_distance_bound", "error_added", "variance")
    rows = [
        [f"level {number}", *(cell(level[name], ".3g") for name in names)]
        for number, level in enumerate(levels, start=1)
        if level
    ]
    heads = ["", "token to soft code", "at most (V / q_max)", "error added", "at most (V)"]
    return Table(heads, rows) if rows else None


def levels_table(report: Mapping[str, Any]) -> Table | None:
    """A row for each level, coarse first."""
    levels = report.get("levels")
    if not levels:
        return None
    columns = [c for c in LEVEL_COLUMNS if any(level.get(c[1]) is not None for level in levels)]
    rows = [
        [str(number), *(cell(level.get(key), _bare(form)) for _, key, form in columns)]
        for number, level in enumerate(levels, start=1)
    ]
    return Table(["level", *(label for label, _, _ in columns)], rows)


def usage_table(report: Mapping[str, Any]) -> Table:
    """How codes are used, and what the tokens cost."""
    measured = [line for line in LINES if report.get(line[1]) is not None]
    return Table(["", "value"], [[label, cell(report[key], form)] for label, key, form in measured])


def problems(findings: Sequence[Problem]) -> list[dict[str, Any]]:
    """Findings, severe ones first."""
    order = [name for name, _ in SEVERITIES]
    found = sorted(findings, key=lambda finding: order.index(finding.severity))
    return [
        {
            "severity": finding.severity,
            "label": dict(SEVERITIES)[finding.severity],
            "name": finding.name.replace("-", " "),
            "evidence": finding.evidence,
            "advice": finding.advice,
            "level": finding.level,
        }
        for finding in found
    ]


def shown_picture(name: str, figure: Figure) -> Picture:
    """A figure as a PNG inside the page, with its title and what it shows."""
    base, _, level = name.partition("_level_")
    title, caption = PICTURES.get(base, (base.replace("_", " ").capitalize(), ""))
    content = to_png(figure)
    width, height = struct.unpack(">II", content[16:24])  # of a PNG's first chunk
    source = "data:image/png;base64," + base64.b64encode(content).decode()
    return Picture(
        name, f"{title}, level {level}" if level else title, caption, source, width, height
    )


def cleaned(value: Any) -> Any:
    """The same without the folders of this machine, in every text that it holds.

    Example:
        >>> cleaned(["no weights in /home/me/nets/alex.pth: see https://example.org/a/b", 3])
        ['no weights in alex.pth: see https://example.org/a/b', 3]
    """
    if isinstance(value, str):
        # Folders may have spaces in their names: those that are known go as a whole.
        for known in (Path.cwd(), Path.home()):
            if len(known.parts) > 1:
                value = value.replace(f"{known}/", "")
        return ROOTED.sub("", value)
    if isinstance(value, Mapping):
        return {key: cleaned(inner) for key, inner in value.items()}
    if isinstance(value, Table):
        return Table(cleaned(value.heads), cleaned(value.rows))
    if isinstance(value, list | tuple):
        return type(value)(cleaned(inner) for inner in value)
    return value


def _value(report: Mapping[str, Any], key: str, form: str, unit: str = "") -> str | None:
    value = report.get(key)
    return None if value is None else format(value, form) + unit


def _bare(form: str) -> str:
    """A format without its width."""
    return form.lstrip("0123456789")
