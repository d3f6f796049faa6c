"""All pictures of a run, of one level or of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from models import ImageTokenizer

from .distances import distance_figure, neighbour_distances, prototype_distances
from .gallery import gallery_figure
from .projection import principal_plane, projection_figure
from .reconstructions import reconstruction_figure
from .sample import Sample, sample_codebook
from .token_map import token_map_figure
from .trajectories import trajectory_figure
from .usage import (
    class_information,
    class_usage_figure,
    gini,
    heat_map_figure,
    lorenz_figure,
    usage_curve_figure,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def codebook_pictures(
    model: ImageTokenizer,
    images: Tensor,
    labels: Tensor | None = None,
    metrics_lines: Sequence[dict[str, Any]] = (),
    histories: Sequence[Tensor] = (),
    *,
    class_names: Sequence[str] | None = None,
    errors: Tensor | None = None,
    max_images: int = 256,
) -> dict[str, Figure]:
    """Every picture there is something to show for.

    Args:
        model: In any mode; evaluated in eval mode.
        images: uint8 (N, C, H, W). At most ``max_images`` of them, evenly spaced, are looked at.
        labels: int64 (N,), or None where there are no classes.
        metrics_lines: Of the run's metrics.jsonl.
        histories: For each level (E, K), the counts of its training epochs, as
            :attr:`softvq.UtilizationTracker.history` has them. Without any, the tokens of the
            images are counted.
        class_names: Names of the classes by label.
        errors: (N,), the argmax MSE of *all* images, where it is known: the worst and median
            images are then chosen among all.
        max_images: See :func:`training.figures.sample_codebook`.

    Returns:
        Figures by name, in the order to show them in; with several levels those of level n end in
        ``_level_n``. A model without tokens has ``reconstructions`` and ``trajectories`` alone.

    Raises:
        ValueError: If there are no images, or not a label for each.
    """
    sample = sample_codebook(model, images, labels, max_images=max_images)
    pictures = (
        {} if errors is None else {"reconstructions": reconstruction_figure(model, images, errors)}
    )
    pictures |= sample_pictures(
        model, sample, class_names=class_names, reconstructions=errors is None
    )
    note = "tokens of the last training epoch"
    if sample.levels and not any(len(history) for history in histories):
        histories = [level.counts[None] for level in sample.levels]
        note = f"tokens of {len(sample.images)} images"
    pictures |= history_pictures(histories if sample.levels else (), note)
    trajectories = trajectory_figure(metrics_lines)
    if trajectories is not None:
        pictures["trajectories"] = trajectories
    return pictures


def sample_pictures(
    model: ImageTokenizer,
    sample: Sample,
    *,
    class_names: Sequence[str] | None = None,
    reconstructions: bool = True,
) -> dict[str, Figure]:
    """Pictures of what a model makes of images: those that take time.

    Args:
        model: For the reconstructions.
        sample: What it made of the images.
        class_names: Names of the classes by label.
        reconstructions: Whether to draw these too.

    Returns:
        Figures, named as in :func:`codebook_pictures`.
    """
    pictures = {}
    if reconstructions:
        pictures["reconstructions"] = reconstruction_figure(model, sample.images, sample.errors)
    if sample.levels:
        pictures["token_map"] = token_map_figure(sample)
    for level, suffix in zip(sample.levels, suffixes(len(sample.levels)), strict=True):
        pictures[f"gallery{suffix}"] = gallery_figure(sample.images, level)
        pictures[f"projection{suffix}"] = projection_figure(level)
        pictures[f"distances{suffix}"] = distance_figure(level)
        if sample.labels is not None:
            pictures[f"usage_by_class{suffix}"] = class_usage_figure(
                level, sample.labels, class_names
            )
    return pictures


def history_pictures(histories: Sequence[Tensor], note: str = "") -> dict[str, Figure]:
    """Pictures of the counts of epochs: usage curve, Lorenz curve and, of two or more, heat map.

    Args:
        histories: For each level (E, K); one without a row is left out.
        note: What the last row counts, for the titles.

    Returns:
        Figures, named as in :func:`codebook_pictures`.
    """
    pictures = {}
    for history, suffix in zip(histories, suffixes(len(histories)), strict=True):
        if not len(history):
            continue
        pictures[f"usage_curve{suffix}"] = usage_curve_figure(history[-1], note)
        pictures[f"lorenz{suffix}"] = lorenz_figure(history[-1], note)
        if len(history) > 1:
            pictures[f"usage_history{suffix}"] = heat_map_figure(history)
    return pictures


def codebook_numbers(sample: Sample) -> list[dict[str, float | None]]:
    """What the pictures of a sample say, as numbers.

    Returns:
        For each level ``gini``; ``plane_share``, of the latents' variance in the plane of the
        projection; ``median_neighbour_distance`` (None for K = 1) and ``median_latent_distance``;
        and ``class_bits`` with ``class_bits_shuffled``, None without labels.
    """
    numbers: list[dict[str, float | None]] = []
    for level in sample.levels:
        neighbours = neighbour_distances(level.prototypes)
        found = None
        if sample.labels is not None:
            found = class_information(level.indices, sample.labels, len(level.prototypes))
        numbers.append(
            {
                "gini": gini(level.counts),
                "plane_share": float(principal_plane(level.latents).shares.sum()),
                "median_neighbour_distance": float(neighbours.median())
                if len(neighbours)
                else None,
                "median_latent_distance": float(prototype_distances(level).median()),
                "class_bits": None if found is None else found.bits,
                "class_bits_shuffled": None if found is None else found.shuffled_bits,
            }
        )
    return numbers


def suffixes(levels: int) -> list[str]:
    """What the names of each level's pictures end in; nothing where there is but one."""
    return [""] if levels == 1 else [f"_level_{number}" for number in range(1, levels + 1)]
