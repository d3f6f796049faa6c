"""Accuracy, collapse and cost of readouts on SST-2, at one budget of training for all.

    python benchmarks/readout_quality.py --json docs/results/readout-quality.json

Token embeddings of a frozen encoder, a trained linear map to 64 with layer norm, a readout, a
linear head. Every readout gets the same sentences, batches and epochs, and its own learning rate,
chosen on the dev split with a seed that the results do not use. The test split is read once a run.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, NamedTuple

import click
import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.codebooks import machine
from experiments.documents.corpora import data_folder, load_text
from experiments.documents.embeddings import TokenEmbeddings, embed, padded
from experiments.documents.encoder import load_encoder
from experiments.readout.baselines import (
    CLSReadout,
    CrossAttentionReadout,
    MeanReadout,
    SlotAttentionReadout,
    distinct_slots,
)
from softvq import DDCLCodebook, DDCLEMCodebook, DDCLReadout, two_timescale_groups
from training.checkpoint import check_target, write_text
from training.errors import UserError

WIDTH, SIZE, BATCH = 64, 16, 64
RATES = (1e-3, 3e-3, 1e-2)
TUNING_SEED = 100
AT_LEAST_ONE = click.IntRange(1)
PLAIN: dict[str, Any] = {"usage_weight": 0.0, "restart_threshold": 0.0}
PLAIN_EM = PLAIN | {"commitment": 0.25, "balance": 0.0}
READOUTS: dict[str, Callable[[], nn.Module]] = {
    "cls": lambda: CLSReadout(WIDTH),
    "mean": lambda: MeanReadout(WIDTH),
    "queries": lambda: CrossAttentionReadout(WIDTH, SIZE, heads=4),
    "slots": lambda: SlotAttentionReadout(WIDTH, SIZE),
    "ddcl": lambda: DDCLReadout(DDCLCodebook(WIDTH, SIZE, usage_weight=0.0, restart_threshold=0.0)),
    "ddcl, head on proportions": lambda: DDCLReadout(
        DDCLCodebook(WIDTH, SIZE, usage_weight=0.0, restart_threshold=0.0)
    ),
    "ddcl-em": lambda: DDCLReadout(DDCLEMCodebook(WIDTH, SIZE, **PLAIN_EM)),
    "ddcl-em, head on proportions": lambda: DDCLReadout(DDCLEMCodebook(WIDTH, SIZE, **PLAIN_EM)),
}


class Split(NamedTuple):
    """Sentences of one split."""

    embeddings: TokenEmbeddings
    labels: Tensor


class Classifier(nn.Module):
    """Linear map and layer norm, a readout, a linear head on one of its outputs."""

    def __init__(self, name: str, dim: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(dim, WIDTH), nn.LayerNorm(WIDTH, elementwise_affine=False)
        )
        self.readout = READOUTS[name]()
        self.field = "proportions" if name.endswith("proportions") else "pooled"
        self.head = nn.Linear(SIZE if self.field == "proportions" else WIDTH, 2)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Any]:
        """Logits (B, 2) of encoder's tokens (B, T, D), and what the readout returned."""
        out = self.readout(self.trunk(tokens), mask)
        return self.head(getattr(out, self.field)), out


@click.command()
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write all rows there.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder with text/ and the encoder.")
@click.option("--cache", type=click.Path(path_type=Path), default=Path("runs/embeddings"))
@click.option(
    "--limit", type=AT_LEAST_ONE, default=2048, show_default=True,
    help="Sentences of a split, at most.",
)  # fmt: skip
@click.option("--epochs", type=AT_LEAST_ONE, default=4, show_default=True)
@click.option("--seeds", type=AT_LEAST_ONE, default=5, show_default=True)
@click.option(
    "--workers", type=AT_LEAST_ONE, default=2, show_default=True,
    help="Processes of one thread each.",
)  # fmt: skip
def main(
    path: Path | None,
    data: Path | None,
    cache: Path,
    limit: int,
    epochs: int,
    seeds: int,
    workers: int,
) -> None:
    """Tune, train and evaluate every readout; print a table."""
    started = time.perf_counter()
    check_target(path, "--json")
    torch.set_num_threads(1)  # Also what makes a fork safe.
    splits = read(data, cache, limit)
    work = partial(compare, seeds=seeds, epochs=epochs, splits=splits)
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        rows = []
        for row in pool.imap(work, READOUTS):
            print(line(row), file=sys.stderr, flush=True)
            rows.append(row)
    sizes = {split: len(part.labels) for split, part in splits.items()}
    result = {
        "sentences": sizes,
        "epochs": epochs,
        "width": WIDTH,
        "size": SIZE,
        "workers": workers,
        "machine": machine(Namespace(threads=1, device="cpu")),
        "minutes": (time.perf_counter() - started) / 60,
        "rows": rows,
    }
    print(
        "| readout | lr | test accuracy | distinct slots | of present | distinct prototypes "
        "| CPU ms a step |\n|---|---|---|---|---|---|---|"
    )
    print("\n".join(map(line, rows)))
    if path:
        write_text(path, json.dumps(result) + "\n")


def compare(name: str, seeds: int, epochs: int, splits: dict[str, Split]) -> dict[str, Any]:
    """A readout at the learning rate that is best on dev, and its runs at that rate."""
    tuned = {rate: train(name, rate, TUNING_SEED, epochs, splits, "dev") for rate in RATES}
    rate = max(tuned, key=lambda r: tuned[r]["accuracy"])
    return {
        "readout": name,
        "lr": rate,
        "dev": {str(r): run["accuracy"] for r, run in tuned.items()},
        "runs": [train(name, rate, seed, epochs, splits, "test") for seed in range(seeds)],
    }


def read(data: Path | None, cache: Path, limit: int) -> dict[str, Split]:
    """Token embeddings and labels of all splits."""
    folder = data_folder("minilm_l6_v2_fp16", data and data / "minilm_l6_v2_fp16", "--data")
    corpora = load_text("sst2", data and data / "text", limit).splits
    encoder = load_encoder(folder)
    return {
        name: Split(
            embed(corpus.texts, encoder, cache, max_length=64, progress=name),
            torch.as_tensor(corpus.labels),
        )
        for name, corpus in corpora.items()
    }


def batches(split: Split, order: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Tokens, mask and labels of 64 sentences at a time."""
    for rows in order.split(BATCH):
        yield (*padded(split.embeddings, rows), split.labels[rows])


def train(
    name: str, lr: float, seed: int, epochs: int, splits: dict[str, Split], held_out: str
) -> dict[str, float]:
    """One run: what it reaches on a split that it has not seen, and what a step costs."""
    torch.manual_seed(seed)
    split = splits["train"]
    model = Classifier(name, split.embeddings.tokens.shape[1])
    if isinstance(model.readout, DDCLReadout):
        tokens, mask = padded(split.embeddings, torch.arange(min(512, len(split.labels))))
        model.readout.initialize(model.trunk(tokens).detach(), mask, seed=seed)
    optimizer = torch.optim.Adam(two_timescale_groups(model, lr, epsilon=0.1))
    seconds, residual = [], 0.0
    for _ in range(epochs):
        for tokens, mask, labels in batches(split, torch.randperm(len(split.labels))):
            started = time.process_time()
            logits, out = model(tokens, mask)
            optimizer.zero_grad()
            (F.cross_entropy(logits, labels) + out.loss).backward()
            optimizer.step()
            if isinstance(model.readout, DDCLReadout):
                model.readout.after_step(out)
                residual = max(residual, identity_residual(out.code.losses))
            seconds.append(time.process_time() - started)
    found = evaluate(model.eval(), splits[held_out])
    return {**found, "cpu_ms": 1e3 * median(seconds), "identity_residual": residual}


@torch.no_grad()
def identity_residual(losses: dict[str, Tensor]) -> float:
    """How far L_q is from L_OLS + V, over L_q."""
    split = losses["loss_ols"] + losses["variance"]
    return float((losses["loss_q"] - split).abs() / losses["loss_q"])


@torch.no_grad()
def evaluate(model: Classifier, split: Split) -> dict[str, float]:
    """Accuracy; how many slots of a sentence differ, and of how many that are there at all."""
    right, distinct, present = 0, [], []
    for tokens, mask, labels in batches(split, torch.arange(len(split.labels))):
        logits, out = model(tokens, mask)
        right += int((logits.argmax(dim=1) == labels).sum())
        if out.prototypes is not None:
            there = torch.ones(out.prototypes.shape[:2], dtype=torch.bool)
            if out.proportions is not None:
                # A tenth of an even share.
                there = out.proportions > 0.1 / SIZE
            distinct += distinct_slots(out.prototypes, there).tolist()
            present += there.sum(dim=1).tolist()
    found = {"accuracy": right / len(split.labels)}
    if distinct:
        found |= {"distinct": mean(distinct), "present": mean(present)}
    if isinstance(model.readout, DDCLReadout):
        found["prototypes"] = int(distinct_slots(model.readout.codebook.codebook[None]))
    return found


def line(row: dict[str, Any]) -> str:
    """A row of the table: means over seeds, and the spread of the accuracy."""
    runs = row["runs"]

    def average(key: str) -> str:
        values = [run[key] for run in runs if key in run]
        return f"{mean(values):.1f}" if values else ""

    accuracy = [100 * run["accuracy"] for run in runs]
    spread = f" ± {stdev(accuracy):.1f}" if len(accuracy) > 1 else ""
    cells = [row["readout"], f"{row['lr']:g}", f"{mean(accuracy):.1f}{spread} %"]
    cells += [average(key) for key in ("distinct", "present", "prototypes", "cpu_ms")]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
