"""What the thresholds of ``python -m eval doctor`` were read from; docs/doctor.md.

python benchmarks/doctor_thresholds.py collapse
python benchmarks/doctor_thresholds.py far
python benchmarks/doctor_thresholds.py norm RUN
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from eval.run import open_run, splits_of
from models import ImageTokenizer
from softvq import ConstantTemperature, DDCLCodebook, DDCLEMCodebook, Schedule, SoftCodebook
from softvq.geometry import relative_spread
from training.data.feed import to_float

DIM, CODES, LATENTS, STEPS = 8, 32, 2048, 1500
FACTORS = {DDCLCodebook: 4.0, DDCLEMCodebook: 2.0}
Kind = type[DDCLCodebook] | type[DDCLEMCodebook]


def trained(kind: Kind, latents: Tensor, temperature: float, far: float | None) -> SoftCodebook:
    """A codebook of k-means, one code put ``far`` RMS radii out, trained on L_q alone."""
    book = kind(
        DIM,
        CODES,
        temperature=ConstantTemperature(Schedule(temperature)),
        commitment=1.0,
        usage_weight=0.0,
        restart_threshold=0.0,
        **({"balance": 0.0} if kind is DDCLEMCodebook else {"pull": 0.0}),
    )
    book.initialize(latents)
    if far is not None:
        with torch.no_grad():
            radius = latents.square().sum(dim=1).mean().sqrt()
            book.codebook[0] *= far * radius / book.codebook[0].norm()
    parameters = list(book.parameters())
    optimizer = torch.optim.Adam(parameters, lr=0.02) if parameters else None
    for _ in range(STEPS):
        out = book(latents)
        if optimizer is not None:
            optimizer.zero_grad()
            out.loss.backward()
            optimizer.step()
        book.after_step(out)
    return book


def collapse(latents: Tensor) -> Iterator[str]:
    """Separation after training at each T / T_c."""
    for kind, factor in FACTORS.items():
        for ratio in (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.2):
            largest = float(torch.linalg.eigvalsh(latents.T.cov(correction=0))[-1])
            book = trained(kind, latents, ratio * factor * largest, None)
            measured = relative_spread(book.codebook.detach(), latents)
            yield f"{kind.__name__:16} T/T_c {ratio:4.2f} separation {measured:.2f}"


def far(latents: Tensor) -> Iterator[str]:
    """Whether a code that starts outside of the latents comes back, at T = 0.05 T_c."""
    for kind, factor in FACTORS.items():
        for radii in (1.0, 1.5, 2.0, 3.0, 4.0):
            book = trained(kind, latents, 0.05 * factor, radii)
            count = int((book.encode(latents) == 0).sum())
            radius = latents.square().sum(dim=1).mean().sqrt()
            end = float(book.codebook[0].detach().norm() / radius)
            yield (
                f"{kind.__name__:16} from {radii:.1f} sqrt(tr C): ends at {end:.2f}, "
                f"{count} of {LATENTS} latents choose it"
            )


@torch.no_grad()
def norm(run: Path) -> Iterator[str]:
    """Argmax error of a run whose running statistics are disturbed, over that of the run."""
    config = open_run(run, limit_test=1).config
    images = to_float(splits_of(config, None, limit_train=1, limit_test=500).val)

    def error(model: ImageTokenizer) -> float:
        return float((model.reconstruct(images) - images).square().mean())

    before = error(open_run(run, limit_test=1).model.cpu())
    for shift, factor in (
        (0.1, 1),
        (0.25, 1),
        (0.5, 1),
        (1, 1),
        (0, 1.25),
        (0, 1.5),
        (0, 2),
        (0, 4),
    ):
        model = open_run(run, limit_test=1).model.cpu()
        signs = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).sign()
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                mean, variance = module.running_mean, module.running_var
                assert mean is not None
                assert variance is not None
                mean += shift * variance.sqrt() * signs[: len(mean)]
                variance *= (signs[: len(mean)] * math.log(factor)).exp()
        yield f"shift {shift:4.2f} variance x {factor:4.2f}: error x {error(model) / before:.3f}"


if __name__ == "__main__":
    torch.manual_seed(0)
    gaussian = torch.randn(LATENTS, DIM)
    name, *arguments = sys.argv[1:]
    lines = (
        norm(Path(arguments[0]))
        if name == "norm"
        else {"collapse": collapse, "far": far}[name](gaussian)
    )
    for line in lines:
        print(line, flush=True)
