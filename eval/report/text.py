"""A report as text for the terminal, soft and argmax side by side."""

from __future__ import annotations

from typing import Any

from eval.report.tables import bounds_table, gap_table, levels_table, quality_table, usage_table


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
