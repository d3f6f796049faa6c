"""UtilizationTracker: which codes an epoch used, exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ._internal.distributed import summed
from .codebooks.composite import Composite
from .codebooks.interface import check_mask, checked_indices

# What a tracker saves.
STATE = ("counts", "history")


@dataclass(frozen=True, eq=False)
class Utilization:
    """Usage of a codebook over an epoch or a split.

    Attributes:
        counts: (K,) int64, tokens whose nearest prototype each code was.
        used: Number of codes with a token.
        dead: Indices of the codes without one, ascending.
        utilization: ``used / K``, in [0, 1].
        perplexity: ``exp(entropy of counts)``, in [1, K]; 0 without tokens.
    """

    counts: Tensor
    used: int
    dead: Tensor
    utilization: float
    perplexity: float


def perplexity_of(counts: Tensor) -> float:
    """``exp`` of the entropy of a histogram.

    Args:
        counts: (K,), not negative.

    Returns:
        The perplexity, in [1, K]; 0 when the histogram is empty.

    Example:
        >>> perplexity_of(torch.tensor([5, 5, 0, 0]))
        2.0
    """
    total = counts.sum()
    if total == 0:
        return 0.0
    return float(torch.special.entr(counts.double() / total).sum().exp())


class UtilizationTracker(nn.Module):
    """Counts the codes of an epoch over batches and processes, and keeps a row per epoch.

    A code is used in an epoch if it is the nearest prototype of at least one token of that epoch.

    Args:
        codebook_size: K.

    Attributes:
        counts: (K,) int64, tokens per code since the last :meth:`reset`, of this process. It is in
            the ``state_dict`` and moves with the module, but is no buffer: those are the main
            process's after each forward under DDP.
        history: (E, K) int64, one row per finished epoch; likewise.

    Example:
        >>> tracker = UtilizationTracker(codebook_size=4)
        >>> tracker.update(torch.tensor([[0, 0], [1, 1]]))
        >>> usage = tracker.compute()
        >>> usage.used, usage.dead.tolist(), usage.perplexity
        (2, [2, 3], 2.0)
    """

    counts: Tensor
    history: Tensor

    def __init__(self, codebook_size: int) -> None:
        super().__init__()
        if codebook_size < 1:
            raise ValueError(f"codebook_size must be at least 1, got {codebook_size}")
        self.codebook_size = codebook_size
        self.counts = torch.zeros(codebook_size, dtype=torch.int64)
        self.history = torch.zeros(0, codebook_size, dtype=torch.int64)

    @torch.no_grad()
    def update(self, indices: Tensor, mask: Tensor | None = None) -> None:
        """Count a batch.

        Args:
            indices: Integers in [0, K) of any shape; -1 is padding and not counted.
            mask: bool, same shape, False for indices not to count.

        Raises:
            IndexError: If an index lies outside [-1, K); nothing is counted then.
            TypeError: If the indices are not integers, or of several levels in a list, or the
                mask is not bool.
            ValueError: If the mask has another shape.
        """
        if not isinstance(indices, Tensor):
            raise TypeError(
                f"indices must be one tensor, got a {type(indices).__name__}: the indices of "
                "several levels are counted by StackUtilizationTracker(stack), each level by itself"
            )
        if mask is not None:
            check_mask(mask, indices.shape, "the indices' shape")
        kept = indices.flatten() if mask is None else indices[mask]
        indices = checked_indices(kept, self.codebook_size)
        # Shifted by one, so that padding falls into a bin of its own.
        counted = torch.bincount(indices + 1, minlength=self.codebook_size + 1)
        self.counts += counted[1:].to(self.counts.device)

    def compute(self) -> Utilization:
        """Usage since the last :meth:`reset`, over all processes."""
        return self._summary(summed(self.counts))

    def end_epoch(self) -> Utilization:
        """:meth:`compute`, append the counts to :attr:`history`, and :meth:`reset`."""
        usage = self.compute()
        self.history = torch.cat([self.history, usage.counts[None]])
        self.reset()
        return usage

    def reset(self) -> None:
        """Forget the counts of the running epoch; the history stays."""
        self.counts.zero_()

    def _summary(self, counts: Tensor) -> Utilization:
        used = int((counts > 0).sum())
        return Utilization(
            counts=counts,
            used=used,
            dead=(counts == 0).nonzero().squeeze(1),
            utilization=used / self.codebook_size,
            perplexity=perplexity_of(counts),
        )

    def write(self, writer: Any, epoch: int, tag: str = "codebook") -> None:
        """Write the last row of the history to TensorBoard.

        Scalars, the sorted usage curve, the epochs-by-codes heat map and the list of dead codes.
        Needs matplotlib.

        Args:
            writer: A ``torch.utils.tensorboard.SummaryWriter``.
            epoch: The step to write at.
            tag: Prefix of the tags.

        Raises:
            ValueError: If no epoch has ended yet.
        """
        if not len(self.history):
            raise ValueError("no epoch has ended yet: call end_epoch() before write()")
        usage = self._summary(self.history[-1])
        from .plotting import usage_curve, usage_heat_map

        writer.add_scalar(f"{tag}/utilization", usage.utilization, epoch)
        writer.add_scalar(f"{tag}/dead_codes", len(usage.dead), epoch)
        writer.add_scalar(f"{tag}/perplexity", usage.perplexity, epoch)
        dead = ", ".join(map(str, usage.dead.tolist())) or "none"
        writer.add_text(f"{tag}/dead", f"{len(usage.dead)} of {self.codebook_size}: {dead}", epoch)
        writer.add_figure(f"{tag}/usage_curve", usage_curve(usage.counts), epoch)
        writer.add_figure(f"{tag}/usage_history", usage_heat_map(self.history), epoch)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> UtilizationTracker:
        super()._apply(fn, recurse)
        for name in STATE:
            setattr(self, name, fn(getattr(self, name)))
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination |= {prefix + name: getattr(self, name) for name in STATE}

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        own = {name: state_dict.get(prefix + name) for name in STATE}
        others = {key: v for key, v in state_dict.items() if key[len(prefix) :] not in STATE}
        super()._load_from_state_dict(
            others, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        for name, saved in own.items():
            key, mine = prefix + name, getattr(self, name)
            if saved is None:
                missing_keys.append(key)
            # The history grows: it takes the saved length.
            elif saved.shape[-1:] != mine.shape[-1:] or saved.dim() != mine.dim():
                error_msgs.append(
                    f"size mismatch for {key}: the saved state has shape {tuple(saved.shape)}, "
                    f"that of a tracker of {self.codebook_size} codes has {tuple(mine.shape)}"
                )
            else:
                setattr(self, name, saved.detach().to(mine, copy=True))


class StackUtilizationTracker(nn.ModuleList):
    """A :class:`UtilizationTracker` for each codebook of a stack or a product, never pooled.

    Args:
        whole: The :class:`softvq.CodebookStack` or :class:`softvq.ProductCodebook`.

    Example:
        >>> from softvq import CodebookStack, VQCodebook
        >>> stack = CodebookStack([VQCodebook(2, 4), VQCodebook(2, 8)])
        >>> trackers = StackUtilizationTracker(stack)
        >>> trackers.update(torch.tensor([[0, 7], [1, 7]]))
        >>> [(usage.used, usage.perplexity) for usage in trackers.compute()]
        [(2, 2.0), (1, 1.0)]
    """

    def __init__(self, whole: Composite) -> None:
        super().__init__(UtilizationTracker(book.codebook_size) for book in whole.codebooks)
        self._split = whole.indices_of_codebooks

    @property
    def _trackers(self) -> tuple[UtilizationTracker, ...]:
        return tuple(self)  # type: ignore[arg-type]

    def update(self, indices: Tensor | Sequence[Tensor]) -> None:
        """Count a batch.

        Args:
            indices: As the stack or product returns them; -1 is padding and not counted.

        Raises:
            ValueError: If they are not of all levels, or of another number of groups.
            IndexError: If an index lies outside [-1, K) of its codebook; nothing is counted then.
            TypeError: If the indices are not integers.
        """
        parts = self._split(indices)
        if len(parts) != len(self):
            raise ValueError(f"indices must be of all {len(self)} codebooks, got {len(parts)}")
        for tracker, part in zip(self._trackers, parts, strict=True):
            checked_indices(part, tracker.codebook_size)
        for tracker, part in zip(self._trackers, parts, strict=True):
            tracker.update(part)

    def compute(self) -> list[Utilization]:
        """Usage of each codebook since the last :meth:`reset`, over all processes."""
        return [tracker.compute() for tracker in self._trackers]

    def end_epoch(self) -> list[Utilization]:
        """:meth:`UtilizationTracker.end_epoch` of each."""
        return [tracker.end_epoch() for tracker in self._trackers]

    def reset(self) -> None:
        """Forget the counts of the running epoch; the histories stay."""
        for tracker in self._trackers:
            tracker.reset()

    def write(self, writer: Any, epoch: int, tag: str = "codebook") -> None:
        """:meth:`UtilizationTracker.write` of each, the first as ``codebook/0``."""
        for number, tracker in enumerate(self._trackers):
            tracker.write(writer, epoch, f"{tag}/{number}")
