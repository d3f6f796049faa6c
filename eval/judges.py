"""The networks that judge reconstructions: which are asked for, and which can be had."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from training.perceptual import PerceptualDistance
from training.weights import WeightsError

from .distribution import FrechetDistance, inception_distance, resnet56_distance


class ReadyJudges(NamedTuple):
    """Networks that are loaded and have judged one image.

    Attributes:
        perceptual: LPIPS, or None.
        distances: Fréchet distances by the name of their figures.
        said: What those distances are, by the same names.
        unavailable: A line for each that was asked for and cannot be had: which file, where, and
            the option.
    """

    perceptual: PerceptualDistance | None
    distances: dict[str, FrechetDistance]
    said: dict[str, str]
    unavailable: list[str]


@dataclass(frozen=True)
class Judges:
    """What was asked for.

    Attributes:
        lpips: Net of LPIPS, ``squeeze``, ``alex`` or ``vgg``; None leaves it out.
        lpips_weights: File of its features; torchvision's are downloaded by default.
        lpips_resize: Side to which images are scaled for it.
        fid: Whether to measure rFID.
        inception_weights: File of its InceptionV3; downloaded by default.
        resnet56_weights: File of a CIFAR-10 ResNet-56; None leaves ``rfd_resnet56`` out.

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

    def prepare(self, sample: Tensor) -> ReadyJudges:
        """Load what was asked for, and try it on an image.

        Args:
            sample: (1, C, H, W) in [0, 1], on the device.
        """
        device = sample.device
        ready = ReadyJudges(None, {}, {}, [])
        if self.lpips is not None:
            try:
                distance = PerceptualDistance(self.lpips, self.lpips_weights, self.lpips_resize)
                distance.to(device)(sample, sample)
                ready = ready._replace(perceptual=distance)
            except WeightsError as error:
                ready.unavailable.append(str(error))
        if self.resnet56_weights is not None:
            self._add(ready, "rfd_resnet56", sample)
        if self.fid:
            self._add(ready, "rfid", sample)
        return ready

    def _add(self, ready: ReadyJudges, name: str, sample: Tensor) -> None:
        try:
            if name == "rfid":
                distance = inception_distance(self.inception_weights, sample.device)
                said = (
                    "2,048 features of the InceptionV3 of FID, resized as in its TensorFlow code; "
                    f"torch-fidelity {version('torch-fidelity')}"
                )
            else:
                assert self.resnet56_weights is not None
                distance = resnet56_distance(self.resnet56_weights, sample.device)
                said = "64 features of a CIFAR-10 ResNet-56; it is no FID"
            distance.extractor(sample)
        except WeightsError as error:
            ready.unavailable.append(str(error))
            return
        ready.distances[name] = distance
        ready.said[name] = (
            f"Fréchet distance between originals and reconstructions: {said}; torchmetrics "
            f"{version('torchmetrics')}. Too large at few images: halves is the distance between "
            "two halves of the originals, which is bias alone."
        )
