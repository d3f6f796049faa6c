"""The networks that judge reconstructions: which are asked for, and which can be had."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from eval.report.frechet import FrechetDistance, inception_distance, resnet56_distance
from training.errors import UserError
from training.losses import PerceptualDistance
from training.weights import WeightsError


class ReadyJudges(NamedTuple):
    """Networks that are loaded and have judged one image.

    Attributes:
        perceptual: LPIPS, or None.
        distances: Fréchet distances by the name of their figures.
        said: What those distances are, by the same names.
        unavailable: A line for each that was asked for and cannot be had: which file, where, and
            the option.
        weights: For each figure the file of its network, by name and SHA-256, or what was
            downloaded: figures of other weights do not compare.
    """

    perceptual: PerceptualDistance | None
    distances: dict[str, FrechetDistance]
    said: dict[str, str]
    unavailable: list[str]
    weights: dict[str, str]


@dataclass(frozen=True)
class Judges:
    """What was asked for.

    Attributes:
        lpips: Net of LPIPS, ``squeeze``, ``alex`` or ``vgg``; None leaves it out.
        lpips_weights: File of its features; torchvision's are downloaded by default.
        lpips_resize: Side to which images are scaled for it, in pixels.
        fid: Whether to measure rFID.
        inception_weights: File of its InceptionV3; downloaded by default.
        resnet56_weights: File of a CIFAR-10 ResNet-56; None leaves ``rfd_resnet56`` out.

    Raises:
        UserError: If a file or a size is given for what is not asked.

    Example:
        >>> import torch
        >>> ready = Judges(resnet56_weights=Path("nowhere.th")).prepare(torch.rand(1, 3, 32, 32))
        >>> ready.distances, ready.unavailable[0].split(";")[0]
        ({}, '--resnet56-weights nowhere.th: there is no such file')
    """

    lpips: str | None = None
    lpips_weights: Path | None = None
    lpips_resize: int | None = None
    fid: bool = False
    inception_weights: Path | None = None
    resnet56_weights: Path | None = None

    def __post_init__(self) -> None:
        pairs = (
            ("lpips_weights", "lpips"), ("lpips_resize", "lpips"), ("inception_weights", "fid")
        )  # fmt: skip
        for name, of in pairs:
            if getattr(self, name) and not getattr(self, of):
                option = name.replace("_", "-")
                raise UserError(f"--{option} does nothing without --{of}: give both")

    @property
    def files(self) -> dict[str, Path]:
        """Weights that were given, by the figures that they are for."""
        given = {
            "lpips": self.lpips_weights,
            "rfid": self.inception_weights,
            "rfd_resnet56": self.resnet56_weights,
        }
        return {name: file for name, file in given.items() if file is not None}

    def prepare(self, sample: Tensor) -> ReadyJudges:
        """Load what was asked for, and try it on an image.

        Args:
            sample: (1, C, H, W) in [0, 1], on the device.
        """
        device, ready = sample.device, ReadyJudges(None, {}, {}, [], {})

        def tried(name: str, make: Callable[[], Any], judge: Callable[[Any], object]) -> Any:
            try:
                made = make()
                judge(made)
            except WeightsError as error:
                ready.unavailable.append(str(error))
                return None
            file = self.files.get(name)
            digest = file and hashlib.sha256(file.read_bytes()).hexdigest()
            ready.weights[name] = f"{file.name}, SHA-256 {digest}" if file else "downloaded"
            return made

        def add(name: str, make: Callable[[], FrechetDistance], said: str) -> None:
            distance = tried(name, make, lambda made: made.extractor(sample))
            if distance is not None:
                ready.distances[name] = distance
                ready.said[name] = f"{_FRECHET[0]}{said}; {_FRECHET[1]}"

        perceptual = None
        if (net := self.lpips) is not None:
            perceptual = tried(
                "lpips",
                lambda: PerceptualDistance(net, self.lpips_weights, self.lpips_resize).to(device),
                lambda made: made(sample, sample),
            )
        if (file := self.resnet56_weights) is not None:
            said = "64 features of a CIFAR-10 ResNet-56; it is no FID"
            add("rfd_resnet56", lambda: resnet56_distance(file, device), said)
        if self.fid:
            said = (
                "2,048 features of the InceptionV3 of FID, resized as in its TensorFlow code; "
                f"torch-fidelity {version('torch-fidelity')}"
            )
            add("rfid", lambda: inception_distance(self.inception_weights, device), said)
        return ready._replace(perceptual=perceptual)


_FRECHET = (
    "Fréchet distance between originals and reconstructions: ",
    f"torchmetrics {version('torchmetrics')}. Too large at few images, by about c / N: the half "
    "figures are of every second pair, and what they are larger by is about the bias that is left.",
)
