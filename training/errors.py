"""Errors that are the caller's to mend: the command line shows them as one line."""

from __future__ import annotations


class UserError(Exception):
    """A wrong call: says what was given, what was expected and what to do."""

    exit_code = 2


class ForeignOptionError(UserError):
    """An option that does nothing for the quantizer of the run."""


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged, or of another model."""

    exit_code = 1


class DatasetError(UserError):
    """Data that is missing, damaged or too small."""


class DivergedError(UserError):
    """A run whose loss, latents or prototypes are no longer finite numbers."""
