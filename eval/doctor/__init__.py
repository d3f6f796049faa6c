"""What is wrong with a trained codebook, and what to change: docs/doctor.md."""

from .examine import diagnose
from .finding import Finding, format_findings, is_severe

__all__ = ["Finding", "diagnose", "format_findings", "is_severe"]
