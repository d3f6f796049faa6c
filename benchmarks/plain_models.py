"""Codebooks in four plain models that nobody tuned: argmax error, codes used, perplexity, seconds.

    python benchmarks/plain_models.py --json results.json     # about half an hour on two cores
    python benchmarks/plain_models.py --steps 300 --seeds 1   # a look

A convolutional autoencoder of images, one of sounds, a transformer over patches, and rows of a
table through an MLP: 128 codes of 16 values, no normalisation of latents, Adam. softvq's codebooks
have their defaults and ``attach``; vector-quantize-pytorch's have the settings that its
documentation recommends. Errors are those of the tokens alone, on data that no model was trained on.
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
from softvq import UtilizationTracker

DIM, CODES = 16, 128


# --- models: data (B, ...) to latents (B, N, D) and back ------------------------------------------


class ConvImages(nn.Module):
    """CIFAR-10 images (B, 3, 32, 32) to 64 latents."""

    batch = 32

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ReLU(),
            nn.Conv2d(64, DIM, 1),
        )  # fmt: skip
        self.up = nn.Sequential(
            nn.Conv2d(DIM, 64, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(32, 3, 4, 2, 1),
        )  # fmt: skip

    def encode(self, x: Tensor) -> Tensor:
        return self.down(x).flatten(2).mT  # (B, 64, D)

    def decode(self, z: Tensor) -> Tensor:
        return self.up(z.mT.unflatten(2, (8, 8)))

    @staticmethod
    def data() -> tuple[Tensor, Tensor]:
        from training.data.datasets import load_splits

        splits = load_splits("auto", limit_train=6000, limit_test=1000, announce=click.echo)
        return splits.train.float() / 255, splits.test.float() / 255


class Sounds(nn.Module):
    """Sounds (B, 1, 512), decaying harmonics with noise, to 64 latents."""

    batch = 32

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv1d(1, 32, 8, 4, 2), nn.GELU(), nn.Conv1d(32, 64, 4, 2, 1), nn.GELU(),
            nn.Conv1d(64, DIM, 1),
        )  # fmt: skip
        self.up = nn.Sequential(
            nn.Conv1d(DIM, 64, 3, 1, 1), nn.GELU(), nn.ConvTranspose1d(64, 32, 4, 2, 1), nn.GELU(),
            nn.ConvTranspose1d(32, 1, 8, 4, 2),
        )  # fmt: skip

    def encode(self, x: Tensor) -> Tensor:
        return self.down(x).mT  # (B, 64, D)

    def decode(self, z: Tensor) -> Tensor:
        return self.up(z.mT)

    @staticmethod
    def data() -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator)

        count, time_axis = 5000, torch.arange(512.0)
        pitch = 0.02 * 16 ** uniform(count, 1, 1)  # radians a sample, four octaves
        number = torch.arange(1, 5)[:, None]  # (4, 1)
        weights = uniform(count, 4, 1) / number
        phases = 2 * math.pi * uniform(count, 4, 1)
        waves = (weights * torch.sin(pitch * number * time_axis + phases)).sum(dim=1, keepdim=True)
        waves = waves * torch.exp(-time_axis / (50 + 400 * uniform(count, 1, 1)))
        waves = waves + 0.02 * torch.randn(waves.shape, generator=generator)
        return waves[:4000], waves[4000:]


class PatchTransformer(nn.Module):
    """CIFAR-10 images as 64 patches of 4 x 4 pixels, a transformer on both sides."""

    batch = 32
    data = ConvImages.data

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(0.02 * torch.randn(64, 64))
        self.to_width, self.to_code = nn.Linear(48, 64), nn.Linear(64, DIM)
        self.from_code, self.to_pixels = nn.Linear(DIM, 64), nn.Linear(64, 48)
        layer = dict(d_model=64, nhead=4, dim_feedforward=128, dropout=0.0, batch_first=True)
        self.before, self.after = (nn.TransformerEncoderLayer(**layer) for _ in range(2))

    def encode(self, x: Tensor) -> Tensor:
        patches = F.unfold(x, 4, stride=4).mT  # (B, 64, 48)
        return self.to_code(self.before(self.to_width(patches) + self.place))

    def decode(self, z: Tensor) -> Tensor:
        patches = self.to_pixels(self.after(self.from_code(z) + self.place))  # (B, 64, 48)
        return F.fold(patches.mT, 32, 4, stride=4)


class Rows(nn.Module):
    """Rows of a table (B, 64), handwritten digits of scikit-learn, to four latents each."""

    batch = 256

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4 * DIM))
        self.up = nn.Sequential(nn.Linear(4 * DIM, 128), nn.ReLU(), nn.Linear(128, 64))

    def encode(self, x: Tensor) -> Tensor:
        return self.down(x).unflatten(1, (4, DIM))

    def decode(self, z: Tensor) -> Tensor:
        return self.up(z.flatten(1))

    @staticmethod
    def data() -> tuple[Tensor, Tensor]:
        from sklearn.datasets import load_digits

        rows = torch.from_numpy(load_digits().data).float()
        rows = (rows - rows.mean()) / rows.std()
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
        return rows[:1400], rows[1400:]


MODELS: dict[str, Any] = {
    "conv images": ConvImages,
    "sounds": Sounds,
    "patch transformer": PatchTransformer,
    "rows": Rows,
}


# --- quantizers ------------------------------------------------------------------------------------


class Peer(nn.Module):
    """A quantizer of vector-quantize-pytorch, which looks after itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        from vector_quantize_pytorch import VectorQuantize

        self.quantizer = VectorQuantize(
            DIM, CODES, kmeans_init=True, threshold_ema_dead_code=2, **options
        )

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


# --- one run ---------------------------------------------------------------------------------------


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


def run(case: Case, train: Tensor, test: Tensor) -> dict[str, float]:
    """Train one model; its test error from tokens alone, and the codes that training data use."""
    torch.manual_seed(case.seed)
    model = MODELS[case.model]()
    codebook = model.codebook = QUANTIZERS[case.quantizer]()
    optimizer = torch.optim.Adam(model.parameters(), lr=case.lr)
    if isinstance(codebook, softvq.Codebook):
        softvq.attach(model, optimizer)
    start = time.perf_counter()
    stream = batches(train, case.batch or model.batch, case.seed)
    for _, x in zip(range(case.steps), stream, strict=False):
        quantized, _, loss = codebook(model.encode(x) * case.scale)
        total = F.mse_loss(model.decode(quantized / case.scale), x) + loss
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    seconds = time.perf_counter() - start
    model.eval()
    tracker = UtilizationTracker(CODES)
    errors = []
    with torch.no_grad():
        for x in train.split(512):
            tracker.update(codebook.encode(model.encode(x) * case.scale))
        for x in test.split(512):
            codes = codebook.decode(codebook.encode(model.encode(x) * case.scale))
            recon = model.decode(codes.reshape(len(x), -1, DIM) / case.scale)
            errors.append((recon - x).square().flatten(1).mean(dim=1))
    usage = tracker.compute()
    mse = float(torch.cat(errors).mean())
    return {"mse": mse, "used": usage.used, "perplexity": usage.perplexity, "seconds": seconds}


# --- tables ----------------------------------------------------------------------------------------


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


def stress_cases() -> Iterator[tuple[str, Case]]:
    """The convolutional model at other scales of the latents, learning rates and batch sizes."""
    for quantizer in QUANTIZERS:
        for name, change in (
            ("latents x 10", {"scale": 10.0}), ("latents / 10", {"scale": 0.1}),
            ("rate 5e-4", {"lr": 5e-4}), ("rate 8e-3", {"lr": 8e-3}),
            ("batches of 8", {"batch": 8}), ("batches of 256", {"batch": 256}),
        ):  # fmt: skip
            yield name, Case("conv images", quantizer, 300, 0, **change)


@click.command()
@click.option("--steps", default="300,1000", show_default=True, help="Steps, with commas between.")
@click.option("--seeds", default=3, show_default=True, help="Seeds of each model and quantizer.")
@click.option("--models", default=",".join(MODELS), help="Models, with commas between.")
@click.option("--quantizers", default=",".join(QUANTIZERS), help="Quantizers, likewise.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all figures.")
def main(steps: str, seeds: int, models: str, quantizers: str, json_file: Path | None) -> None:
    """Train every quantizer in every model and print the tables."""
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
        click.echo(table(rows, length))


if __name__ == "__main__":
    main()
