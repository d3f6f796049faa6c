"""The soft codebooks: DDCLCodebook, differentiable in every part, and DDCLEMCodebook, by means."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import nn

from ..functional import critical_factor
from .interface import STRAIGHT_THROUGH
from .soft import SoftCodebook
from .temperature import TemperatureController


class DDCLCodebook(SoftCodebook):
    """Codebook whose output is the Boltzmann-weighted mean of all prototypes.

    Every latent z is assigned to all prototypes by a softmax over negative squared distances, and
    its code is the convex mix z̄ of the prototypes. No straight-through estimator is used: encoder
    and prototypes get the exact derivative of what the decoder got. Cirrincione and Kumar, 2026,
    https://arxiv.org/abs/2604.03850; the placement of T and the weights are our choice.

    Where assignments are nearly hard, as tokens want them, z̄ hardly moves with z, and its
    derivative would teach the encoder nothing. In training the decoder therefore gets of most
    tokens z with an error of the length that z̄ has, in a random direction u of length 1:
    ``z + |z - z̄| u``. Its derivative teaches the encoder to lower what the decoder loses, and how
    far its latents lie from their codes. The other tokens show the decoder their codes. This is the
    noise substitution of Vali and Bäckström (NSVQ, IEEE Access 10, 2022), on a soft code. In eval
    mode the output is z̄ itself, and with ``noise=0`` it always is, as in the source paper.

    A soft code is a continuous latent. The discrete token is the nearest prototype, and
    ``decode(indices)``, or ``hard=True``, gives the code that it stands for.

    Args:
        dim: D, size of the vector axis.
        codebook_size: K, number of prototypes.
        temperature: How many codes a token is assigned to, a number of at least 1 that
            :meth:`after_step` holds by feedback; or a controller, which may follow a schedule.
        commitment: Weight of ``L_OLS + variance_weight * V`` in the loss, >= 0. With noise, below
            0.1 latents may grow without end.
        variance_weight: Weight of V against L_OLS, > 0; collapse attracts above
            ``4 lambda_max / variance_weight``.
        usage_weight: Weight of ``KL(usage || uniform)`` in the loss, >= 0; the usage is that of one
            call, so of each part where gradients are accumulated over parts of a batch.
        noise: Share of the tokens, in [0, 1], whose error has a random direction in training. In
            long trainings a decoder that sees nothing else learns to read z through the noise,
            which is no help to tokens.
        pull: Share of a step of soft EM, in [0, 1], that :meth:`after_step` moves the prototypes
            by, beside what the optimizer does; see :class:`DDCLEMCodebook`. 0 leaves them to
            the optimizer, as in the source paper.
        balance: As in :class:`DDCLEMCodebook`, where ``pull`` is not 0.
        decay: Share of the running covariance and usage that a step keeps, in [0, 1).
        restart_threshold: A prototype whose running usage falls below this share of the mean, in
            [0, 1), is moved onto a random latent of the batch. A prototype with an assignment of
            exactly zero gets no gradient, so training cannot recover it. 0 never restarts.
        seed: Seed for choosing the latents that replace restarted prototypes.
        engine: ``"dense"`` holds (N, K) matrices and can be differentiated twice; ``"attention"``
            needs memory linear in N + K, with the same results to rounding; ``"auto"`` takes
            attention from K = 512 on.
        channel_first: Whether latents are (B, D, ...) instead of (..., D).

    Attributes:
        codebook: (K, D) parameter, the prototypes; standard normal until :meth:`initialize`.

    The others are those of :class:`softvq.SoftCodebook`.

    Raises:
        ValueError: If a size, a share or a weight is out of range.
        TypeError: If a size is no whole number, or the temperature no controller.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> codebook = DDCLCodebook(dim=4, codebook_size=8)
        >>> z = torch.randn(2, 16, 4)
        >>> codebook.initialize(z)
        >>> out = codebook(z)
        >>> out.loss.backward()
        >>> codebook.after_step(out)
        >>> tuple(out.quantized.shape), round(out.codes_per_token.item(), 1)
        ((2, 16, 4), 1.1)
    """

    # What a config means that was saved before there were these arguments.
    earlier_arguments: ClassVar = {"noise": 0.0, "pull": 0.0, "balance": 0.0}

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        temperature: TemperatureController | float = 1.1,
        commitment: float = 0.1,
        variance_weight: float = 1.0,
        usage_weight: float = 0.0,
        noise: float = 0.7,
        pull: float = 1.0,
        balance: float = 0.3,
        decay: float = 0.9,
        restart_threshold: float = 0.02,
        seed: int = 0,
        engine: Literal["auto", "dense", "attention"] = "auto",
        channel_first: bool = False,
    ) -> None:
        super().__init__(dim, codebook_size, channel_first=channel_first)
        self._count(1 / codebook_size, decay, restart_threshold, seed)
        self._weigh(commitment, variance_weight, usage_weight)
        # Prototypes that learn in both ways collapse where the first of the two does.
        factors = [critical_factor(variance_weight=variance_weight)]
        factors += [critical_factor(variance_weight=variance_weight, held=True)] if pull else []
        self._heat(temperature, min(factors), engine)
        self._pull_by(pull, balance)
        if not 0 <= noise <= 1:
            raise ValueError(f"noise must lie in [0, 1], got {noise}")
        self.noise = noise
        if noise:
            self.encoder_gradient = (
                "the exact derivative of the code, in training with an error of random direction "
                f"for {100 * noise:g} % of the tokens"
            )
        self.codebook = nn.Parameter(torch.randn(codebook_size, dim))


class DDCLEMCodebook(SoftCodebook):
    """Boltzmann assignment, prototypes by soft EM, straight-through gradient to the encoder.

    A prototype is the running mean of all latents, each weighted by its assignment: the fixed
    point that gradient descent on L_q with the assignment held would reach, and the limit of
    infinitely fast prototypes. It has no learning rate, and needs none for another scale of the
    latents. The decoder's gradient passes to the encoder as if the code were the latent: where
    assignments are nearly hard, the derivative of the code is nearly zero, and would teach the
    encoder nothing. The loss keeps its exact gradient to the latents.

    ``balance`` changes how prototypes learn, not codes, indices and losses, which go by plain
    distances. Rare prototypes then get latents from neighbours that are often chosen. Each moves
    towards the mean of what it is given, as far as its running usage says. After
    frequency-sensitive competitive learning (Ahalt, Krishnamurthy, Chen and Melton, Neural
    Networks 3, 1990). The source paper has gradient descent only; this class is our choice.

    Args:
        dim: D, size of the vector axis.
        codebook_size: K, number of prototypes.
        temperature: How many codes a token is assigned to, a number of at least 1 that
            :meth:`after_step` holds by feedback; or a controller, which may follow a schedule.
        commitment: Weight of ``L_OLS + variance_weight * V`` in the loss, >= 0. It moves the
            latents only.
        variance_weight: Weight of V against L_OLS, > 0.
        usage_weight: Weight of ``KL(usage || uniform)`` in the loss, >= 0; the usage is that of one
            call, so of each part where gradients are accumulated over parts of a batch.
        balance: In the update only, the squared distance to prototype k is multiplied by
            ``(usage_k / mean usage) ** balance``, in [0, 1]; with 0, whose usage is less even, it
            is not.
        decay: Share of the running means, covariance and usage that a step keeps, in [0, 1).
        restart_threshold: A prototype whose running usage falls below this share of the mean, in
            [0, 1), is moved onto a random latent of the batch. 0 never restarts.
        seed: Seed for choosing the latents that replace restarted prototypes.
        engine: ``"dense"`` holds (N, K) matrices and can be differentiated twice; ``"attention"``
            needs memory linear in N + K, with the same results to rounding; ``"auto"`` takes
            attention from K = 512 on.
        channel_first: Whether latents are (B, D, ...) instead of (..., D).

    Attributes:
        codebook: (K, D) buffer, the prototypes; standard normal until :meth:`initialize`.
        critical_temperature: Scalar buffer, twice the largest variance of the latents, where
            collapse begins to attract when the assignment is held.

    The others are those of :class:`softvq.SoftCodebook`.

    Raises:
        ValueError: If a size or a weight is out of range.
        TypeError: If a size is no whole number, or the temperature no controller.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> codebook = DDCLEMCodebook(dim=4, codebook_size=8)
        >>> z = torch.randn(2, 16, 4)
        >>> codebook.initialize(z)
        >>> before = codebook.codebook.clone()
        >>> out = codebook(z)
        >>> torch.equal(before, codebook.codebook)  # forward is pure
        True
        >>> codebook.after_step(out)
        >>> torch.equal(before, codebook.codebook)
        False
    """

    straight_through = True
    encoder_gradient = STRAIGHT_THROUGH

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        temperature: TemperatureController | float = 1.1,
        commitment: float = 0.1,
        variance_weight: float = 1.0,
        usage_weight: float = 0.0,
        balance: float = 0.3,
        decay: float = 0.9,
        restart_threshold: float = 0.02,
        seed: int = 0,
        engine: Literal["auto", "dense", "attention"] = "auto",
        channel_first: bool = False,
    ) -> None:
        super().__init__(dim, codebook_size, channel_first=channel_first)
        self._count(1 / codebook_size, decay, restart_threshold, seed)
        self._weigh(commitment, variance_weight, usage_weight)
        factor = critical_factor(variance_weight=variance_weight, held=True)
        self._heat(temperature, factor, engine)
        self._pull_by(1.0, balance)
        self.register_buffer("codebook", torch.randn(codebook_size, dim))
