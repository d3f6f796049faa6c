"""Codebooks in four plain models that nobody tuned: argmax error, codes used, perplexity, seconds.

    python benchmarks/plain_models.py --json results.json     # about half an hour on two cores
    python benchmarks/plain_models.py --steps 300 --seeds 1   # a look

A convolutional autoencoder of images, one of sounds, a transformer over patches, and rows of a
table through an MLP: 128 codes of 16 values, no normalisation of latents, Adam. softvq's codebooks
have their defaults and ``attach``; vector-quantize-pytorch's have the settings that its
documentation recommends. Errors are those of the tokens alone, on data that no model has seen.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from tabulate import tabulate
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import softvq
from benchmarks.plain_networks import DIM, MODELS, ConvImages
from softvq import UtilizationTracker

CODES = 128


class Peer(nn.Module):
    """A quantizer of vector-quantize-pytorch, which looks after itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        from vector_quantize_pytorch import VectorQuantize

        recommended = {"kmeans_init": True, "threshold_ema_dead_code": 2}
        self.quantizer = VectorQuantize(DIM, CODES, **{**recommended, **options})

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        quantized, indices, loss = self.quantizer(z)
        return quantized, indices, loss.sum()

    def encode(self, z: Tensor) -> Tensor:
        return self.quantizer(z)[1]

    def decode(self, indices: Tensor) -> Tensor:
        return self.quantizer.get_codes_from_indices(indices)


QUANTIZERS: dict[str, Callable[[], nn.Module]] = {
    "ddcl-em": lambda: softvq.DDCLEMCodebook(DIM, CODES),
    "ddcl": lambda: softvq.DDCLCodebook(DIM, CODES),
    "vq-ema": lambda: softvq.VQEMACodebook(DIM, CODES),
    "vqp-ema": lambda: Peer(rotation_trick=False),
    "vqp-rotation": lambda: Peer(rotation_trick=True),
    "vqp-diveq": lambda: Peer(directional_reparam=True),
}
PEERS = ("vqp-ema", "vqp-rotation", "vqp-diveq")


@dataclass(frozen=True)
class Case:
    """What a run is made of; ``scale`` multiplies the latents before the codebook."""

    model: str
    quantizer: str
    steps: int
    seed: int
    lr: float = 2e-3
    scale: float = 1.0
    batch: int | None = None


def batches(data: Tensor, size: int, seed: int) -> Iterator[Tensor]:
    """Endless random batches."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield data[torch.randint(len(data), (size,), generator=generator)]


def run(
    case: Case,
    train: Tensor,
    test: Tensor,
    *,
    codebook: nn.Module | None = None,
    every: int | None = None,
) -> dict[str, Any]:
    """Train one model, and measure it at the end.

    Args:
        case: What the run is made of.
        train: Training data (N, ...).
        test: Data that the model never trains on.
        codebook: Another quantizer than the one that ``case.quantizer`` names.
        every: Measure after every so many steps, too; the results are the list ``history``.
    """
    torch.manual_seed(case.seed)
    model = MODELS[case.model]()
    codebook = model.codebook = codebook or QUANTIZERS[case.quantizer]()
    optimizer = torch.optim.Adam(model.parameters(), lr=case.lr)
    if isinstance(codebook, softvq.Codebook):
        softvq.attach(model, optimizer)
    start = time.perf_counter()
    stream = batches(train, case.batch or model.batch, case.seed)
    history = []
    for step, x in zip(range(case.steps), stream, strict=False):
        if every and step and step % every == 0:
            history.append({"step": step, **measure(model, case.scale, train, test)})
            model.train()
        quantized, _, loss = codebook(model.encode(x) * case.scale)
        total = F.mse_loss(model.decode(quantized / case.scale), x) + loss
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    result: dict[str, Any] = {"seconds": time.perf_counter() - start}
    result |= measure(model, case.scale, train, test)
    if every:
        result["history"] = [*history, {"step": case.steps, **result}]
    return result


@torch.no_grad()
def measure(model: nn.Module, scale: float, train: Tensor, test: Tensor) -> dict[str, float]:
    """The test error from tokens alone, and the codes that training data use."""
    model.eval()
    codebook = model.codebook
    tracker = UtilizationTracker(CODES)
    errors = []
    for x in train.split(512):
        tracker.update(codebook.encode(model.encode(x) * scale))
    for x in test.split(512):
        codes = codebook.decode(codebook.encode(model.encode(x) * scale))
        recon = model.decode(codes.reshape(len(x), -1, DIM) / scale)
        errors.append((recon - x).square().flatten(1).mean(dim=1))
    usage = tracker.compute()
    mse = float(torch.cat(errors).mean())
    return {"mse": mse, "used": usage.used, "perplexity": usage.perplexity}


def table(rows: list[dict[str, Any]], steps: int) -> str:
    """Mean argmax error, with the range of the seeds, and the fewest codes used."""
    body = []
    for quantizer in dict.fromkeys(row["quantizer"] for row in rows):
        cells = [quantizer]
        for model in MODELS:
            own = [row for row in rows if row["quantizer"] == quantizer and row["model"] == model]
            own = [row for row in own if row["steps"] == steps]
            if not own:
                cells.append("-")
                continue
            mse = statistics.mean(row["mse"] for row in own)
            spread = statistics.stdev(row["mse"] for row in own) if len(own) > 1 else 0.0
            used = min(row["used"] for row in own)
            perplexity = statistics.mean(row["perplexity"] for row in own)
            cells.append(f"{mse:.4f} ± {spread:.4f}, {used}, {perplexity:.0f}")
        body.append(cells)
    return tabulate(body, headers=[f"{steps} steps", *MODELS], tablefmt="github")


def verdict(rows: list[dict[str, Any]], steps: int) -> list[str]:
    """Each of our codebooks against the best peer of each model, as a geometric mean of errors."""
    rows = [row for row in rows if row["steps"] == steps]

    def mean(quantizer: str, model: str) -> float:
        own = [r["mse"] for r in rows if r["quantizer"] == quantizer and r["model"] == model]
        return statistics.mean(own) if own else math.nan

    models = list(dict.fromkeys(row["model"] for row in rows))
    lines = []
    for quantizer in dict.fromkeys(row["quantizer"] for row in rows):
        if quantizer in PEERS:
            continue
        ratios = [mean(quantizer, m) / min(mean(peer, m) for peer in PEERS) for m in models]
        used = min(row["used"] for row in rows if row["quantizer"] == quantizer)
        shown = ", ".join(
            f"{model} {ratio:.2f}" for model, ratio in zip(models, ratios, strict=True)
        )
        lines.append(
            f"{quantizer}: {statistics.geometric_mean(ratios):.3f} of the best peer's error "
            f"({shown}); at least {used} of {CODES} codes used"
        )
    return lines


STRESS: dict[str, dict[str, Any]] = {
    "latents x 10": {"scale": 10.0}, "latents / 10": {"scale": 0.1},
    "rate 5e-4": {"lr": 5e-4}, "rate 8e-3": {"lr": 8e-3},
    "batches of 8": {"batch": 8}, "batches of 256": {"batch": 256},
}  # fmt: skip


def stress(quantizers: list[str]) -> str:
    """The convolutional model, 300 steps, at other scales, learning rates and batch sizes."""
    train, test = ConvImages.data()
    body = []
    for quantizer in quantizers:
        cells = [quantizer]
        for change in STRESS.values():
            row = run(Case("conv images", quantizer, 300, 0, **change), train, test)
            cells.append(f"{row['mse']:.4f}, {row['used']}")
        body.append(cells)
    return tabulate(body, headers=["error, codes used", *STRESS], tablefmt="github")


@click.command()
@click.option("--steps", default="300,1000", show_default=True, help="Steps, with commas between.")
@click.option("--seeds", default=3, show_default=True, help="Seeds of each model and quantizer.")
@click.option("--models", default=",".join(MODELS), help="Models, with commas between.")
@click.option("--quantizers", default=",".join(QUANTIZERS), help="Quantizers, likewise.")
@click.option("--stress", "stressed", is_flag=True, help="Other scales, rates and batches instead.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all figures.")
def main(
    steps: str, seeds: int, models: str, quantizers: str, stressed: bool, json_file: Path | None
) -> None:
    """Train every quantizer in every model and print the tables."""
    torch.set_num_threads(1)  # small tensors: threads would wait for each other
    if stressed:
        click.echo(stress(quantizers.split(",")))
        return
    rows: list[dict[str, Any]] = []
    lengths = [int(part) for part in steps.split(",")]
    for model in models.split(","):
        train, test = MODELS[model].data()
        for length in lengths:
            for seed in range(seeds):
                for quantizer in quantizers.split(","):
                    case = Case(model, quantizer, length, seed)
                    rows.append({**vars(case), **run(case, train, test)})
                    click.echo(json.dumps(rows[-1]), err=True)
                    if json_file is not None:
                        json_file.write_text(json.dumps(rows, indent=1) + "\n")
    for length in lengths:
        click.echo("\n".join([table(rows, length), *verdict(rows, length), ""]))


if __name__ == "__main__":
    main()
