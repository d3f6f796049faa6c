"""The loss of a training step with the terms it is made of; LPIPS, the perceptual distance."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from models import ImageTokenizerOutput
from softvq import CodebookOutput, StackOutput

from .config.sections import OptimizerConfig
from .weights import WeightsError, fetch_weights, fill, read_weights

NETS = ("squeeze", "alex", "vgg")
# Names of torchvision's networks, and of their weights.
_TORCHVISION = {
    "squeeze": ("squeezenet1_1", "SqueezeNet1_1_Weights"),
    "alex": ("alexnet", "AlexNet_Weights"),
    "vgg": ("vgg16", "VGG16_Weights"),
}
# The smallest side on which no pooling of the network runs dry.
_SMALLEST = {"squeeze": 17, "alex": 31, "vgg": 16}
OPTION = "--lpips-weights"


class TrainingLoss:
    """The loss of a batch: error of the reconstruction, loss of the codes, and LPIPS.

    The error is counted in units of the data's variance, so that a weight means the same for all
    data.

    Args:
        options: The weight of LPIPS, its net, and the file of its weights.
        images: uint8 (N, C, H, W), the training images, on the device of training.

    Raises:
        WeightsError: If LPIPS is wanted and its weights cannot be had, or the images are too small.

    Example:
        >>> import torch
        >>> from training.config import TrainConfig
        >>> from models import build_model
        >>> model = build_model({"hidden_channels": 8, "residual_channels": 8, "codebook_size": 16})
        >>> images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
        >>> terms = TrainingLoss(TrainConfig().optimizer, images)(model(images / 255), images / 255)
        >>> sorted(terms)[:3], sorted(terms)[-2:]
        (['0/entropy', '0/loss_ols', '0/loss_q'], ['loss', 'mse_soft'])
    """

    def __init__(self, options: OptimizerConfig, images: Tensor) -> None:
        variance = float(images.cpu().float().div(255).var(dim=(0, 2, 3)).mean())
        self.data_variance = max(variance, 1e-6)  # images of one flat colour have none
        self.perceptual: PerceptualDistance | None = None
        self.perceptual_weight = options.perceptual_weight
        if options.perceptual_weight:
            weights = Path(options.lpips_weights) if options.lpips_weights else None
            self.perceptual = PerceptualDistance(options.lpips, weights).to(images.device)
            self.perceptual(*[images[:1].float() / 255] * 2)  # too small images are told now

    def __call__(self, output: ImageTokenizerOutput, images: Tensor) -> dict[str, Tensor]:
        """Terms of a batch.

        Args:
            output: What the model made of the images.
            images: (B, C, H, W) in [0, 1].

        Returns:
            Scalars: first ``loss``, which is what to minimise; then ``mse_soft``, ``lpips`` if it
            is wanted, and the terms of :func:`code_figures`.
        """
        recon = output.recon.float()
        terms = {"mse_soft": F.mse_loss(recon, images)}
        loss = terms["mse_soft"] / self.data_variance + output.code.loss
        if self.perceptual is not None:
            terms["lpips"] = self.perceptual(recon.clamp(0, 1), images).mean()
            loss = loss + self.perceptual_weight * terms["lpips"]
        return {"loss": loss, **terms, **code_figures(output.code)}


def code_figures(code: CodebookOutput | StackOutput) -> dict[str, Tensor]:
    """What codebooks' outputs say, as means that may be averaged over equal batches.

    Args:
        code: The output of a codebook or a stack.

    Returns:
        ``"<level>/<name>"``, scalars; :func:`training.metrics.finish_code_figures` takes their
        means. Each is weighted by the share of tokens that the level saw, ``"<level>/weight"``.
    """
    figures = {}
    for number, out in enumerate(code.levels):
        weight = (out.indices >= 0).float().mean()
        figures[f"{number}/weight"] = weight
        for name, value in {**out.losses, "entropy": out.codes_per_token.log()}.items():
            figures[f"{number}/{name}"] = value.detach() * weight
    return figures


class PerceptualDistance(nn.Module):
    """LPIPS of image pairs: Zhang et al., 2018, https://arxiv.org/abs/1801.03924.

    By the ``lpips`` package, version 0.1 of its linear layers, which come with the package; the
    ImageNet features below them are torchvision's. Images in [0, 1] are scaled to [-1, 1], as the
    package wants them, grey ones repeated to three channels. The network is frozen and in eval
    mode; the distance has a gradient to both images.

    Args:
        net: ``"squeeze"``, ``"alex"`` or ``"vgg"``: values of different nets do not compare.
        weights: A file with torchvision's weights of that net, whole or of ``.features`` alone;
            downloaded by default.
        resize: Side to which images are scaled first (bilinear, antialiased); as they are by
            default. Values of different sizes do not compare either.

    Raises:
        WeightsError: If the weights cannot be had.
        ValueError: If the net is unknown.
    """

    def __init__(
        self, net: str = "squeeze", weights: Path | None = None, resize: int | None = None
    ) -> None:
        super().__init__()
        if net not in NETS:
            raise ValueError(f"net must be one of {', '.join(NETS)}, got {net!r}")
        self.net = net
        self.resize = resize
        self.network = _package(net)
        tower = self.network.net
        if weights is None:
            found, origin = _downloaded(net), "torchvision's"
        else:
            name = _TORCHVISION[net][0]
            found = read_weights(weights, OPTION, f"torchvision's weights of {name}")
            origin = str(weights)
        fill(tower, _in_slices(tower, found), OPTION, origin)
        self.requires_grad_(False)

    def train(self, mode: bool = True) -> PerceptualDistance:
        """Stays in eval mode."""
        return super().train(False)

    def forward(self, recon: Tensor, images: Tensor) -> Tensor:
        """LPIPS of each pair.

        Args:
            recon: (B, 3 or 1, H, W) in [0, 1].
            images: Likewise.

        Returns:
            (B,), not negative.

        Raises:
            WeightsError: If the images are too small for the net.
        """
        recon, images = (self._prepared(part) for part in (recon, images))
        if min(images.shape[2:]) < _SMALLEST[self.net]:
            raise WeightsError(
                f"LPIPS {self.net} needs images of at least {_SMALLEST[self.net]} pixels, got "
                f"{tuple(images.shape[2:])}: give --lpips-resize 64"
            )
        distance: Tensor = self.network(recon, images, normalize=True)  # (B, 1, 1, 1)
        return distance.flatten()

    def _prepared(self, images: Tensor) -> Tensor:
        images = images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images
        if self.resize is None:
            return images
        return F.interpolate(images, size=(self.resize,) * 2, mode="bilinear", antialias=True)

    @property
    def definition(self) -> str:
        """What it measures, in words."""
        size = "as they are" if self.resize is None else f"resized to {self.resize} (bilinear)"
        return (
            f"LPIPS v0.1, net {self.net}, images {size}, scaled to [-1, 1], mean over images; "
            "lower is better"
        )


def _package(net: str) -> Any:
    """The package's network, with trained linear layers on random features."""
    try:
        import lpips
    except ImportError as error:
        raise WeightsError('LPIPS needs the lpips package: pip install -e ".[train]"') from error
    with warnings.catch_warnings():
        # It calls torchvision and torch by names that both would rather forget.
        warnings.simplefilter("ignore")
        return lpips.LPIPS(net=net, pnet_rand=True, verbose=False)


def _downloaded(net: str) -> dict[str, Tensor]:
    from torchvision import models

    name, weights = _TORCHVISION[net]
    chosen = getattr(models, weights).IMAGENET1K_V1
    what = f"torchvision's weights of {name}"
    found: dict[str, Tensor] = fetch_weights(
        lambda: chosen.get_state_dict(progress=False, check_hash=True), OPTION, what
    )
    return found


def _in_slices(tower: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights by the names of the package, which cuts the features into slices.

    ``3.bias`` of torchvision's features is ``slice2.3.bias`` there; what is left of a whole
    classifier is left out, a name that is missing is for :func:`fill` to tell.
    """
    features = {name.removeprefix("features."): value for name, value in weights.items()}
    renamed = {}
    for name in tower.state_dict():
        plain = name.split(".", 1)[1]
        if plain in features:
            renamed[name] = features[plain]
    return renamed
