"""SoftCodebook: what the codebooks share whose tokens belong to all prototypes in part."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..functional import (
    SoftCode,
    largest_variance,
    mean_shift,
    soft_quantize,
    soft_quantize_attention,
    substitute_noise,
    token_weights,
    widest_dtype,
)
from .codebook import Codebook
from .interface import BatchStatistics
from .outputs import CodebookOutput
from .temperature import CodesPerToken, Schedule, TemperatureController

# Usage, in units of the mean, below which balance helps a prototype no further.
LEAST_USAGE = 0.01


class SoftCodebook(Codebook):
    """Base of the soft codebooks: a Boltzmann assignment at a temperature that is controlled.

    A subclass registers its prototypes, as a parameter or a buffer. Where ``pull`` is not 0, they
    also learn without gradients, by soft EM.

    Attributes:
        temperature: Scalar buffer, T in units of squared distance; until :meth:`initialize`, 1 or
            the value of a :class:`softvq.ConstantTemperature`.
        covariance: (D, D) buffer, running covariance of the latents.
        critical_temperature: Scalar buffer, T_c of that covariance.
        critical_factor: ``critical_temperature`` over the largest eigenvalue of ``covariance``: see
            :func:`softvq.functional.critical_factor`.
        noise: Share of the tokens whose error has a random direction in training.
        running_usage: (K,) buffer, running mean assignment; it sums to one but for restarts.
    """

    noise: float = 0.0
    temperature: Tensor
    covariance: Tensor
    critical_temperature: Tensor

    def _weigh(self, commitment: float, variance_weight: float, usage_weight: float) -> None:
        """Set the weights of the loss, which the subclasses explain; for the constructor."""
        for name, weight in (("commitment", commitment), ("usage_weight", usage_weight)):
            if not 0 <= weight < math.inf:
                raise ValueError(f"{name} must be >= 0 and finite, got {weight}")
        self.commitment = commitment
        self.variance_weight = variance_weight
        self.usage_weight = usage_weight

    def _heat(
        self, temperature: TemperatureController | float, critical_factor: float, engine: str
    ) -> None:
        """Set up the temperature, and how assignments are computed; for the constructor."""
        if engine not in ("auto", "dense", "attention"):
            raise ValueError(f"engine must be auto, dense or attention, got {engine!r}")
        controller = temperature
        if isinstance(temperature, int | float) and not isinstance(temperature, bool):
            controller = CodesPerToken(Schedule(float(temperature)))
        if not isinstance(controller, TemperatureController):
            raise TypeError(
                "temperature must be a number of codes per token, or a controller such as "
                f"ConstantTemperature(Schedule(0.5)), got {controller!r}"
            )
        self.critical_factor = critical_factor
        self.controller = controller
        self.engine = engine
        self.register_buffer("temperature", torch.tensor(controller.before_data))
        self.register_buffer("covariance", torch.eye(self.dim))
        self.register_buffer("critical_temperature", torch.tensor(critical_factor))

    def _pull_by(self, pull: float, balance: float) -> None:
        """Set how the prototypes learn without gradients; for the constructor."""
        for name, share in (("pull", pull), ("balance", balance)):
            if not 0 <= share <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {share}")
        self.pull, self.balance = pull, balance

    def _quantize(
        self, latents: Tensor, codebook: Tensor, mask: Tensor | None, hard: bool
    ) -> CodebookOutput:
        code = self._engine()(latents, codebook, self.temperature.to(latents.dtype), mask)
        weights = token_weights(mask, latents)
        terms = {"loss_q": code.loss_q, "loss_ols": code.loss_ols, "variance": code.variance}
        losses = {name: weights @ term / self.dim for name, term in terms.items()}
        losses["usage_kl"] = code.usage_kl
        loss = self.commitment * (losses["loss_ols"] + self.variance_weight * losses["variance"])
        if self.usage_weight:
            loss = loss + self.usage_weight * losses["usage_kl"]
        quantized = code.quantized
        if hard:
            quantized = self._vectors(code.indices)
        elif self.noise and self.training and not self.exact:
            quantized = substitute_noise(latents, quantized, self.noise)
        return CodebookOutput(
            quantized=quantized,
            indices=code.indices,
            loss=loss,
            losses=losses,
            codes_per_token=(weights @ code.entropy).exp(),
            usage=code.usage,
            latents=latents.detach(),
        )

    def _engine(self) -> Callable[..., SoftCode]:
        # Below, attention's second pass costs more than the matrices that it saves.
        large = self.engine == "auto" and self.codebook_size >= 512
        return soft_quantize_attention if large or self.engine == "attention" else soft_quantize

    def _state_shown(self) -> list[tuple[str, Any]]:
        heat = f"{self.temperature.item():.4g} by {self.controller}"
        return [("temperature", heat), *super()._state_shown()]

    @property
    def temperature_ratio(self) -> Tensor:
        """T / T_c: collapse of all prototypes attracts above 1 and is a saddle below."""
        return self.temperature / self.critical_temperature

    def temperature_info(self) -> dict[str, float | None]:
        """See :meth:`softvq.Codebook.temperature_info`."""
        return {
            "temperature": self.temperature.item(),
            "temperature_ratio": self.temperature_ratio.item(),
        }

    def _learn(self, batch: BatchStatistics) -> None:
        """Update the critical temperature, move the temperature, restart starved prototypes."""
        # About the prototypes' mean, the same in every process, which keeps the digits of latents
        # that lie far from the origin.
        centred = batch.tokens - self.codebook.mean(dim=0)
        count = centred.new_tensor([len(centred)])
        stats = (count, batch.entropy * count, batch.usage * count, centred.sum(dim=0))
        second = centred.mT @ centred  # (D, D)
        # Sums of one vector: exact over processes with unequal token counts.
        vector = torch.cat([*stats, second.flatten()]).to(widest_dtype(second.device))
        sums = self._summed(vector)
        if sums[0] == 0:
            return
        sizes = [1, 1, self.codebook_size, self.dim, self.dim**2]
        _, entropy, usage, mean, second = (sums / sums[0]).split(sizes)
        self._track(second.view(self.dim, self.dim) - mean.outer(mean), self.decay)
        self.running_usage.lerp_(usage.to(self.running_usage.dtype), 1 - self.decay)
        if self.pull:
            self._move(batch, sums[0])
        measured = float(self.temperature), math.exp(entropy), float(self.critical_temperature)
        self._set_temperature(self.controller.next(int(self.steps), *measured))
        self._restart(batch.tokens)

    def _move(self, batch: BatchStatistics, count: Tensor) -> None:
        """Move each prototype towards the mean of the latents, weighted by their assignments.

        Args:
            batch: The batch of this process. The running usage has moved already, the temperature
                not yet.
            count: Scalar, the tokens of all processes.
        """
        tokens, codebook = batch.tokens, self.codebook.to(batch.tokens.dtype)
        shift, mass = mean_shift(tokens, codebook, self.temperature, self._distance_scale(codebook))
        sums = self._summed(torch.cat([shift, mass[:, None]], dim=1))  # (K, D + 1)
        count = count.to(sums.dtype)
        # The running sum over the running usage, written so that it needs no sum to be kept and
        # keeps its digits far from the origin.
        size = self.running_usage.to(sums.dtype)
        if self.balance:
            # Usage says little about the latents a prototype is given here: never past their mean.
            size = torch.maximum(size, (1 - self.decay) * sums[:, -1] / count)
        shift = sums[:, :-1] / (size[:, None].clamp_min(1e-12) * count)
        self.codebook.add_(shift.to(self.codebook.dtype), alpha=self.pull * (1 - self.decay))

    def _distance_scale(self, codebook: Tensor) -> Tensor | None:
        """What balance multiplies the squared distances to each prototype by, (K,)."""
        if not self.balance:
            return None
        usage = self.running_usage.to(codebook.dtype) * self.codebook_size
        return usage.clamp_min(LEAST_USAGE) ** self.balance

    def _set_temperature(self, temperature: float) -> None:
        # Latents that are all equal have a critical temperature of zero, which nothing divides.
        lowest = max(1e-12, torch.finfo(self.temperature.dtype).tiny)
        self.temperature.fill_(max(temperature, lowest))

    def _track(self, covariance: Tensor, decay: float) -> None:
        self.covariance.lerp_(covariance.to(self.covariance.dtype), 1 - decay)
        self.critical_temperature.copy_(self.critical_factor * largest_variance(self.covariance))

    def _initialized_from(self, latents: Tensor) -> None:
        centred = latents - latents.mean(dim=0)
        self._track(centred.mT @ centred / latents.shape[0], decay=0.0)
        # The assignment matrix of the search is (n, K); a sample settles it to a percent.
        sample = latents[:: max(1, latents.shape[0] // 2048)]
        self.running_usage.fill_(1 / self.codebook_size)
        critical = float(self.critical_temperature)
        self._set_temperature(self.controller.first(sample, self.codebook, critical))
