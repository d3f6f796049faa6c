"""A small autoencoder for tables, whose latents a DDCL codebook clusters."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from experiments.clustering import best_start
from experiments.identity import checked_residual
from softvq import (
    CriticalFraction,
    DDCLCodebook,
    DDCLEMCodebook,
    Schedule,
    SoftCodebook,
    two_timescale_groups,
)
from softvq.functional import largest_variance, latent_covariance, soft_quantize

INITIALISATIONS = 10  # of k-means and mixtures; the best by their own criterion is kept


@dataclass(frozen=True)
class Settings:
    """How the network is made and trained; all of it our choice.

    Attributes:
        dim: The size of a latent, D.
        standardized: Whether latents pass a batch norm without scale. Otherwise the encoder may
            shrink what L_q pulls together.
        prototypes: ``"em"``, soft EM (:class:`softvq.DDCLEMCodebook`), or ``"gradient"`` with
            ``epsilon``, the encoder's learning rate over the prototypes'.
        width: The width of the two hidden layers of encoder and decoder.
        warmup_epochs: The number of epochs of reconstruction alone.
        hot_epochs: The number of epochs in which T / T_c goes from ``hot[0]`` to ``hot[1]``.
        cold_epochs: The number of epochs after prototypes were placed anew, T / T_c along ``cold``.
        hot: Ratios high enough for prototypes in one dense cloud to meet.
        cold: Ratios low enough for assignments to be nearly hard.
        commitment: The weight of L_q beside the reconstruction's mean squared error.
        lr: The learning rate of Adam.
        epsilon: See ``prototypes``.
        batch_size: The largest number of rows in a step.
    """

    dim: int = 2
    standardized: bool = False
    prototypes: Literal["em", "gradient"] = "em"
    width: int = 32
    warmup_epochs: int = 10
    hot_epochs: int = 20
    cold_epochs: int = 10
    hot: tuple[float, float] = (0.5, 0.2)
    cold: tuple[float, float] = (0.005, 0.0005)
    commitment: float = 1.0
    lr: float = 4e-3
    epsilon: float = 0.05
    batch_size: int = 512

    def name(self) -> str:
        """Return in words what tells candidates apart."""
        latents = "standardised" if self.standardized else "free"
        return f"D = {self.dim}, {latents} latents, prototypes by {self.prototypes}"


class ClusterNetwork(nn.Module):
    """Encoder, codebook, decoder.

    Args:
        features: The number of columns of the table, F.
        codebook_size: The number of prototypes, K.
        settings: How the network is made.

    Example:
        >>> network = ClusterNetwork(5, 4, Settings())
        >>> tuple(network.latents(torch.zeros(3, 5)).shape)
        (3, 2)
    """

    def __init__(self, features: int, codebook_size: int, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.codebook_size = codebook_size
        dim, width = settings.dim, settings.width
        scale = nn.BatchNorm1d(dim, affine=False) if settings.standardized else nn.Identity()
        self.encoder = nn.Sequential(perceptron(features, width, dim), scale)
        self.decoder = perceptron(dim, width, features)
        self.codebook = self.new_codebook(settings.hot, 0, 0)

    def new_codebook(self, ratios: tuple[float, float], steps: int, seed: int) -> SoftCodebook:
        """Return a codebook whose T / T_c goes from one ratio to another in so many steps."""
        settings = self.settings
        # The source paper's codebook: no noise, prototypes by the gradient alone.
        paper = partial(DDCLCodebook, noise=0.0, pull=0.0)
        kind = partial(DDCLEMCodebook, balance=0.0) if settings.prototypes == "em" else paper
        return kind(
            settings.dim,
            self.codebook_size,
            temperature=CriticalFraction(Schedule(*ratios, steps=steps)),
            commitment=settings.commitment,
            usage_weight=0.0,
            restart_threshold=0.0,
            seed=seed,
        )

    @torch.no_grad()
    def latents(self, x: Tensor) -> Tensor:
        """Encode rows (N, F) as (N, D), with the running statistics."""
        self.eval()
        return self.encoder(x)

    def clusters(self, x: Tensor) -> Tensor:
        """Return the nearest prototypes of rows (N, F), int64 (N,)."""
        return self.codebook.encode(self.latents(x))


class Fitted(NamedTuple):
    """A trained network.

    Attributes:
        network: The network after the cold stage.
        hot: The network as it was after the hot stage; the same where the codebook was left out.
        history: What :func:`measured` returns after each epoch with a codebook.
    """

    network: ClusterNetwork
    hot: ClusterNetwork
    history: list[dict[str, Any]]


def perceptron(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """Make a network of two hidden layers."""
    hidden = [nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*hidden, nn.Linear(width, outputs))


def fit(
    x: Tensor, codebook_size: int, settings: Settings, seed: int, *, use_codebook: bool = True
) -> Fitted:
    """Train on rows without labels: reconstruction, then with L_q hot, then cold.

    While T / T_c is high, prototypes within one dense cloud meet, and L_q pulls the cloud together.
    Then prototypes are placed anew, by k-means on the latents as they have become, and T falls.

    Args:
        x: (N, F) Standardised rows, float32, at least K of them.
        codebook_size: The number of prototypes, K.
        settings: How to train.
        seed: The seed of weights, order of rows and placing of prototypes.
        use_codebook: Whether to train with the codebook. Without it, reconstruction alone is
            trained for as many epochs, to compare with.

    Returns:
        A :class:`Fitted`. The global random state is left as it was.

    Raises:
        ArithmeticError: If L_q is not L_OLS + V.

    Example:
        >>> x = torch.randn(64, 5)
        >>> fitted = fit(x, 4, Settings(warmup_epochs=1, hot_epochs=1, cold_epochs=1), seed=0)
        >>> [epoch["stage"] for epoch in fitted.history], tuple(fitted.network.clusters(x).shape)
        (['hot', 'cold'], (64,))
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = ClusterNetwork(x.shape[1], codebook_size, settings)
        epochs = settings.warmup_epochs
        if not use_codebook:
            epochs += settings.hot_epochs + settings.cold_epochs
        optimizer = torch.optim.Adam(network.parameters(), settings.lr)
        for _ in range(epochs):
            train_epoch(network, x, optimizer, use_codebook=False)
        if not use_codebook:
            return Fitted(network, network, [])
        history = train_stage(network, x, "hot", seed)
        hot = copy.deepcopy(network)
        history += train_stage(network, x, "cold", seed)
    return Fitted(network, hot, history)


def train_stage(
    network: ClusterNetwork, x: Tensor, stage: Literal["hot", "cold"], seed: int
) -> list[dict[str, Any]]:
    """Place prototypes by k-means on the latents, and train all with T / T_c along the stage's."""
    settings, latents = network.settings, network.latents(x)
    ratios, epochs = getattr(settings, stage), getattr(settings, f"{stage}_epochs")
    network.codebook = network.new_codebook(ratios, epochs * len(batches(x, settings)), seed)
    start = best_start(latents, network.codebook_size, seed, INITIALISATIONS)
    network.codebook.initialize(latents, seed=start)
    optimizer = torch.optim.Adam(two_timescale_groups(network, settings.lr, settings.epsilon))
    history = []
    for _ in range(epochs):
        train_epoch(network, x, optimizer, use_codebook=True)
        history.append({"stage": stage, **measured(network, x)})
    return history


def train_epoch(
    network: ClusterNetwork, x: Tensor, optimizer: torch.optim.Optimizer, *, use_codebook: bool
) -> None:
    """Pass over the rows once, in random order."""
    network.train()
    for rows in batches(x, network.settings):
        z = network.encoder(x[rows])
        loss = nn.functional.mse_loss(network.decoder(z), x[rows])
        out = network.codebook(z) if use_codebook else None
        if out is not None:
            loss = loss + out.loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if out is not None:
            network.codebook.after_step(out)


def batches(x: Tensor, settings: Settings) -> tuple[Tensor, ...]:
    """Return rows in random order, in parts as equal as can be: a batch norm needs two at least."""
    return torch.randperm(len(x)).tensor_split(math.ceil(len(x) / settings.batch_size))


@torch.no_grad()
def measured(network: ClusterNetwork, x: Tensor) -> dict[str, float]:
    """Return the state of codebook and latents, in float64, with the identity checked.

    Returns:
        ``loss_q``, ``loss_ols`` and ``variance``, means over rows, summed over D; ``residual``,
        ``|L_q - L_OLS - V| / L_q``; ``temperature_ratio``, T / T_c; ``codes_per_token``; and
        ``closest``, the least distance of two prototypes over the latents' largest deviation.
    """
    codebook, z = network.codebook, network.latents(x).double()
    prototypes = codebook.codebook.double()
    code = soft_quantize(z, prototypes, codebook.temperature.double())
    losses = {
        name: float(getattr(code, name).mean()) for name in ("loss_q", "loss_ols", "variance")
    }
    spread = float(largest_variance(latent_covariance(z))) ** 0.5
    return losses | {
        "residual": checked_residual(losses),
        "temperature_ratio": float(codebook.temperature_ratio),
        "codes_per_token": float(code.entropy.mean().exp()),
        "closest": float(torch.pdist(prototypes).min()) / max(spread, 1e-12),
    }
