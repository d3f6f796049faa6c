"""How evenly codes are used, and by which classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from softvq import usage_curve, usage_heat_map

from .layout import fitted, new_figure
from .sample import LevelSample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Wider codebooks are shown in groups of adjacent codes: a pixel cannot hold more.
MAX_COLUMNS = 512
SHUFFLES = 5

# Names of the classes, by the name of the data set.
CLASS_NAMES = {
    "cifar10": (
        "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
    ),
}  # fmt: skip


def lorenz_curve(counts: Tensor) -> Tensor:
    """Share of all tokens that the least used codes have together.

    Args:
        counts: (K,), not negative.

    Returns:
        (K + 1,) float64, from 0 to 1: entry k is of the k least used codes. Without tokens, the
        line of equal use.

    Example:
        >>> lorenz_curve(torch.tensor([6, 0, 2])).tolist()
        [0.0, 0.0, 0.25, 1.0]
    """
    if not counts.sum():
        counts = torch.ones_like(counts)
    rising = counts.cpu().double().sort().values.cumsum(0)
    return torch.cat([rising.new_zeros(1), rising / rising[-1]])


def gini(counts: Tensor) -> float:
    """Gini coefficient of the use of codes: twice the area between equal use and the Lorenz curve.

    Args:
        counts: (K,), not negative.

    Returns:
        0 when all codes are used alike (or none is), ``1 - 1 / K`` when one is used alone.

    Example:
        >>> gini(torch.tensor([3, 3, 3])), gini(torch.tensor([0, 0, 0, 8]))
        (0.0, 0.75)
    """
    curve = lorenz_curve(counts)
    area = (curve[1:] + curve[:-1]).sum() / 2 / len(counts)
    return max(0.0, float(1 - 2 * area))


def lorenz_figure(counts: Tensor, note: str = "") -> Figure:
    """The Lorenz curve of the use of codes, with its Gini coefficient.

    Args:
        counts: (K,), not negative.
        note: What the counts are of, for the title.
    """
    curve = lorenz_curve(counts)
    figure = new_figure(3.6)
    axes = figure.add_subplot()
    share = torch.linspace(0, 1, len(curve), dtype=torch.float64)
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":", label="all codes used alike")
    axes.plot(share.numpy(), curve.numpy(), label="this codebook")
    axes.fill_between(share.numpy(), curve.numpy(), share.numpy(), alpha=0.15)
    axes.set(xlabel="share of codes, least used first", ylabel="share of tokens")
    title = f"Gini coefficient {gini(counts):.3f} (0: all alike)"
    axes.set_title(title + (f"\n{note}" if note else ""), fontsize=10)
    axes.legend(loc="upper left")
    return figure


def usage_curve_figure(counts: Tensor, note: str = "") -> Figure:
    """:func:`softvq.usage_curve`, at the common width."""
    return fitted(usage_curve(counts), 3.4, note)


def heat_map_figure(history: Tensor) -> Figure:
    """:func:`softvq.usage_heat_map`; of a large codebook, of groups of adjacent codes.

    Args:
        history: (E, K) counts, a row an epoch.
    """
    size = -(-history.shape[1] // MAX_COLUMNS)
    figure = usage_heat_map(grouped(history, size))
    if size > 1:
        figure.axes[0].set_xlabel(f"groups of {size} adjacent codes")
    return fitted(figure, 3.4)


def grouped(history: Tensor, size: int) -> Tensor:
    """Counts (E, K) summed over groups of adjacent codes, (E, ceil(K / size)).

    Example:
        >>> grouped(torch.tensor([[1, 2, 3, 4, 6]]), 2).tolist()
        [[3, 7, 12]]
    """
    last = history.shape[1] % size
    if last:
        # A group that is not full counts as if it were: its codes have their mean.
        rest = history[:, -last:].sum(dim=1, keepdim=True) * size // last
        return torch.cat([grouped(history[:, :-last], size), rest], dim=1)
    return history.unflatten(1, (-1, size)).sum(dim=2)


class ClassInformation(NamedTuple):
    """What tokens say of the class of their image.

    Attributes:
        classes: (C,) int64, the labels that occur, ascending.
        joint: (C, K) int64, tokens of each class and code.
        bits: Mutual information of class and code, bits per token, of these very counts: too high
            where tokens are few.
        shuffled_bits: The same with the labels shuffled over the images, mean of five: what chance
            alone gives.
    """

    classes: Tensor
    joint: Tensor
    bits: float
    shuffled_bits: float


def class_information(
    indices: Tensor, labels: Tensor, codebook_size: int, max_classes: int = 20
) -> ClassInformation:
    """Count tokens by class and code.

    Args:
        indices: (B, h, w) int64 in [0, K).
        labels: (B,) int64.
        codebook_size: K.
        max_classes: Only the classes with the most images.

    Example:
        >>> indices = torch.tensor([[[0]], [[1]], [[0]], [[1]]])
        >>> class_information(indices, torch.tensor([3, 7, 3, 7]), codebook_size=2).bits
        1.0
    """
    classes, counts = labels.unique(return_counts=True)
    classes = classes[counts.argsort(descending=True, stable=True)[:max_classes]].sort().values
    kept = torch.isin(labels, classes)
    indices, labels = indices[kept].flatten(1), labels[kept]  # (B, h * w), (B,)
    rows = torch.searchsorted(classes, labels)
    generator = torch.Generator().manual_seed(0)

    def joint_of(rows: Tensor) -> Tensor:
        cells = rows[:, None] * codebook_size + indices
        size = len(classes) * codebook_size
        return torch.bincount(cells.flatten(), minlength=size).view(len(classes), codebook_size)

    joint = joint_of(rows)
    shuffled = [
        information(joint_of(rows[torch.randperm(len(rows), generator=generator)]))
        for _ in range(SHUFFLES)
    ]
    bits = [float(parts.sum().clamp_min(0)) for parts in (information(joint), *shuffled)]
    return ClassInformation(classes, joint, bits[0], sum(bits[1:]) / SHUFFLES)


def information(joint: Tensor) -> Tensor:
    """What each code adds to the mutual information of class and code.

    Args:
        joint: (C, K) counts.

    Returns:
        (K,) float64, in bits.

    Example:
        >>> information(torch.tensor([[2, 0], [0, 2]])).tolist()
        [0.5, 0.5]
    """
    p = joint.double() / joint.sum()
    expected = p.sum(dim=1, keepdim=True) * p.sum(dim=0, keepdim=True)
    parts = torch.where(joint > 0, p * (p / expected).log2(), 0.0)
    return parts.sum(dim=0)


def class_usage_figure(
    level: LevelSample, labels: Tensor, class_names: Sequence[str] | None = None, codes: int = 16
) -> Figure:
    """Use of the codes that tell classes apart best, by class, against their use in all.

    Args:
        level: The tokens of the images.
        labels: (B,) int64.
        class_names: Names by label; numbers by default.
        codes: Columns.
    """
    found = class_information(level.indices, labels, len(level.prototypes))
    columns = information(found.joint).argsort(descending=True, stable=True)[:codes]
    in_class = found.joint.double() / found.joint.sum(dim=1, keepdim=True)
    overall = found.joint.sum(dim=0).double() / found.joint.sum()
    ratio = (in_class / overall.clamp_min(1e-30))[:, columns]  # (C, codes)
    shown = ratio.clamp_min(1e-30).log2().clamp(-3, 3)
    figure = new_figure(1.7 + 0.22 * len(found.classes))
    axes = figure.add_subplot()
    image = axes.imshow(shown.numpy(), aspect="auto", cmap="RdBu_r", vmin=-3, vmax=3)
    numbers = found.classes.tolist()
    names = [class_names[n] if class_names and n < len(class_names) else str(n) for n in numbers]
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks(range(len(columns)), map(str, columns.tolist()), rotation=90, fontsize=8)
    axes.set(xlabel="codes that tell classes apart best", ylabel="class")
    axes.set_title(
        f"A token tells {found.bits:.3f} bits of the class of its image\n"
        f"({found.shuffled_bits:.3f} with labels shuffled; {len(labels)} images)",
        fontsize=10,
    )
    figure.colorbar(image, ax=axes, label="log2 of use in class / in all")
    return figure
