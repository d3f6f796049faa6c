"""A report as text for the terminal, soft and argmax side by side."""

from __future__ import annotations

from typing import Any

from training.run_log import width_of

# (label, key, format)
LINES = (
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


def format_report(figures: dict[str, Any]) -> str:
    """The figures as text, soft and argmax side by side."""
    sizes = figures["codebook_size"]
    sizes = " + ".join(map(str, sizes)) if isinstance(sizes, list) else sizes
    tokens = f"K = {sizes}, D = {figures['codebook_dim']}, {figures['tokens_per_image']} tokens per"
    what = "no codebook" if sizes is None else f"{tokens} image"
    lines = [
        f"{figures['quantizer']}, {what}, step {figures['step']}",
        f"{figures['checkpoint']} on {figures['test_images']} test images of {figures['dataset']}",
        "",
        f"{'':34}{'soft':>12}{'argmax':>12}",
    ]
    for label, key, form in QUALITY:
        both = [figures[f"{key}_{mode}"] for mode in ("soft", "argmax")]
        if key not in OPTIONAL or any(value is not None for value in both):
            lines.append(f"{label:34}" + "".join(f"{cell(value, form):>12}" for value in both))
    lines += [line for name in ("rfid", "rfd_resnet56") for line in _distance(figures, name)]
    lines.append("")
    lines += [f"{label:34}{cell(figures[key], form):>12}" for label, key, form in LINES]
    if "levels" in figures:
        lines += ["", *format_levels(figures["levels"])]
    if figures["gap"] is not None:
        lines += ["", *format_gap(figures)]
    lines += ["", "A soft code is a continuous latent: compare argmax with argmax, at equal bits."]
    lines += [f"not measured: {line}" for line in figures["unavailable"]]
    return "\n".join(lines)


def _distance(figures: dict[str, Any], name: str) -> list[str]:
    """A Fréchet distance, with that of half of the pairs."""
    if name not in figures:
        return []
    own = figures[name]
    cells = "".join(f"{cell(own.get(mode), '.3f'):>12}" for mode in ("soft", "argmax"))
    half = "".join(f"{cell(own.get(f'{mode}_half'), '.3f'):>12}" for mode in ("soft", "argmax"))
    label = f"{name}, {own['images']} images"
    return [
        f"{label:34}{cells}",
        f"{'  of every second one':34}{half}",
    ]


# (heading, key, format)
GAP_COLUMNS = (
    ("MSE", "mse", "8.5f"),
    ("PSNR", "psnr", "6.2f"),
    ("LPIPS", "lpips", "7.4f"),
    ("log2 K", "bits_log2_k", "7.3f"),
    ("entropy", "bits_entropy", "7.3f"),
    ("H(q)", "bits_assignment", "7.3f"),
)


def format_gap(figures: dict[str, Any]) -> list[str]:
    """The table of soft, top-k and argmax; bits are per token, and soft codes have no rate."""
    heads = [head.rjust(width_of(form)) for head, _, form in GAP_COLUMNS]
    lines = [" ".join([f"{'decoded from':26}", *heads])]
    for row in figures["gap"]:
        name = row["decode"]
        if name.endswith("refit"):
            name += f", {figures['refit_steps']}"
        cells = [cell(row[key], form).rjust(width_of(form)) for _, key, form in GAP_COLUMNS]
        lines.append(" ".join([f"{name:26}", *cells]))
    for number, level in enumerate(figures["gap_levels"], start=1):
        if level is not None:
            of = f"level {number}: " if len(figures["gap_levels"]) > 1 else ""
            lines.append(
                f"{of}|p_argmax - soft code|^2 = {level['argmax_distance']:.3g}, bound V / q_max = "
                f"{level['argmax_distance_bound']:.3g}; error added by tokens "
                f"{level['error_added']:.3g}, bound V = {level['variance']:.3g}"
            )
    return lines


# (heading, key, format)
LEVEL_COLUMNS = (
    ("K", "codebook_size", "6d"),
    ("tokens", "tokens_per_image", "6d"),
    ("used", "utilization", "6.1%"),
    ("perpl.", "perplexity", "7.1f"),
    ("codes/token", "codes_per_token", "11.3f"),
    ("T/T_c", "temperature_ratio", "7.4f"),
    ("PSNR so far", "prefix_psnr", "11.2f"),
    ("bpp so far", "prefix_bits_per_pixel", "10.4f"),
    ("dB lost without", "psnr_drop_without", "15.2f"),
)


def format_levels(levels: list[dict[str, Any]]) -> list[str]:
    """A table: a line for each level, coarse first."""
    heads = [head.rjust(width_of(form)) for head, _, form in LEVEL_COLUMNS]
    lines = [" ".join(["level", *heads])]
    for number, level in enumerate(levels, start=1):
        cells = [cell(level[key], form).rjust(width_of(form)) for _, key, form in LEVEL_COLUMNS]
        lines.append(" ".join([f"{number:5d}", *cells]))
    return lines


def cell(value: Any, form: str) -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else format(value, form)
