"""DDCLCodebook: a soft codebook, differentiable in every part."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from .._internal.distributed import summed, widest_dtype
from .._internal.latents import compute_dtype
from ..attention import soft_quantize_attention
from ..functional import SoftCode, largest_variance, soft_quantize, token_weights
from .codebook import Codebook
from .output import BatchStatistics, CodebookOutput
from .temperature import CodesPerToken, ConstantTemperature, Schedule, TemperatureController


class DDCLCodebook(Codebook):
    """Codebook whose output is the Boltzmann-weighted mean of all prototypes.

    Every latent is assigned to all prototypes by a softmax over negative squared distances, and
    the code is the convex mix of prototypes: no straight-through estimator, a gradient for every
    prototype from every token. Cirrincione and Kumar, 2026, https://arxiv.org/abs/2604.03850; the
    placement of T and the weights are our choice.

    A soft code is a continuous latent. The discrete token is the nearest prototype, and
    ``decode(indices)``, or ``hard=True``, gives the code that it stands for.

    Args:
        dim: D, size of the vector axis.
        codebook_size: K, number of prototypes.
        temperature: Controller of T, driven by :meth:`after_step`; two codes per token by default.
        commitment: Weight of ``L_OLS + variance_weight * V`` in the loss, >= 0.
        variance_weight: Weight of V against L_OLS, > 0; collapse attracts above
            ``4 lambda_max / variance_weight``.
        usage_weight: Weight of ``KL(usage || uniform)`` of the batch in the loss, >= 0.
        decay: Of the running covariance and usage, in [0, 1).
        restart_threshold: A prototype whose running usage falls below this share of the mean is
            moved onto a random latent of the batch. A prototype with an assignment of exactly zero
            gets no gradient, so that none can bring it back. 0 never restarts.
        seed: Of the restarts.
        engine: ``"dense"`` holds (N, K) matrices and can be differentiated twice; ``"attention"``
            needs memory linear in N + K, with the same results to rounding; ``"auto"`` takes
            attention from K = 512 on.
        channel_first: Latents are (B, D, ...) instead of (..., D).

    Attributes:
        codebook: (K, D) parameter, the prototypes; standard normal until :meth:`initialize`.
        temperature: Scalar buffer, T in units of squared distance; until :meth:`initialize`, 1 or
            the value of a :class:`ConstantTemperature`.
        covariance: (D, D) buffer, running covariance of the latents.
        critical_temperature: Scalar buffer, T_c of that covariance.
        running_usage: (K,) buffer, running mean assignment.

    Raises:
        ValueError: If a size or a weight is out of range.
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
        ((2, 16, 4), 2.0)
    """

    temperature: Tensor
    covariance: Tensor
    critical_temperature: Tensor
    running_usage: Tensor

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        temperature: TemperatureController | None = None,
        commitment: float = 0.25,
        variance_weight: float = 1.0,
        usage_weight: float = 0.05,
        decay: float = 0.9,
        restart_threshold: float = 0.02,
        seed: int = 0,
        engine: Literal["auto", "dense", "attention"] = "auto",
        channel_first: bool = False,
    ) -> None:
        super().__init__(
            dim,
            codebook_size,
            restart_threshold=restart_threshold,
            seed=seed,
            channel_first=channel_first,
        )
        if commitment < 0 or usage_weight < 0 or variance_weight <= 0:
            raise ValueError(
                "commitment and usage_weight must be >= 0 and variance_weight > 0, got "
                f"{commitment}, {usage_weight}, {variance_weight}"
            )
        if not 0 <= decay < 1:
            raise ValueError(f"decay must lie in [0, 1), got {decay}")
        if engine not in ("auto", "dense", "attention"):
            raise ValueError(f"engine must be auto, dense or attention, got {engine!r}")
        if temperature is None:
            temperature = CodesPerToken(Schedule(2.0))
        if not isinstance(getattr(temperature, "schedule", None), Schedule):
            raise TypeError(
                "temperature must be a controller, as ConstantTemperature(Schedule(0.5)), got "
                f"{temperature!r}"
            )
        self.engine = engine
        self.controller = temperature
        self.commitment = commitment
        self.variance_weight = variance_weight
        self.usage_weight = usage_weight
        self.decay = decay
        self._set_codebook(torch.randn(codebook_size, dim))
        start = self.controller.schedule(0)
        constant = isinstance(self.controller, ConstantTemperature)
        self.register_buffer("temperature", torch.tensor(start if constant else 1.0))
        self.register_buffer("covariance", torch.eye(dim))
        self.register_buffer("critical_temperature", torch.tensor(self._critical_factor()))
        self.register_buffer("running_usage", torch.full((codebook_size,), 1 / codebook_size))

    def _set_codebook(self, codebook: Tensor) -> None:
        self.codebook = nn.Parameter(codebook)

    def forward(self, z: Tensor, mask: Tensor | None = None, hard: bool = False) -> CodebookOutput:
        """Quantise softly; see :meth:`Codebook.forward`."""
        flat, flat_mask = self._flatten(z, mask)
        dtype = compute_dtype(flat, self.codebook)
        # Half-precision softmax over squared distances loses the nearest prototypes.
        with torch.autocast(z.device.type, enabled=False):
            latents, codebook = flat.to(dtype), self.codebook.to(dtype)
            quantize = self._engine()
            code = quantize(latents, codebook, self.temperature.to(dtype), flat_mask)
            weights = token_weights(flat_mask, latents)
            losses = {
                "loss_q": weights @ code.loss_q / self.dim,
                "loss_ols": weights @ code.loss_ols / self.dim,
                "variance": weights @ code.variance / self.dim,
                "usage_kl": code.usage_kl,
            }
            loss = self.commitment * (
                losses["loss_ols"] + self.variance_weight * losses["variance"]
            )
            if self.usage_weight:
                loss = loss + self.usage_weight * losses["usage_kl"]
            codes_per_token = (weights @ code.entropy).exp()
            if flat_mask is not None:
                latents = torch.where(flat_mask[:, None], latents, 0.0)
            flat = self._vectors(code.indices) if hard else code.quantized
        return CodebookOutput(
            quantized=self._restore(self._route(flat, latents), z),
            indices=self._indices_like(code.indices, z),
            loss=loss,
            losses=losses,
            codes_per_token=codes_per_token,
            usage=code.usage,
            latents=latents.detach(),
        )

    def _route(self, quantized: Tensor, latents: Tensor) -> Tensor:
        """Codes (N, D) with the gradient that the latents are to get from them."""
        return quantized

    def _engine(self) -> Callable[..., SoftCode]:
        if self.engine == "auto":
            # Below, attention's second pass costs more than the matrices that it saves.
            return soft_quantize_attention if self.codebook_size >= 512 else soft_quantize
        return soft_quantize if self.engine == "dense" else soft_quantize_attention

    def temperature_info(self) -> dict[str, float | None]:
        """Temperature and T / T_c."""
        return {
            "temperature": self.temperature.item(),
            "temperature_ratio": self.temperature_ratio.item(),
        }

    @property
    def temperature_ratio(self) -> Tensor:
        """T / T_c: collapse of all prototypes attracts above 1 and is a saddle below."""
        return self.temperature / self.critical_temperature

    def _learn(self, batch: BatchStatistics) -> None:
        """Update the critical temperature, move the temperature, restart starved prototypes."""
        # About the prototypes' mean, the same in every process, which keeps the digits of latents
        # that lie far from the origin.
        centred = batch.tokens - self.codebook.mean(dim=0)
        count = centred.new_tensor([len(centred)])
        stats = (count, batch.entropy * count, batch.usage * count, centred.sum(dim=0))
        second = centred.mT @ centred  # (D, D)
        # Sums of one vector: exact over processes with unequal token counts.
        sums = summed(torch.cat([*stats, second.flatten()]).to(widest_dtype(second.device)))
        if sums[0] == 0:
            return
        sizes = [1, 1, self.codebook_size, self.dim, self.dim**2]
        _, entropy, usage, mean, second = (sums / sums[0]).split(sizes)
        self._track(second.view(self.dim, self.dim) - mean.outer(mean), self.decay)
        self.running_usage.lerp_(usage.to(self.running_usage.dtype), 1 - self.decay)
        self._move(batch)
        self._set_temperature(
            self.controller.next(
                int(self.steps),
                float(self.temperature),
                math.exp(entropy.item()),
                float(self.critical_temperature),
            )
        )
        self._restart(batch.tokens, self.running_usage)

    def _move(self, batch: BatchStatistics) -> None:
        """Learn prototypes from a batch; gradients do it here."""

    def _replace(self, rows: Tensor, vectors: Tensor, size: Tensor) -> None:
        super()._replace(rows, vectors, size)
        self.running_usage[rows] = size

    def _set_temperature(self, temperature: float) -> None:
        # Latents that are all equal have a critical temperature of zero, which nothing divides.
        lowest = max(1e-12, torch.finfo(self.temperature.dtype).tiny)
        self.temperature.fill_(max(temperature, lowest))

    def _track(self, covariance: Tensor, decay: float) -> None:
        self.covariance.lerp_(covariance.to(self.covariance.dtype), 1 - decay)
        largest = largest_variance(self.covariance)
        self.critical_temperature.copy_(self._critical_factor() * largest)

    def _critical_factor(self) -> float:
        """T_c over the largest variance of the latents."""
        return 4 / self.variance_weight

    def _initialized_from(self, latents: Tensor) -> None:
        centred = latents - latents.mean(dim=0)
        self._track(centred.mT @ centred / latents.shape[0], decay=0.0)
        # The assignment matrix of the search is (n, K); a sample settles it to a percent.
        sample = latents[:: max(1, latents.shape[0] // 2048)]
        self.running_usage.fill_(1 / self.codebook_size)
        critical = float(self.critical_temperature)
        self._set_temperature(self.controller.first(sample, self.codebook, critical))
