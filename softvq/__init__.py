"""softvq: soft codebooks for generative models, with hard baselines and honest usage counts."""

from .codebook import Codebook
from .ddcl import DDCLCodebook
from .initialize import kmeans
from .optim import two_timescale_groups
from .output import CodebookOutput
from .temperature import CodesPerToken, ConstantTemperature, CriticalFraction, Schedule
from .utilization import Utilization, UtilizationTracker
from .vq import VQCodebook, VQEMACodebook

__version__ = "0.1.0"

__all__ = [
    "Codebook",
    "CodebookOutput",
    "CodesPerToken",
    "ConstantTemperature",
    "CriticalFraction",
    "DDCLCodebook",
    "Schedule",
    "Utilization",
    "UtilizationTracker",
    "VQCodebook",
    "VQEMACodebook",
    "kmeans",
    "two_timescale_groups",
]
