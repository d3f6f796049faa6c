"""Quality of reconstructions, image by image, and the words that define each metric."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from training.losses import PerceptualDistance
from training.metrics import ImageSums, squared_error_sums

METRICS = ("mse", "psnr", "psnr_global", "ssim", "ms_ssim", "lpips")
SSIM_WINDOW = 11
# Four halvings, and a window of 11 must fit into what is left.
MS_SSIM_SIDE = (SSIM_WINDOW - 1) * 2**4 + 1
DEFINITIONS = Path(__file__).with_name("definitions.json")
# Networks, whose figures are defined where they were there to judge.
JUDGED = ("lpips", "rfd_resnet56", "rfid")


def image_sums(recon: Tensor, images: Tensor) -> dict[str, Tensor]:
    """Sums over images of MSE, PSNR, SSIM and MS-SSIM.

    Args:
        recon: (B, C, H, W) in [0, 1].
        images: (B, C, H, W) in [0, 1].

    Returns:
        ``mse``, ``psnr``, ``ssim`` and ``ms_ssim``, float64 scalars; neither of the last two of
        images that are smaller than its window.
    """
    sums = squared_error_sums(recon, images)
    side = min(images.shape[2:])
    if side >= SSIM_WINDOW:
        sums["ssim"] = structural_similarity(recon, images).sum()
    if side >= MS_SSIM_SIDE:
        sums["ms_ssim"] = multiscale_similarity(recon, images).sum()
    return sums


def with_perceptual(sums: ImageSums, distance: PerceptualDistance | None) -> ImageSums:
    """Sums, and that of LPIPS, ``lpips``.

    Args:
        sums: Such as :func:`image_sums`.
        distance: On the device of the images; None adds nothing.
    """
    if distance is None:
        return sums

    def with_lpips(recon: Tensor, images: Tensor) -> dict[str, Tensor]:
        lpips = distance(recon.float(), images.float())  # (B,)
        return sums(recon, images) | {"lpips": lpips.cpu().double().sum()}

    return with_lpips


def structural_similarity(recon: Tensor, images: Tensor) -> Tensor:
    """SSIM of each image: Wang et al., 2004, https://doi.org/10.1109/TIP.2003.819861.

    Gaussian window of 11 pixels and sigma 1.5, range 1, K1 = 0.01, K2 = 0.03, mean over channels
    and over the places where the whole window lies in the image. By scikit-image: torchmetrics
    counts the borders too, and differs by about 1e-3.

    Args:
        recon: (B, C, H, W) in [0, 1], H and W at least 11.
        images: (B, C, H, W) in [0, 1].

    Returns:
        (B,), float64.

    Example:
        >>> structural_similarity(torch.zeros(2, 3, 16, 16), torch.zeros(2, 3, 16, 16)).tolist()
        [1.0, 1.0]
    """
    from skimage.metrics import structural_similarity as similarity

    window = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    # Single precision loses the variances of images of little contrast.
    pairs = zip(recon.double().cpu().numpy(), images.double().cpu().numpy(), strict=True)
    values = [similarity(a, b, data_range=1.0, channel_axis=0, **window) for a, b in pairs]
    return torch.tensor(values, dtype=torch.float64)


def multiscale_similarity(recon: Tensor, images: Tensor) -> Tensor:
    """MS-SSIM of each image: Wang et al., 2003, https://doi.org/10.1109/ACSSC.2003.1292216.

    Five scales with the weights of the paper, window and constants as in
    :func:`structural_similarity`; by torchmetrics, which counts the borders of the last scale.

    Args:
        recon: (B, C, H, W) in [0, 1], H and W at least 161.
        images: (B, C, H, W) in [0, 1].

    Returns:
        (B,), float64.
    """
    from torchmetrics.functional.image import multiscale_structural_similarity_index_measure

    values: Tensor = multiscale_structural_similarity_index_measure(
        recon.double(), images.double(), sigma=1.5, kernel_size=SSIM_WINDOW, data_range=1.0,
        reduction="none",
    )  # fmt: skip
    return values.reshape(-1)


def definitions(judged: Collection[str], lpips: str | None = None) -> dict[str, str]:
    """What each figure of a report means and who computed it.

    Args:
        judged: The figures of :data:`JUDGED` that were measured.
        lpips: How LPIPS was measured.

    Returns:
        The words of ``definitions.json``, with the versions of the packages that they name.
    """
    words = json.loads(DEFINITIONS.read_text(encoding="utf-8"))
    said = {
        name: re.sub(r"\{(.+?)\}", lambda found: version(found[1]), text)
        for name, text in words.items()
        if name not in JUDGED or name in judged
    }
    return said | ({"lpips": f"{lpips}; {said['lpips']}"} if lpips else {})
