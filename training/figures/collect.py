"""All pictures of a run, of one level or of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from models import ImageTokenizer

from .gallery import gallery_figure
from .reconstructions import reconstruction_figure
from .sample import Sample, sample_codebook
from .token_map import token_map_figure
from .usage import heat_map_figure, usage_curve_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def codebook_pictures(
    model: ImageTokenizer,
    images: Tensor,
    histories: Sequence[Tensor] = (),
    *,
    errors: Tensor | None = None,
    max_images: int = 256,
) -> dict[str, Figure]:
    """Every picture there is something to show for.

    Args:
        model: The model, in any mode; it is evaluated in eval mode.
        images: uint8 (N, C, H, W). At most ``max_images`` of them, evenly spaced, are looked at.
        histories: For each level (E, K), the counts of its training epochs, as
            :attr:`softvq.UtilizationTracker.history` has them. Without any, the tokens of the
            images are counted.
        errors: (N,), the argmax MSE of *all* images, where it is known: the worst and median
            images are then chosen among all.
        max_images: Largest number of images to look at.

    Returns:
        Figures by name, in the order to show them in; with several levels those of level n end in
        ``_level_n``. A model without tokens has ``reconstructions`` alone.

    Raises:
        ValueError: If there are no images.
    """
    sample = sample_codebook(model, images, max_images=max_images)
    pictures = sample_pictures(model, sample)
    if errors is not None:
        pictures["reconstructions"] = reconstruction_figure(model, images, errors)
    note = "tokens of the last training epoch"
    if sample.levels and not any(len(history) for history in histories):
        histories = [level.counts[None] for level in sample.levels]
        note = f"tokens of {len(sample.images)} images"
    return pictures | history_pictures(histories if sample.levels else (), note)


def sample_pictures(model: ImageTokenizer, sample: Sample) -> dict[str, Figure]:
    """Pictures of what a model makes of images: those that take time.

    Args:
        model: The model, for the reconstructions.
        sample: What it made of the images.

    Returns:
        Figures, named as in :func:`codebook_pictures`.
    """
    pictures = {"reconstructions": reconstruction_figure(model, sample.images, sample.errors)}
    if sample.levels:
        pictures["token_map"] = token_map_figure(sample)
    for level, suffix in zip(sample.levels, suffixes(len(sample.levels)), strict=True):
        pictures[f"gallery{suffix}"] = gallery_figure(sample.images, level)
    return pictures


def history_pictures(histories: Sequence[Tensor], note: str = "") -> dict[str, Figure]:
    """Pictures of the counts of epochs: usage curve and, of two epochs or more, heat map.

    Args:
        histories: For each level (E, K); one without a row is left out.
        note: What the last row counts, for the titles.

    Returns:
        Figures, named as in :func:`codebook_pictures`.
    """
    pictures = {}
    for history, suffix in zip(histories, suffixes(len(histories)), strict=True):
        if len(history):
            pictures[f"usage_curve{suffix}"] = usage_curve_figure(history[-1], note)
        if len(history) > 1:
            pictures[f"usage_history{suffix}"] = heat_map_figure(history)
    return pictures


def suffixes(levels: int) -> list[str]:
    """What the names of each level's pictures end in; nothing where there is but one."""
    return [""] if levels == 1 else [f"_level_{number}" for number in range(1, levels + 1)]
