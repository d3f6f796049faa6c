"""One page on a run, for people: a single HTML file that needs no network and no script."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from torch import Tensor

from eval.doctor.finding import SEVERITIES, Finding
from eval.report.tables import bounds_table, gap_table, levels_table, quality_table, usage_table
from eval.run import open_run
from training.checkpoint import write_text
from training.figures import codebook_pictures, to_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = Path(__file__).with_name("report.html.jinja")
# A path from the root of a file system, up to its last part; not the slashes of an address.
ROOTED = re.compile(r"(?<![\w.:/~])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\'\"<>]+[/\\])+")

# Test images for the pictures alone: enough for rare codes, and a few seconds.
MAX_IMAGES = 1024


def filled(template: Path, **values: Any) -> str:
    """A page from a template: what it shows is escaped, and no name is left out in silence.

    Args:
        template: The file.
        values: What it names; one that is missing is an error.

    Example:
        >>> filled(TEMPLATE)
        Traceback (most recent call last):
        jinja2.exceptions.UndefinedError: 'run' is undefined
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(**values)


def write_run_page(
    path: Path,
    run: Path,
    report: Mapping[str, Any],
    findings: Sequence[Finding] | None = None,
    *,
    data_dir: str | None = None,
    limit_test: int | None = None,
    device: str = "auto",
    errors: Tensor | None = None,
) -> None:
    """Draw the pictures of a run, from at most 1,024 of its test images, and write its page.

    Args:
        path: The HTML file.
        run: Run folder (its best.pt) or checkpoint.
        report: What :func:`eval.report.evaluate.evaluate_run` says of the same checkpoint.
        findings: What the doctor found; None where it was not asked.
        data_dir: Folder of the data; where the training found it by default.
        limit_test: Use only the first N test images.
        device: As in train.py.
        errors: (N,), argmax MSE of each test image, to find the worst of all; without them the
            worst are of the images that are drawn.

    Raises:
        UserError: If the checkpoint, the data or the device cannot be used.
    """
    opened = open_run(run, data_dir=data_dir, limit_test=limit_test, device=device)
    pictures = {}
    # Nothing can be drawn of a model that diverged; the doctor says so on the page.
    if all(value.isfinite().all() for value in opened.model.state_dict().values()):
        pictures = codebook_pictures(
            opened.model,
            opened.test_images,
            histories=[tracker["history"] for tracker in opened.state["trackers"]],
            errors=errors,
            max_images=MAX_IMAGES,
        )
    write_page(path, report, pictures, findings, opened.state["config"])


def write_page(
    path: Path,
    report: Mapping[str, Any],
    pictures: Mapping[str, Figure] | None = None,
    findings: Sequence[Finding] | None = None,
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
            "findings": findings and sorted(findings, key=lambda f: SEVERITIES.index(f.severity)),
            "quality": quality_table(report).measured(),
            "gap": gap_table(report).measured(),
            "bounds": bounds_table(report),
            "levels": levels_table(report).measured(),
            "usage": usage_table(report).measured(),
            "definitions": list(report.get("definitions", {}).items()),
            "unavailable": report.get("unavailable", []),
            "versions": list(report.get("versions", {}).items()),
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
    sizes = report.get("codebook_size")
    tokenless = report.get("quantizer") == "none" or report.get("mse_argmax", 0) is None
    names = ("quantizer", "dataset", "test_images", "tokens_per_image", "step", "refit_steps")
    return {
        "run": folders[-1] if named_by_folder else file,
        "file": file if named_by_folder else None,
        "sizes": [f"{size:,}" for size in (sizes if isinstance(sizes, list) else [sizes]) if size],
        "tokenless": tokenless,
        "hard": not tokenless and not any(report.get("gap_levels") or []),
        **{name: report.get(name) for name in names},
    }


def shown_picture(name: str, figure: Figure) -> dict[str, Any]:
    """A figure as the template shows it: ``source`` is a data URI, sizes are in pixels."""
    kind, _, level = name.partition("_level_")
    content = to_png(figure)
    width, height = struct.unpack(">II", content[16:24])  # of a PNG's first chunk
    source = "data:image/png;base64," + base64.b64encode(content).decode()
    size = {"width": width, "height": height}
    return {"name": name, "kind": kind, "level": level, "source": source, **size}


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
    if isinstance(value, list | tuple):
        made = getattr(type(value), "_make", type(value))  # of a named tuple, or of a plain one
        return made(cleaned(inner) for inner in value)
    return value
