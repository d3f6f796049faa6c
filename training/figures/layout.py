"""What all figures share: a width that a phone shows readably, and tiles of images."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torchvision.utils import make_grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Inches. Text of 10 points then has about 9 pixels where the figure is 330 pixels wide.
WIDTH = 4.8
# Pixels per inch, of the page; TensorBoard shows smaller pictures, and shrinks larger ones badly.
DPI = 150


def new_figure(height: float) -> Figure:
    """An empty figure of the common width, ``height`` inches high, outside of pyplot's state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), dpi=100, layout="constrained")


def fitted(figure: Figure, height: float, note: str = "") -> Figure:
    """A figure made elsewhere, at the common width, with a note below its title."""
    figure.set_size_inches(WIDTH, height)
    axes = figure.axes[0]
    title = axes.get_title() + (f"\n{note}" if note else "")
    axes.set_title(title, fontsize=10)
    return figure


def to_png(figure: Figure) -> bytes:
    """The figure as a PNG file, 720 pixels wide."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=DPI)
    return content.getvalue()


def show_mosaic(
    axes: Any,
    tiles: Tensor,
    row_labels: Sequence[str],
    column_labels: Sequence[str] = (),
) -> None:
    """Draw tiles (rows * columns, C, H, W) with a label for each row, and for each column.

    Args:
        axes: Where to draw.
        tiles: In [0, 1], row by row.
        row_labels: One for each row, on the left.
        column_labels: One for each column, below; none by default.
    """
    rows = len(row_labels)
    columns = len(tiles) // rows
    height, width = tiles.shape[2] + 1, tiles.shape[3] + 1
    pixels = make_grid(tiles, nrow=columns, padding=1, pad_value=1.0).clamp(0, 1)  # (3, H, W)
    axes.imshow(pixels.permute(1, 2, 0).numpy(), interpolation="nearest")
    axes.set_yticks([row * height + height / 2 for row in range(rows)], row_labels)
    places = [column * width + width / 2 for column in range(len(column_labels))]
    axes.set_xticks(places, column_labels, fontsize=8)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
