"""Tables of a report's figures, which the terminal and the page show, and the terminal's text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tabulate import tabulate

# (label, key, format), of soft and argmax
QUALITY = (
    ("MSE", "mse", ".5f"),
    ("PSNR (dB), mean over images", "psnr", ".2f"),
    ("PSNR (dB) of the mean MSE", "psnr_global", ".2f"),
    ("SSIM", "ssim", ".4f"),
    ("MS-SSIM", "ms_ssim", ".4f"),
    ("LPIPS", "lpips", ".4f"),
)
# Those that are shown where they were measured only.
OPTIONAL = ("ms_ssim", "lpips")
DISTANCES = ("rfid", "rfd_resnet56")

# (label, key, format)
USAGE = (
    ("bits per token (log2 K)", "bits_per_token", ".3f"),
    ("bits per token (entropy of use)", "entropy_bits_per_token", ".3f"),
    ("bits per pixel", "bits_per_pixel", ".4f"),
    ("utilization", "utilization", ".1%"),
    ("dead codes", "dead_codes", "d"),
    ("perplexity", "perplexity", ".1f"),
    ("codes per token", "codes_per_token", ".3f"),
    ("V / L_q", "variance_share", ".3f"),
    ("T / T_c", "temperature_ratio", ".5f"),
    ("parameters", "parameters", ",d"),
    ("images per second", "images_per_second", ".0f"),
)
GAP = (
    ("MSE", "mse", ".5f"),
    ("PSNR", "psnr", ".2f"),
    ("LPIPS", "lpips", ".4f"),
    ("log2 K", "bits_log2_k", ".3f"),
    ("entropy", "bits_entropy", ".3f"),
    ("H(q)", "bits_assignment", ".3f"),
)
BOUNDS = (
    ("token to soft code", "argmax_distance", ".3g"),
    ("at most (V / q_max)", "argmax_distance_bound", ".3g"),
    ("error added", "error_added", ".3g"),
    ("at most (V)", "variance", ".3g"),
)
LEVELS = (
    ("K", "codebook_size", "d"),
    ("tokens", "tokens_per_image", "d"),
    ("used", "utilization", ".1%"),
    ("perpl.", "perplexity", ".1f"),
    ("codes/token", "codes_per_token", ".3f"),
    ("T/T_c", "temperature_ratio", ".4f"),
    ("PSNR so far", "prefix_psnr", ".2f"),
    ("bpp so far", "prefix_bits_per_pixel", ".4f"),
    ("dB lost without", "psnr_drop_without", ".2f"),
)


class Table(NamedTuple):
    """Cells as text; the first column names the rows.

    Example:
        >>> table = Table(["", "soft", "argmax"], [["MSE", "0.5", "-"], ["SSIM", "-", "-"]])
        >>> print(table.text())
                soft    argmax
        MSE      0.5         -
        SSIM       -         -
        >>> table.measured()
        Table(heads=['', 'soft'], rows=[['MSE', '0.5']])
    """

    heads: list[str]
    rows: list[list[str]]

    def text(self) -> str:
        """For a terminal."""
        align = ("left", *["right"] * (len(self.heads) - 1))
        heads = self.heads if any(self.heads) else ()
        return tabulate(self.rows, heads, "plain", disable_numparse=True, colalign=align)

    def measured(self) -> Table:
        """Without the rows and the columns that have no figure at all."""
        rows = [row for row in self.rows if any(text != "-" for text in row[1:])]
        kept = [0, *(n for n in range(1, len(self.heads)) if any(row[n] != "-" for row in rows))]
        return Table([self.heads[n] for n in kept], [[row[n] for n in kept] for row in rows])


def cell(value: Any, form: str) -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else format(value, form)


def quality_table(report: Mapping[str, Any]) -> Table:
    """Soft and argmax side by side, with the Fréchet distances that were measured."""
    modes = ("soft", "argmax")
    rows = []
    for label, key, form in QUALITY:
        both = [cell(report.get(f"{key}_{mode}"), form) for mode in modes]
        if key not in OPTIONAL or both != ["-", "-"]:
            rows.append([label, *both])
    for key in DISTANCES:
        if own := report.get(key):
            rows.append(
                [f"{key}, {own['images']} images", *(cell(own.get(mode), ".3f") for mode in modes)]
            )
            half = (cell(own.get(f"{mode}_half"), ".3f") for mode in modes)
            rows.append(["of every second one", *half])
    return Table(["", *modes], rows)


def usage_table(report: Mapping[str, Any]) -> Table:
    """How codes are used, and what the tokens cost."""
    return Table(["", ""], [[label, cell(report.get(key), form)] for label, key, form in USAGE])


def gap_table(report: Mapping[str, Any]) -> Table:
    """A row for each way to decode; bits are per token, and soft codes have no rate."""
    named = []
    for row in report.get("gap") or []:
        name = row["decode"]
        steps = f", {report.get('refit_steps')}" if name.endswith("refit") else ""
        named.append((name + steps, row))
    return _columns("decoded from", GAP, named)


def bounds_table(report: Mapping[str, Any]) -> Table:
    """What tokens lose against the soft code, beside its bounds, for each soft level."""
    levels = enumerate(report.get("gap_levels") or [], start=1)
    return _columns("level", BOUNDS, [(str(n), level) for n, level in levels if level])


def levels_table(report: Mapping[str, Any]) -> Table:
    """A row for each level, coarse first; none for a model of one level."""
    levels = enumerate(report.get("levels") or [], start=1)
    return _columns("level", LEVELS, [(str(n), level) for n, level in levels])


def _columns(
    head: str,
    columns: Iterable[tuple[str, str, str]],
    rows: Iterable[tuple[str, Mapping[str, Any]]],
) -> Table:
    cells = [[name, *(cell(row.get(key), form) for _, key, form in columns)] for name, row in rows]
    return Table([head, *(label for label, _, _ in columns)], cells)


def format_report(figures: dict[str, Any]) -> str:
    """The figures as text, soft and argmax side by side."""
    sizes = figures["codebook_size"]
    sizes = " + ".join(map(str, sizes)) if isinstance(sizes, list) else sizes
    tokens = f"K = {sizes}, D = {figures['codebook_dim']}, {figures['tokens_per_image']} tokens per"
    what = "no codebook" if sizes is None else f"{tokens} image"
    blocks = [
        f"{figures['quantizer']}, {what}, step {figures['step']}\n"
        f"{figures['checkpoint']} on {figures['test_images']} test images of {figures['dataset']}",
        quality_table(figures).text(),
        usage_table(figures).text(),
    ]
    tables = (levels_table(figures), gap_table(figures), bounds_table(figures))
    blocks += [table.text() for table in tables if table.rows]
    notes = ["A soft code is a continuous latent: compare argmax with argmax, at equal bits."]
    notes += [f"not measured: {line}" for line in figures["unavailable"]]
    return "\n\n".join([*blocks, "\n".join(notes)])
