"""Cost of a training step with each quantizer against none, at the default sizes.

    python benchmarks/training_step.py [--steps N] [--json FILE]

The quantizers take turns step by step, so that a noisy machine slows all of them alike; the
figure to quote is the ratio of medians from one run.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import click
import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models import build_model
from softvq import two_timescale_groups
from training.checkpoint import write_text
from training.config import TrainConfig
from training.config.quantizers import OWN


class Case:
    """A model, its optimiser, and the time of every step."""

    def __init__(self, quantizer: str, images: torch.Tensor) -> None:
        config = TrainConfig.from_options(quantizer=quantizer)
        self.model = build_model(config.model_config(total_steps=10_000))
        self.model = self.model.to(memory_format=torch.channels_last)
        groups = two_timescale_groups(self.model, config.optimizer.lr, config.timescale_ratio)
        self.optimizer = torch.optim.Adam(groups, fused=True)
        self.model.initialize([images])
        self.seconds: list[float] = []

    def step(self, images: torch.Tensor) -> None:
        """One step as train.py does it."""
        start = time.perf_counter()
        recon, code = self.model(images)
        loss = F.mse_loss(recon, images) + code.loss
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.model.after_step(code)
        self.seconds.append(time.perf_counter() - start)


@click.command()
@click.option("--steps", default=20, show_default=True, help="Timed steps of each quantizer.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures.")
def main(steps: int, json_file: Path | None) -> None:
    """Print the seconds per step, and the ratio to no codebook."""
    torch.manual_seed(0)
    config = TrainConfig()
    batch, model = config.optimizer.batch_size, config.model
    images = torch.rand(batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    cases = {name: Case(name, images) for name in (*OWN, "none")}
    for _ in range(steps + 3):
        for case in cases.values():
            case.step(images)
    medians = {name: statistics.median(case.seconds[3:]) for name, case in cases.items()}
    click.echo(
        f"batch {batch}, K = {model.codebook_size}, D = {model.codebook_dim}, "
        f"hidden {model.hidden_channels}, {torch.get_num_threads()} threads"
    )
    for name, median in medians.items():
        click.echo(f"{name:8} {median * 1e3:8.1f} ms   {median / medians['none']:.3f} of none")
    if json_file is not None:
        text = json.dumps({"seconds_per_step": medians, "steps": steps}, indent=2) + "\n"
        write_text(json_file, text)


if __name__ == "__main__":
    main()
