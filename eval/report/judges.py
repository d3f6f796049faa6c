"""The networks that judge reconstructions: which are asked for, and which can be had."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
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
        unavailable: A line for each that was asked for and cannot be had: which file, where, and
            the option.
        weights: For each figure the file of its network, by name and SHA-256, or what was
            downloaded: figures of other weights do not compare.
    """

    perceptual: PerceptualDistance | None
    distances: dict[str, FrechetDistance]
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
        device, file = sample.device, self.resnet56_weights
        makers: dict[str, Callable[[], Any]] = {}
        if (net := self.lpips) is not None:
            makers["lpips"] = lambda: PerceptualDistance(
                net, self.lpips_weights, self.lpips_resize
            ).to(device)
        if file is not None:
            makers["rfd_resnet56"] = lambda: resnet56_distance(file, device)
        if self.fid:
            makers["rfid"] = lambda: inception_distance(self.inception_weights, device)
        made: dict[str, Any] = {}
        unavailable, weights = [], {}
        for name, make in makers.items():
            try:
                judge = make()
                _ = judge(sample, sample) if name == "lpips" else judge.extractor(sample)
            except WeightsError as error:
                unavailable.append(str(error))
                continue
            made[name], own = judge, self.files.get(name)
            digest = own and hashlib.sha256(own.read_bytes()).hexdigest()
            weights[name] = f"{own.name}, SHA-256 {digest}" if own else "downloaded"
        return ReadyJudges(made.pop("lpips", None), made, unavailable, weights)
