"""softvq: soft codebooks for generative models, with hard baselines and honest usage counts."""

from .attach import Attachment, attach
from .codebooks.codebook import Codebook
from .codebooks.ddcl import DDCLCodebook, DDCLEMCodebook
from .codebooks.interface import BatchStatistics, after_step_of
from .codebooks.outputs import CodebookOutput, StackOutput
from .codebooks.product import ProductCodebook
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
from .diagnosis import Diagnosis, diagnose
from .documents.compressor import DocumentCompressor
from .documents.proportions import assignments, checked_documents, mean_token, proportions
from .documents.readout import DDCLReadout, ReadoutOutput
from .initialize import kmeans
from .optim import two_timescale_groups
from .plotting import usage_curve, usage_heat_map
from .utilization import (
    StackUtilizationTracker,
    Utilization,
    UtilizationTracker,
    perplexity_of,
)

__version__ = "0.2.0.dev0"

__all__ = [
    "Attachment",
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
    "Diagnosis",
    "DocumentCompressor",
    "ProductCodebook",
    "ReadoutOutput",
    "Schedule",
    "SoftCodebook",
    "StackOutput",
    "StackUtilizationTracker",
    "TemperatureController",
    "Utilization",
    "UtilizationTracker",
    "VQCodebook",
    "VQEMACodebook",
    "after_step_of",
    "assignments",
    "attach",
    "checked_documents",
    "diagnose",
    "kmeans",
    "mean_token",
    "perplexity_of",
    "proportions",
    "two_timescale_groups",
    "usage_curve",
    "usage_heat_map",
]
