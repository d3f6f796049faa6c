"""A Gaussian mixture, a linear encoder, a soft codebook: the runs of a stability study.

N latents of size D, K prototypes, X the size of a data point.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softvq import (
    CodebookOutput,
    ConstantTemperature,
    CriticalFraction,
    DDCLCodebook,
    DDCLEMCodebook,
    Schedule,
    SoftCodebook,
)
from softvq.functional import critical_temperature, largest_variance, latent_covariance

POINTS, CLUSTERS, INPUTS, DIM, CODES = 96, 4, 8, 4, 8
# Deviation of the clusters' centres over that of a cluster, before the data is scaled.
SPREAD = 3.0
INITS = ("spread", "near", "kmeans")
TERMS = ("loss", "loss_ols", "variance")


@dataclass(frozen=True)
class Setting:
    """One run.

    Attributes:
        seed: Seed of data, weights and prototypes.
        ratio: T / (4 lambda_max) of the latents at the start; T / T_c for the gradient codebook
            with ``variance_weight`` 1 and no reconstruction.
        epsilon: Encoder's learning rate over the prototypes'.
        learns: Whether the encoder learns, and with ``reconstruction`` the decoder; else latents
            are frozen.
        reconstruction: Weight of the squared error of the reconstruction, which is summed over X
            and divided by D as the codebook's loss is.
        control: Whether T is ``fixed`` in absolute units, or ``follows`` the latents so that
            T / T_c is.
        init: Prototypes ``spread`` over random latents, ``near`` collapse, or ``kmeans``.
        commitment: Weight of the codebook's loss.
        variance_weight: b in ``L_OLS + b V``.
        term: ``loss``, the codebook's; or one of its terms alone, ``loss_ols`` or ``variance``.
        em: Prototypes by soft EM instead of the gradient.
        rate: Learning rate of the faster of encoder and prototypes, by gradient descent; the
            data's largest variance is 1.
    """

    seed: int
    ratio: float
    epsilon: float = 0.1
    learns: bool = False
    reconstruction: float = 0.0
    control: str = "fixed"
    init: str = "spread"
    commitment: float = 1.0
    variance_weight: float = 1.0
    term: str = "loss"
    em: bool = False
    rate: float = 1.0

    @property
    def kind(self) -> tuple[object, ...]:
        """All that the first run's model stands for: what the runs of one batch must share."""
        return (
            self.learns, self.reconstruction > 0, self.control, self.commitment,
            self.variance_weight, self.em,
        )  # fmt: skip

    @property
    def rates(self) -> tuple[float, float]:
        """Learning rates of encoder and prototypes.

        Example:
            >>> Setting(0, 1.0, epsilon=0.1).rates, Setting(0, 1.0, epsilon=10.0).rates
            ((0.1, 1.0), (1.0, 0.1))
        """
        encoder = self.rate * min(1.0, self.epsilon)
        return encoder, encoder / self.epsilon


class LinearAutoencoder(nn.Module):
    """Linear encoder, soft codebook, linear decoder.

    Args:
        codebook: A codebook for latents of size D.
        encoder: Maps X to D.
        decoder: Maps D to X.
    """

    def __init__(self, codebook: SoftCodebook, encoder: nn.Linear, decoder: nn.Linear) -> None:
        super().__init__()
        self.encoder = encoder
        self.codebook = codebook
        self.decoder = decoder

    def forward(self, x: Tensor) -> tuple[CodebookOutput, Tensor]:
        """Code (N, X) data; return the code and its squared error, summed over X and over D."""
        out = self.codebook(self.encoder(x))
        error = F.mse_loss(self.decoder(out.quantized), x)
        return out, error * (x.shape[-1] / self.codebook.dim)


def mixture(seed: int) -> Tensor:
    """Draw points of :data:`CLUSTERS` equal clusters, centred, of largest variance 1.

    Args:
        seed: Seed of centres and points.

    Returns:
        float64 (N, X).

    Example:
        >>> x = mixture(seed=0)
        >>> tuple(x.shape), round(largest_variance(latent_covariance(x)).item(), 4)
        ((96, 8), 1.0)
    """
    generator = torch.Generator().manual_seed(seed)
    centres = SPREAD * torch.randn(CLUSTERS, INPUTS, generator=generator, dtype=torch.float64)
    x = centres[torch.arange(POINTS) % CLUSTERS]  # (N, X)
    x = x + torch.randn(POINTS, INPUTS, generator=generator, dtype=torch.float64)
    x = x - x.mean(dim=0)
    return x / largest_variance(latent_covariance(x)).sqrt()


@torch.no_grad()
def build(setting: Setting, dtype: torch.dtype) -> tuple[LinearAutoencoder, Tensor]:
    """Build the model of a run, place its prototypes, and draw its data (N, X)."""
    x = mixture(setting.seed).to(dtype)
    generator = torch.Generator().manual_seed(setting.seed + 1)
    encoder, decoder = nn.Linear(INPUTS, DIM, dtype=dtype), nn.Linear(DIM, INPUTS, dtype=dtype)
    # Orthonormal rows keep the scale of the data; the decoder turns them back.
    basis = torch.linalg.qr(torch.randn(INPUTS, DIM, generator=generator, dtype=dtype))[0]
    encoder.weight.copy_(basis.mT)
    decoder.weight.copy_(basis)
    encoder.bias.zero_()
    decoder.bias.zero_()
    codebook = codebook_of(setting, encoder(x), generator)
    encoder.requires_grad_(setting.learns)
    decoder.requires_grad_(setting.learns and setting.reconstruction > 0)
    return LinearAutoencoder(codebook, encoder, decoder), x


def codebook_of(setting: Setting, z: Tensor, generator: torch.Generator) -> SoftCodebook:
    """Build the library's codebook and place its prototypes on (N, D) latents."""
    if setting.control == "fixed":
        temperature = setting.ratio * critical_temperature(z).item()
        controller: Any = ConstantTemperature(Schedule(temperature))
    else:
        controller = CriticalFraction(Schedule(setting.ratio))
    # No usage term, balance or restart, which would hide a collapse; the source paper's dynamics.
    paper = partial(DDCLCodebook, noise=0.0, pull=0.0)
    kind: Any = partial(DDCLEMCodebook, balance=0.0) if setting.em else paper
    codebook: SoftCodebook = kind(
        z.shape[1], CODES, temperature=controller, commitment=setting.commitment,
        variance_weight=setting.variance_weight, usage_weight=0.0, restart_threshold=0.0,
    ).to(z.dtype)  # fmt: skip
    codebook.initialize(z, seed=setting.seed)  # sets T and T_c, too
    place(codebook, z, setting.init, generator)
    return codebook


@torch.no_grad()
def place(codebook: SoftCodebook, z: Tensor, init: str, generator: torch.Generator) -> None:
    """Move prototypes, that k-means placed, where a study wants them to start.

    Args:
        codebook: The codebook, initialised on ``z``.
        z: (N, D), the latents.
        init: One of :data:`INITS`.
        generator: Source of the noise and of the choice of latents.
    """
    if init == "spread":
        codebook.codebook.copy_(z[torch.randperm(len(z), generator=generator)[:CODES]])
    if init == "near":
        noise = torch.randn(codebook.codebook.shape, generator=generator, dtype=z.dtype)
        scale = 0.01 * largest_variance(latent_covariance(z)).sqrt()
        codebook.codebook.copy_(z.mean(dim=0) + scale * noise)
