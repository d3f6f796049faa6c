"""README's picture: codes in use and the tokens' error while a plain autoencoder trains.

    python benchmarks/codes_in_use.py           # trains, about ten minutes on one core; and draws
    python benchmarks/codes_in_use.py --draw    # draws what is in docs/results/codes-in-use.json

The model is the convolutional one of plain_models.py, on CIFAR-10. Nothing is tuned.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.plain_models import CODES, QUANTIZERS, Case, Peer, run
from benchmarks.plain_networks import ConvImages

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "codes-in-use.json"
PICTURE = ROOT / "docs" / "images" / "codes-in-use.png"
STEPS, EVERY, SEEDS = 1000, 50, 3
# Name in the results: words in the picture, colour, how to make it.
LINES: dict[str, tuple[str, str, Any]] = {
    "vqp-defaults": (
        "VectorQuantize, its defaults",
        "#9a9a9a",
        lambda: Peer(kmeans_init=False, threshold_ema_dead_code=0, rotation_trick=False),
    ),
    "vqp-ema": (
        "VectorQuantize, k-means and dead codes replaced",
        "#5b5b5b",
        QUANTIZERS["vqp-ema"],
    ),
    "ddcl": ("softvq DDCLCodebook, its defaults", "#d95f02", QUANTIZERS["ddcl"]),
    "ddcl-em": ("softvq DDCLEMCodebook, its defaults", "#1b7837", QUANTIZERS["ddcl-em"]),
}


def train_all() -> list[dict[str, Any]]:
    """Every line of the picture, for every seed."""
    train, test = ConvImages.data()
    rows = []
    for seed in range(SEEDS):
        for name, (_, _, make) in LINES.items():
            torch.manual_seed(seed)
            case = Case("conv images", name, STEPS, seed)
            result = run(case, train, test, codebook=make(), every=EVERY)
            for point in result["history"]:
                row = {key: point[key] for key in ("step", "mse", "used", "perplexity")}
                rows.append({"quantizer": name, "seed": seed, **row})
            click.echo(json.dumps(rows[-1]), err=True)
    return rows


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Two panels over the steps: a line is the mean of the seeds, a band their range."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), dpi=120)
    for name, (words, color, _) in LINES.items():
        own = [row for row in rows if row["quantizer"] == name]
        steps = sorted({row["step"] for row in own})
        for axes, key in ((left, "used"), (right, "mse")):
            values = [[row[key] for row in own if row["step"] == step] for step in steps]
            means = [sum(value) / len(value) for value in values]
            axes.plot(steps, means, color=color, label=words, linewidth=2)
            lows, highs = [min(v) for v in values], [max(v) for v in values]
            axes.fill_between(steps, lows, highs, color=color, alpha=0.2, linewidth=0)
    left.set(title=f"codes in use, of {CODES}", xlabel="training steps", ylim=(0, CODES * 1.05))
    right.set(title="mean squared error of the tokens, held-out images", xlabel="training steps")
    right.set_yscale("log")
    right.set_yticks([0.006, 0.01, 0.02, 0.03], labels=["0.006", "0.01", "0.02", "0.03"])
    right.yaxis.set_minor_formatter("")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=2, frameon=False)
    figure.tight_layout(rect=(0, 0.15, 1, 1))
    figure.savefig(file, metadata={"Software": None})
    plt.close(figure)


@click.command()
@click.option("--draw", "only_draw", is_flag=True, help="Train nothing.")
def main(only_draw: bool) -> None:
    """Train, save the figures and draw the picture."""
    torch.set_num_threads(1)
    if not only_draw:
        RESULTS.write_text(json.dumps(train_all(), indent=0) + "\n")
    draw(json.loads(RESULTS.read_text()), PICTURE)
    click.echo(f"picture: {PICTURE}")


if __name__ == "__main__":
    main()
