"""Accuracy, collapse and cost of readouts on SST-2, at one budget of training for all.

Token embeddings of a frozen encoder, a trained linear map to 64 with layer norm, a readout, a
linear head. Every readout gets the same sentences, batches and epochs, and its own learning rate,
chosen on the dev split with a seed that the results do not use. The test split is read once a run.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from benchmarks.codebooks import machine
from experiments.command import data_folder
from experiments.documents.corpora import load_text
from experiments.documents.embeddings import TokenEmbeddings, embed, padded
from experiments.documents.encoder import load_encoder
from experiments.identity import identity_residual
from softvq import DDCLCodebook, DDCLEMCodebook, DDCLReadout, two_timescale_groups

from .baselines import (
    CLSReadout,
    CrossAttentionReadout,
    MeanReadout,
    SlotAttentionReadout,
    distinct_slots,
)

WIDTH, SIZE, BATCH = 64, 16, 64
RATES = (1e-3, 3e-3, 1e-2)
TUNING_SEED = 100


def ddcl() -> DDCLReadout:
    """Build a readout whose prototypes learn by gradient, from L_q alone."""
    return DDCLReadout(
        DDCLCodebook(WIDTH, SIZE, temperature=2.0, commitment=0.25, pull=0.0, restart_threshold=0.0)
    )


def ddcl_em() -> DDCLReadout:
    """Build a readout whose prototypes learn by soft EM, from L_q alone."""
    codebook = DDCLEMCodebook(WIDTH, SIZE, commitment=0.25, balance=0.0, restart_threshold=0.0)
    return DDCLReadout(codebook)


READOUTS: dict[str, Callable[[], nn.Module]] = {
    "cls": lambda: CLSReadout(WIDTH),
    "mean": lambda: MeanReadout(WIDTH),
    "queries": lambda: CrossAttentionReadout(WIDTH, SIZE, heads=4),
    "slots": lambda: SlotAttentionReadout(WIDTH, SIZE),
    "ddcl": ddcl,
    "ddcl, head on proportions": ddcl,
    "ddcl-em": ddcl_em,
    "ddcl-em, head on proportions": ddcl_em,
}


class Split(NamedTuple):
    """Sentences of one split: their token embeddings and their labels."""

    embeddings: TokenEmbeddings
    labels: Tensor


class Classifier(nn.Module):
    """Linear map and layer norm, a readout, a linear head on one of its outputs.

    Args:
        name: One of :data:`READOUTS`.
        dim: Size of the encoder's tokens.
    """

    def __init__(self, name: str, dim: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(dim, WIDTH), nn.LayerNorm(WIDTH, elementwise_affine=False)
        )
        self.readout = READOUTS[name]()
        self.field = "proportions" if name.endswith("proportions") else "pooled"
        self.head = nn.Linear(SIZE if self.field == "proportions" else WIDTH, 2)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Any]:
        """Turn the encoder's tokens (B, T, D) into logits (B, 2) and the readout's output."""
        out = self.readout(self.trunk(tokens), mask)
        return self.head(getattr(out, self.field)), out


def compare_all(
    splits: dict[str, Split], *, epochs: int, seeds: int, workers: int
) -> dict[str, Any]:
    """Tune, train and evaluate every readout.

    Args:
        splits: Of :func:`read`.
        epochs: Epochs of each run.
        seeds: Number of seeds at the chosen learning rate.
        workers: Number of processes, of one thread each.

    Returns:
        ``rows``, one for each readout, with all runs; the sizes, the machine and the minutes.
    """
    started = time.perf_counter()
    torch.set_num_threads(1)  # Also what makes a fork safe.
    work = partial(compare, seeds=seeds, epochs=epochs, splits=splits)
    with get_context("fork").Pool(workers) as pool:
        rows = list(tqdm(pool.imap(work, READOUTS), total=len(READOUTS), disable=None))
    return {
        "sentences": {split: len(part.labels) for split, part in splits.items()},
        "epochs": epochs,
        "width": WIDTH,
        "size": SIZE,
        "workers": workers,
        "machine": machine(Namespace(threads=1, device="cpu")),
        "minutes": (time.perf_counter() - started) / 60,
        "rows": rows,
    }


def compare(name: str, seeds: int, epochs: int, splits: dict[str, Split]) -> dict[str, Any]:
    """Train a readout at the learning rate that is best on dev, once for each seed."""
    tuned = {rate: train(name, rate, TUNING_SEED, epochs, splits, "dev") for rate in RATES}
    rate = max(tuned, key=lambda r: tuned[r]["accuracy"])
    return {
        "readout": name,
        "lr": rate,
        "dev": {str(r): run["accuracy"] for r, run in tuned.items()},
        "runs": [train(name, rate, seed, epochs, splits, "test") for seed in range(seeds)],
    }


def read(data: Path | None, cache: Path, limit: int) -> dict[str, Split]:
    """Read labels of all splits and embed their sentences.

    Args:
        data: Folder with ``text/`` and the encoder's folder; by default the shared data.
        cache: Folder of embeddings that were computed before.
        limit: Number of sentences of a split, at most.
    """
    folder = data_folder("minilm_l6_v2_fp16", data and data / "minilm_l6_v2_fp16", "--data")
    corpora = load_text("sst2", data and data / "text", limit).splits
    encoder = load_encoder(folder)
    return {
        name: Split(
            embed(corpus.texts, encoder, cache, max_length=64, title=name),
            torch.as_tensor(corpus.labels),
        )
        for name, corpus in corpora.items()
    }


def batches(split: Split, order: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield tokens, mask and labels of 64 sentences at a time."""
    for rows in order.split(BATCH):
        yield (*padded(split.embeddings, rows), split.labels[rows])


def train(
    name: str, lr: float, seed: int, epochs: int, splits: dict[str, Split], held_out: str
) -> dict[str, float]:
    """Train one run; return what it reaches on a split it has not seen, and a step's cost."""
    torch.manual_seed(seed)
    split = splits["train"]
    model = Classifier(name, split.embeddings.tokens.shape[1])
    readout = model.readout if isinstance(model.readout, DDCLReadout) else None
    if readout is not None:
        tokens, mask = padded(split.embeddings, torch.arange(min(512, len(split.labels))))
        readout.initialize(model.trunk(tokens).detach(), mask=mask, seed=seed)
    optimizer = torch.optim.Adam(two_timescale_groups(model, lr, epsilon=0.1))
    seconds, residual = [], 0.0
    for _ in range(epochs):
        for tokens, mask, labels in batches(split, torch.randperm(len(split.labels))):
            started = time.process_time()
            logits, out = model(tokens, mask)
            optimizer.zero_grad()
            (F.cross_entropy(logits, labels) + out.loss).backward()
            optimizer.step()
            if readout is not None:
                readout.after_step(out)
                losses = {name: loss.item() for name, loss in out.code.losses.items()}
                residual = max(residual, identity_residual(losses))
            seconds.append(time.process_time() - started)
    found = evaluate(model.eval(), splits[held_out])
    return found | {"cpu_ms": 1e3 * median(seconds), "identity_residual": residual}


@torch.no_grad()
def evaluate(model: Classifier, split: Split) -> dict[str, float]:
    """Measure accuracy; how many slots of a sentence differ, and of how many that are there."""
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


def table(rows: list[dict[str, Any]]) -> str:
    """Write a row for each readout: means over seeds, and the deviation of the accuracy."""
    runs = pd.json_normalize(rows, "runs", ["readout", "lr"])
    found = runs.groupby(["readout", "lr"], sort=False)
    means = found.mean().drop(columns="identity_residual")
    means.insert(1, "deviation", found["accuracy"].std())
    shown = means.reset_index()
    return shown.astype(object).where(shown.notna(), None).to_markdown(index=False)
