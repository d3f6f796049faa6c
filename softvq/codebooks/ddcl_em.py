"""DDCLEMCodebook: a soft codebook whose prototypes are running means, no learning rate."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .._internal.distributed import summed
from ..attention import mean_shift
from .ddcl import DDCLCodebook
from .output import BatchStatistics
from .temperature import TemperatureController

# Usage, in units of the mean, below which balance helps a prototype no further.
LEAST_USAGE = 0.01


class DDCLEMCodebook(DDCLCodebook):
    """Boltzmann assignment, prototypes by soft EM, straight-through gradient to the encoder.

    A prototype is the running mean of all latents, each weighted by its assignment: the fixed
    point that gradient descent on L_q with the assignment held would reach, and the limit of
    infinitely fast prototypes. It has no learning rate, and needs none for another scale of the
    latents. The decoder's gradient passes to the encoder as if the code were the latent: where
    assignments are nearly hard, the derivative of the code is nearly zero, and would teach the
    encoder nothing. The loss keeps its exact gradient to the latents.

    With ``balance``, where prototypes learn, the squared distances to one count times its usage
    to that power, usage in units of the mean: often chosen ones give latents away to rare
    neighbours. Each moves towards the mean of what it is given, as far as its running usage says.
    Codes, indices and losses go by plain distances. After frequency-sensitive competitive learning
    (Ahalt, Krishnamurthy, Chen and Melton, Neural Networks 3, 1990).

    The source paper has gradient descent only; this class is our choice, measured in
    docs/recipe.md. Arguments and attributes are those of :class:`DDCLCodebook`, and ``decay`` also
    that of the means.

    Args:
        dim: D, size of the vector axis.
        codebook_size: K, number of prototypes.
        temperature: Controller of T, driven by :meth:`after_step`; two codes per token by default.
        commitment: Weight of ``L_OLS + variance_weight * V`` in the loss, >= 0.
        variance_weight: Weight of V against L_OLS, > 0.
        usage_weight: Weight of ``KL(usage || uniform)`` of the batch in the loss, >= 0.
        decay: Decay of the running means, covariance and usage, in [0, 1).
        restart_threshold: A prototype whose running usage falls below this share of the mean is
            moved onto a random latent of the batch; 0 never restarts.
        seed: Seed for choosing the latents that replace restarted prototypes.
        engine: ``"dense"``, ``"attention"``, or ``"auto"``, which takes attention from K = 512 on.
        channel_first: Latents are (B, D, ...) instead of (..., D).
        balance: In [0, 1]; 0 learns from the plain assignment, whose usage is less even.

    Attributes:
        codebook: (K, D) buffer, the prototypes.
        critical_temperature: Scalar buffer, twice the largest variance of the latents, where
            collapse begins to attract when the assignment is held.

    Raises:
        ValueError: If a size or a weight is out of range.

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

    def __init__(
        self,
        dim: int,
        codebook_size: int,
        *,
        temperature: TemperatureController | None = None,
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
        super().__init__(
            dim,
            codebook_size,
            temperature=temperature,
            commitment=commitment,
            variance_weight=variance_weight,
            usage_weight=usage_weight,
            decay=decay,
            restart_threshold=restart_threshold,
            seed=seed,
            engine=engine,
            channel_first=channel_first,
        )
        if not 0 <= balance <= 1:
            raise ValueError(f"balance must lie in [0, 1], got {balance}")
        self.balance = balance

    def _set_codebook(self, codebook: Tensor) -> None:
        self.register_buffer("codebook", codebook)

    def _critical_factor(self) -> float:
        # Descent with the assignment held: softvq.functional.critical_temperature.
        return 2.0

    def _route(self, quantized: Tensor, latents: Tensor) -> Tensor:
        # The latents minus themselves are an exact zero that carries the gradient.
        return quantized.detach() + (latents - latents.detach())

    def _move(self, batch: BatchStatistics) -> None:
        if self.frozen:
            return
        tokens, codebook = batch.tokens, self.codebook.to(batch.tokens.dtype)
        shift, mass = mean_shift(tokens, codebook, self.temperature, self._distance_scale(codebook))
        sums = summed(torch.cat([shift, mass[:, None]], dim=1))  # (K, D + 1)
        count = summed(sums.new_tensor([len(tokens)]))
        # The running sum over the running usage, written so that it needs no sum to be kept and
        # keeps its digits far from the origin.
        size = self.running_usage.to(sums.dtype)
        if self.balance:
            # Usage says little about the latents a prototype is given here: never past their mean.
            size = torch.maximum(size, (1 - self.decay) * sums[:, -1] / count)
        shift = sums[:, :-1] / (size[:, None].clamp_min(1e-12) * count)
        self.codebook.add_(shift.to(self.codebook.dtype), alpha=1 - self.decay)

    def _distance_scale(self, codebook: Tensor) -> Tensor | None:
        """What balance multiplies the squared distances to each prototype by, (K,)."""
        if not self.balance:
            return None
        usage = self.running_usage.to(codebook.dtype) * self.codebook_size
        return usage.clamp_min(LEAST_USAGE) ** self.balance
