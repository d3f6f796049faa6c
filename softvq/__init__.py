"""softvq: soft codebooks for generative models, with hard baselines and honest usage counts."""

from .codebook import Codebook
from .compressor import DocumentCompressor
from .ddcl import DDCLCodebook
from .ddcl_em import DDCLEMCodebook
from .initialize import kmeans
from .optim import two_timescale_groups
from .output import CodebookOutput, StackOutput
from .readout import DDCLReadout, ReadoutOutput
from .stack import CodebookStack
from .temperature import CodesPerToken, ConstantTemperature, CriticalFraction, Schedule
from .utilization import Utilization, UtilizationTracker
from .vq import VQCodebook, VQEMACodebook

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
    "kmeans",
    "two_timescale_groups",
]
