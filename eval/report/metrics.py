"""Quality of reconstructions, image by image, and the words that define each metric."""

from __future__ import annotations

from importlib.metadata import version

import torch
from torch import Tensor

from training.losses import PerceptualDistance
from training.metrics import ImageSums, squared_error_sums

METRICS = ("mse", "psnr", "psnr_global", "ssim", "ms_ssim", "lpips")
SSIM_WINDOW = 11
# Four halvings, and a window of 11 must fit into what is left.
MS_SSIM_SIDE = (SSIM_WINDOW - 1) * 2**4 + 1


# What a report says of codes and tokens, by the names of its figures.
CODE_DEFINITIONS = {
    "utilization": "Share of the codes that are the nearest of at least one token of these images.",
    "dead_codes": "Codes without such a token.",
    "perplexity": "exp of the entropy of the counts of nearest codes over all tokens, from 1 to K.",
    "codes_per_token": "exp of the mean entropy of the soft assignment; 1 for hard codebooks.",
    "bits_per_token": "log2 K: what a fixed-length code takes.",
    "entropy_bits_per_token": "log2 of perplexity: what an ideal coder with these counts takes.",
    "bits_per_pixel": "bits_per_token times tokens per image, over height times width.",
    "loss_q": "Mean squared distance to the codes, weighted by assignment: loss_ols + variance.",
    "variance_share": "V / L_q: spread of the assigned codes in loss_q; 0 when codes are tokens.",
    "temperature_ratio": "T / T_c; above 1 one point attracts all codes.",
    "gap": (
        "One checkpoint decoded soft, from the k nearest codes renormalised, from tokens, and from "
        "tokens by a decoder that was refit to them. bits_assignment: mean entropy of the mix."
    ),
    "gap_levels": (
        "Means over tokens and elements: |p_argmax - soft code|^2, at most V / q_max; and the "
        "error that tokens add, d_min - L_OLS, at most V."
    ),
    "images_per_second": "Encoding and decoding, soft and argmax; the machine's business.",
}


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

    # Single precision loses the variances of images of little contrast.
    pairs = zip(recon.double().cpu().numpy(), images.double().cpu().numpy(), strict=True)
    values = [
        similarity(
            a,
            b,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1.0,
            channel_axis=0,
        )
        for a, b in pairs
    ]
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


def definitions(perceptual: PerceptualDistance | None) -> dict[str, str]:
    """What each image metric means and who computed it, by its name in a report."""
    skimage, metrics = (version(name) for name in ("scikit-image", "torchmetrics"))
    said = {
        "mse": "Squared error of pixels in [0, 1], mean over pixels, channels and images.",
        "psnr": "-10 log10 of each image's own MSE, range 1, in dB; mean over images.",
        "psnr_global": "-10 log10 of the mean MSE, range 1, in dB; never above psnr.",
        "ssim": (
            f"Wang et al. 2004: Gaussian window of {SSIM_WINDOW}, sigma 1.5, range 1, without "
            f"borders, mean over channels and images; scikit-image {skimage}. None below "
            f"{SSIM_WINDOW} pixels."
        ),
        "ms_ssim": (
            f"Wang et al. 2003: five scales, window of {SSIM_WINDOW}, sigma 1.5, range 1; "
            f"borders on the last scale only; torchmetrics {metrics}. None below {MS_SSIM_SIDE} "
            "pixels."
        ),
    }
    if perceptual is not None:
        said["lpips"] = f"{perceptual.definition}; lpips {version('lpips')}."
    return said
