"""Evaluation of runs: ``python -m eval --help``."""
