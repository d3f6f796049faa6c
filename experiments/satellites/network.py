"""A small autoencoder for tables, whose latents a DDCL codebook clusters."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from softvq import (
    CriticalFraction,
    DDCLCodebook,
    DDCLEMCodebook,
    Schedule,
    SoftCodebook,
    kmeans,
    two_timescale_groups,
)
from softvq.functional import largest_variance, latent_covariance, soft_quantize, squared_distances

INITIALISATIONS = 10  # of k-means and the like; the best by their own criterion is kept
LARGEST_RESIDUAL = 1e-6  # |L_q - L_OLS - V| / L_q in float64


@dataclass(frozen=True)
class Settings:
    """How the network is made and trained; all of it our choice.

    Attributes:
        dim: D, size of a latent.
        standardized: Whether latents pass a batch norm without scale; else the encoder may shrink
            what L_q pulls together.
        prototypes: ``"em"``, soft EM (:class:`softvq.DDCLEMCodebook`), or ``"gradient"`` with
            ``epsilon``, the encoder's learning rate over the prototypes'.
        width: Of the two hidden layers of encoder and decoder.
        warmup_epochs: Of reconstruction alone.
        hot_epochs: With the codebook, T / T_c going from ``hot[0]`` to ``hot[1]``.
        cold_epochs: Thereafter with prototypes placed anew, T / T_c going along ``cold``.
        hot: Hot enough for prototypes in one dense cloud to meet.
        cold: Cold enough for assignments to be nearly hard.
        commitment: Weight of L_q beside the reconstruction's mean squared error.
        lr: Of Adam.
        epsilon: See ``prototypes``.
        batch_size: Rows of a step, at most.
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
        """What tells candidates apart, in words."""
        latents = "standardised" if self.standardized else "free"
        return f"D = {self.dim}, {latents} latents, prototypes by {self.prototypes}"


class Epoch(NamedTuple):
    """What an epoch with the codebook ended at, over all rows that were trained on.

    Attributes:
        stage: ``"hot"`` or ``"cold"``.
        loss_q: L_q, mean over rows, summed over D, in float64; likewise ``loss_ols``, ``variance``.
        loss_ols: L_OLS.
        variance: V.
        residual: ``|L_q - L_OLS - V| / L_q``.
        temperature_ratio: T / T_c.
        codes_per_token: ``exp(mean entropy)`` of the assignment.
        closest: Least distance of two prototypes, over the latents' largest standard deviation.
    """

    stage: str
    loss_q: float
    loss_ols: float
    variance: float
    residual: float
    temperature_ratio: float
    codes_per_token: float
    closest: float


class ClusterNetwork(nn.Module):
    """Encoder, codebook, decoder.

    Args:
        features: F, columns of the table.
        codebook_size: K.
        settings: How it is made.

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
        """A codebook whose T / T_c goes from one ratio to another in so many steps."""
        settings = self.settings
        em = partial(DDCLEMCodebook, balance=0.0)
        kind = em if settings.prototypes == "em" else DDCLCodebook
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
        """(N, F) to (N, D), with the running statistics."""
        self.eval()
        return self.encoder(x)

    def clusters(self, x: Tensor) -> Tensor:
        """(N, F) to (N,) int64, the nearest prototypes."""
        return self.codebook.encode(self.latents(x))


class Fitted(NamedTuple):
    """A trained network.

    Attributes:
        network: After the cold stage; after the warm-up where the codebook was left out.
        hot: As it was after the hot stage, None where the codebook was left out.
        history: One entry for each epoch with a codebook.
    """

    network: ClusterNetwork
    hot: ClusterNetwork | None
    history: list[Epoch]


def perceptron(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.GELU(),
        nn.Linear(width, width),
        nn.GELU(),
        nn.Linear(width, outputs),
    )


def fit(
    x: Tensor, codebook_size: int, settings: Settings, seed: int, *, use_codebook: bool = True
) -> Fitted:
    """Train on rows without labels: reconstruction, then with L_q hot, then cold.

    While T / T_c is high, prototypes within one dense cloud meet, and L_q pulls the cloud together.
    Then prototypes are placed anew, by k-means on the latents as they have become, and T falls.

    Args:
        x: (N, F) float32, standardised; at least K rows.
        codebook_size: K.
        settings: How.
        seed: Of weights, order of rows and placing of prototypes.
        use_codebook: Without, reconstruction alone for as many epochs, to compare with.

    Returns:
        A :class:`Fitted`; the global random state is left as it was.

    Raises:
        ArithmeticError: If L_q differs from L_OLS + V by more than ``LARGEST_RESIDUAL``.

    Example:
        >>> x = torch.randn(64, 5)
        >>> fitted = fit(x, 4, Settings(warmup_epochs=1, hot_epochs=1, cold_epochs=1), seed=0)
        >>> [epoch.stage for epoch in fitted.history], tuple(fitted.network.clusters(x).shape)
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
            return Fitted(network, None, [])
        history = train_stage(network, x, "hot", settings.hot, settings.hot_epochs, seed)
        hot = copy.deepcopy(network)
        history += train_stage(network, x, "cold", settings.cold, settings.cold_epochs, seed)
    return Fitted(network, hot, history)


def train_stage(
    network: ClusterNetwork,
    x: Tensor,
    stage: str,
    ratios: tuple[float, float],
    epochs: int,
    seed: int,
) -> list[Epoch]:
    """Place prototypes by k-means on the latents, and train all with T / T_c along ``ratios``."""
    settings = network.settings
    network.codebook = network.new_codebook(ratios, epochs * len(batches(x, settings)), seed)
    latents = network.latents(x)
    network.codebook.initialize(latents, seed=best_seed(latents, network.codebook_size, seed))
    groups = two_timescale_groups(network, settings.lr, settings.epsilon)
    optimizer = torch.optim.Adam(groups)
    history = []
    for _ in range(epochs):
        train_epoch(network, x, optimizer, use_codebook=True)
        history.append(measured(network, x, stage))
    return history


def best_seed(latents: Tensor, codebook_size: int, seed: int) -> int:
    """The seed, of as many as k-means is given in comparisons, whose k-means errs least."""

    def inertia(number: int) -> float:
        centres = kmeans(latents, codebook_size, seed=number)
        return float(squared_distances(latents, centres).amin(dim=1).sum())

    first = seed * INITIALISATIONS
    return min(range(first, first + INITIALISATIONS), key=inertia)


def train_epoch(
    network: ClusterNetwork, x: Tensor, optimizer: torch.optim.Optimizer, *, use_codebook: bool
) -> None:
    """One pass over the rows in random order."""
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
    """Rows in random order, in parts as equal as can be: a batch norm needs two at least."""
    return torch.randperm(len(x)).tensor_split(math.ceil(len(x) / settings.batch_size))


@torch.no_grad()
def measured(network: ClusterNetwork, x: Tensor, stage: str) -> Epoch:
    """The state of codebook and latents, in float64, with the identity checked."""
    codebook, z = network.codebook, network.latents(x).double()
    prototypes = codebook.codebook.double()
    code = soft_quantize(z, prototypes, codebook.temperature.double())
    loss_q, loss_ols, variance = (
        float(term.mean()) for term in (code.loss_q, code.loss_ols, code.variance)
    )
    residual = abs(loss_q - loss_ols - variance) / max(loss_q, torch.finfo(torch.float64).tiny)
    if not residual <= LARGEST_RESIDUAL:
        raise ArithmeticError(f"L_q = {loss_q} is not L_OLS + V = {loss_ols} + {variance}")
    spread = float(largest_variance(latent_covariance(z))) ** 0.5
    return Epoch(
        stage=stage,
        loss_q=loss_q,
        loss_ols=loss_ols,
        variance=variance,
        residual=residual,
        temperature_ratio=float(codebook.temperature_ratio),
        codes_per_token=float(code.entropy.mean().exp()),
        closest=float(torch.pdist(prototypes).min()) / max(spread, 1e-12),
    )
