"""Pictures of a codebook, for TensorBoard and the report's page: functions that draw figures."""

from .collect import (
    codebook_numbers,
    codebook_pictures,
    history_pictures,
    sample_pictures,
    suffixes,
)
from .distances import neighbour_distances
from .gallery import CodePatches, code_patches
from .layout import to_png
from .projection import PrincipalPlane, principal_plane
from .sample import LevelSample, Sample, sample_codebook
from .usage import CLASS_NAMES, class_information, gini, lorenz_curve, lorenz_figure

__all__ = [
    "CLASS_NAMES",
    "CodePatches",
    "LevelSample",
    "PrincipalPlane",
    "Sample",
    "class_information",
    "code_patches",
    "codebook_numbers",
    "codebook_pictures",
    "gini",
    "history_pictures",
    "lorenz_curve",
    "lorenz_figure",
    "neighbour_distances",
    "principal_plane",
    "sample_codebook",
    "sample_pictures",
    "suffixes",
    "to_png",
]
