"""Pictures of a codebook, for TensorBoard and the report's page: functions that draw figures."""

from .collect import codebook_pictures, history_pictures, sample_pictures, suffixes
from .gallery import CodePatches, code_patches
from .layout import to_png
from .sample import LevelSample, Sample, sample_codebook

__all__ = [
    "CodePatches",
    "LevelSample",
    "Sample",
    "code_patches",
    "codebook_pictures",
    "history_pictures",
    "sample_codebook",
    "sample_pictures",
    "suffixes",
    "to_png",
]
