"""DDCLEMCodebook: a soft codebook whose prototypes are running means, no learning rate."""

from __future__ import annotations

from torch import Tensor

from .attention import mean_shift
from .ddcl import DDCLCodebook
from .distributed import summed
from .output import BatchStatistics


class DDCLEMCodebook(DDCLCodebook):
    """Boltzmann assignment, prototypes by soft EM, straight-through gradient to the encoder.

    A prototype is the running mean of all latents, each weighted by its assignment: the fixed
    point that gradient descent on L_q with the assignment held would reach, and the limit of
    infinitely fast prototypes. It has no learning rate, and needs none for another scale of the
    latents. The decoder's gradient passes to the encoder as if the code were the latent: where
    assignments are nearly hard, the derivative of the code is nearly zero, and would teach the
    encoder nothing. The loss keeps its exact gradient to the latents.

    The source paper has gradient descent only; this class is our choice, measured in
    docs/recipe.md. Arguments and attributes are those of :class:`DDCLCodebook`, but ``codebook``
    is a buffer here, ``decay`` also that of the means, and ``critical_temperature`` twice the
    largest variance, where collapse begins to attract when the assignment is held.

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
        shift = summed(
            mean_shift(batch.tokens, self.codebook.to(batch.tokens.dtype), self.temperature)
        )
        count = summed(shift.new_tensor([len(batch.tokens)]))
        # The running sum over the running usage, written so that it needs no sum to be kept and
        # keeps its digits far from the origin.
        size = self.running_usage.to(shift.dtype)[:, None].clamp_min(1e-12)
        shift = shift / (size * count)
        self.codebook.add_(shift.to(self.codebook.dtype), alpha=1 - self.decay)
