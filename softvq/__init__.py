"""softvq: soft codebooks for generative models, with hard baselines and honest usage counts."""

from .attach import attach
from .codebooks.codebook import Codebook
from .codebooks.ddcl import DDCLCodebook
from .codebooks.ddcl_em import DDCLEMCodebook
from .codebooks.output import CodebookOutput, StackOutput
from .codebooks.stack import CodebookStack
from .codebooks.temperature import CodesPerToken, ConstantTemperature, CriticalFraction, Schedule
from .codebooks.vq import VQCodebook, VQEMACodebook
from .documents.compressor import DocumentCompressor
from .documents.readout import DDCLReadout, ReadoutOutput
from .initialize import kmeans
from .optim import two_timescale_groups
from .utilization import Utilization, UtilizationTracker

__version__ = "0.1.0"

__all__ = [
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
    "StackOutput",
    "Utilization",
    "UtilizationTracker",
    "VQCodebook",
    "VQEMACodebook",
    "attach",
    "kmeans",
    "two_timescale_groups",
]
