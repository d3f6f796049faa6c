"""What a run is asked to be: options, their checks, the command line. Imports nothing heavy."""

from .train_config import PRESETS, TrainConfig

__all__ = ["PRESETS", "TrainConfig"]
