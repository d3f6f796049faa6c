"""Running usage, and restarts of the prototypes that too few latents choose."""

from __future__ import annotations

import torch
from torch import Tensor

from .._internal.distributed import gathered
from .codebook import Codebook


class RestartingCodebook(Codebook):
    """Base of softvq's own codebooks: keeps the running usage of its prototypes by :meth:`_count`.

    Attributes:
        running_usage: (K,) buffer, a running mean of how much each prototype is used, in the
            kind's own unit; restarts compare it with its mean.
        decay: Share of the running usage that a step keeps, in [0, 1).
        restart_threshold: A prototype whose running usage falls below this share of the mean is
            moved onto a random latent of the batch by :meth:`after_step`; 0 never restarts.
        seed: Seed for choosing the latents that replace restarted prototypes.
    """

    running_usage: Tensor

    def _count(self, usage: float, decay: float, restart_threshold: float, seed: int) -> None:
        """Set up the running usage; for the constructor.

        Args:
            usage: Usage of each prototype before the first step.
            decay: As the attribute.
            restart_threshold: As the attribute.
            seed: As the attribute.

        Raises:
            ValueError: If a share lies outside [0, 1).
        """
        for name, share in (("decay", decay), ("restart_threshold", restart_threshold)):
            if not 0 <= share < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {share}")
        self.decay = decay
        self.restart_threshold = restart_threshold
        self.seed = seed
        self.register_buffer("running_usage", torch.full((self.codebook_size,), usage))

    def _restart(self, tokens: Tensor) -> None:
        """Move prototypes of too little running usage onto some of the tokens (M, D)."""
        mean = self.running_usage.mean()
        starved = (self.running_usage < self.restart_threshold * mean).nonzero().squeeze(1)
        if len(starved):
            vectors = newcomers(tokens, len(starved), self.seed + int(self.steps))
            # Twice the threshold gives the newcomer time to be chosen before it is judged again.
            size = 2 * self.restart_threshold * mean
            self._replace(starved[: len(vectors)], vectors.to(self.codebook.dtype), size)

    def _replace(self, rows: Tensor, vectors: Tensor, size: Tensor) -> None:
        """Move prototypes, and all state that belongs to them, at once; ``size`` is their usage."""
        self.codebook[rows] = vectors
        self.running_usage[rows] = size


@torch.no_grad()
def newcomers(tokens: Tensor, count: int, seed: int) -> Tensor:
    """Latents drawn at random from the batch of all processes, the same in every process.

    Args:
        tokens: (M, D), the latents of this process; M may differ between processes.
        count: Number of latents to draw.
        seed: Seed of the drawing.

    Returns:
        (R, D), R the smaller of ``count`` and the number of latents of all processes.

    Example:
        >>> newcomers(torch.arange(6.0).reshape(3, 2), 2, seed=0).shape
        torch.Size([2, 2])
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(tokens.shape[0], generator=generator)[:count]
    candidates = gathered(tokens[order.to(tokens.device)])
    # Seeded anew: processes that drew from unequal token counts would go on apart.
    generator.manual_seed(seed)
    order = torch.randperm(candidates.shape[0], generator=generator)[:count]
    return candidates[order.to(tokens.device)]
