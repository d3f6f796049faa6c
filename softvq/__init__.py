"""softvq: soft codebooks for generative models, with hard baselines and honest usage counts."""

from .codebooks.codebook import Codebook
from .codebooks.ddcl import DDCLCodebook, DDCLEMCodebook
from .codebooks.interface import BatchStatistics, CodebookOutput, StackOutput, after_step_of
from .codebooks.soft import SoftCodebook
from .codebooks.stack import CodebookStack
from .codebooks.temperature import (
    CodesPerToken,
    ConstantTemperature,
    CriticalFraction,
    Schedule,
    TemperatureController,
)
from .codebooks.vq import VQCodebook, VQEMACodebook
from .documents.compressor import DocumentCompressor
from .documents.proportions import assignments, checked_documents, mean_token, proportions
from .documents.readout import DDCLReadout, ReadoutOutput
from .initialize import kmeans
from .optim import two_timescale_groups
from .plotting import usage_curve, usage_heat_map
from .utilization import Utilization, UtilizationTracker, perplexity_of

__version__ = "0.2.0.dev0"

__all__ = [
    "BatchStatistics",
    "Codebook",
    "CodebookOutput",
    "CodebookStack",
    "CodesPerToken",
    "ConstantTemperature",
    "CriticalFraction",
    "DDCLCodebook",
    "DDCLEMCodebook",
    "DDCLReadout",
    "DocumentCompressor",
    "ReadoutOutput",
    "Schedule",
    "SoftCodebook",
    "StackOutput",
    "TemperatureController",
    "Utilization",
    "UtilizationTracker",
    "VQCodebook",
    "VQEMACodebook",
    "after_step_of",
    "assignments",
    "checked_documents",
    "kmeans",
    "mean_token",
    "perplexity_of",
    "proportions",
    "two_timescale_groups",
    "usage_curve",
    "usage_heat_map",
]
