"""Errors that are the caller's to mend: the command line shows them as one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .trainer import Trainer


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

    @classmethod
    def of(cls, trainer: Trainer, what: str) -> DivergedError:
        """The error of a run, that says in which step it happened and what to do."""
        return cls(
            f"{what} at step {trainer.step + 1}; lower --lr, or use --precision fp32; "
            f"checkpoints in {trainer.folder}, if there are any, are of before"
        )
