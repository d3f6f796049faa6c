"""Callbacks: what watches a run from outside its loop, and what a run does besides training."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from .figures.tensorboard import write_epoch, write_pictures
from .run_log import RunLog, table_header, table_row
from .state import save_run

if TYPE_CHECKING:
    from .trainer import Trainer

# Epochs. They take about two seconds; besides, the first and the last epoch have them.
PICTURES_EVERY = 10


class Callback:
    """Watches a run. All methods do nothing; a subclass overrides those it needs.

    The state of the run is in the trainer: ``trainer.step``, ``trainer.model``, ``trainer.loss``.
    Started by torchrun, every process calls its own callbacks.

    Example:
        >>> class StopEarly(Callback):
        ...     def on_epoch(self, trainer, lines):
        ...         if lines[1]["mse_argmax"] < 0.004:
        ...             trainer.total_steps = trainer.step
    """

    def on_start(self, trainer: Trainer) -> None:
        """Called before the first step; the model is initialised, or restored."""

    def on_step(self, trainer: Trainer) -> None:
        """Called after each step."""

    def on_epoch(self, trainer: Trainer, lines: list[dict[str, Any]]) -> None:
        """Called after each epoch.

        Args:
            trainer: The run.
            lines: The epoch's lines of metrics.jsonl: of training, validation and test.
        """

    def on_end(self, trainer: Trainer) -> None:
        """Called when the run ends, by an error, too."""


class Interrupt(Callback):
    """Stops a run at SIGINT or SIGTERM, after the step in which it comes.

    A second signal ends the process at once, as without this callback.
    """

    def on_start(self, trainer: Trainer) -> None:
        """Take the signals."""

        def receive(number: int, frame: FrameType | None) -> None:
            trainer.signal = number
            if trainer.rank == 0:
                text = "stopping: saving after this step (again to quit at once)"
                tqdm.write(text, file=sys.stderr)
            signal.signal(number, signal.SIG_DFL)

        numbers = (signal.SIGINT, signal.SIGTERM)
        self._previous = {number: signal.signal(number, receive) for number in numbers}

    def on_end(self, trainer: Trainer) -> None:
        """Give the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)


class Log(Callback):
    """Writes metrics.jsonl, TensorBoard events and a table on the terminal."""

    def on_start(self, trainer: Trainer) -> None:
        """Open the files, and drop what a dead run wrote after its last checkpoint."""
        self.run_log = RunLog(trainer.folder, trainer.step)
        tqdm.write(table_header())

    def on_epoch(self, trainer: Trainer, lines: list[dict[str, Any]]) -> None:
        """Write the lines."""
        self.run_log.write(lines)
        tqdm.write(table_row(lines[0]["epoch"], lines))

    def on_end(self, trainer: Trainer) -> None:
        """Close the files."""
        self.run_log.close()


class Checkpoints(Callback):
    """Saves ``last.pt`` after each epoch, and ``best.pt`` if no epoch was better."""

    def on_epoch(self, trainer: Trainer, lines: list[dict[str, Any]]) -> None:
        """Save. The validation split chooses; the test split is only looked at."""
        error = lines[1]["mse_argmax" if trainer.model.has_tokens else "mse_soft"]
        if error < trainer.best:
            trainer.best = error
            save_run(trainer, "best.pt")
        save_run(trainer, "last.pt")


class Pictures(Callback):
    """Draws in TensorBoard: usage and reconstructions, at times galleries and token maps."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def on_epoch(self, trainer: Trainer, lines: list[dict[str, Any]]) -> None:
        """Draw, if it can be done: a picture is no reason to lose a run."""
        epoch, writers = lines[0]["epoch"], self._log.run_log.writers
        last = trainer.step >= trainer.total_steps
        try:
            write_epoch(writers, trainer)
            if last or epoch == 1 or epoch % PICTURES_EVERY == 0:
                write_pictures(writers, trainer)
        except Exception as error:
            tqdm.write(f"no pictures of epoch {epoch}: {error}", file=sys.stderr)


def standard_callbacks(rank: int) -> list[Callback]:
    """What every run has, in the order in which it is called; the main process alone writes."""
    if rank > 0:
        return [Interrupt(), Checkpoints()]
    log = Log()
    return [Interrupt(), log, Checkpoints(), Pictures(log)]


def progress_bar(trainer: Trainer, epoch: int, done: int) -> Any:
    """A bar of the steps of an epoch, on a terminal.

    Args:
        trainer: The run.
        epoch: Number of the epoch, from 0.
        done: Number of steps of the epoch that are done.
    """
    steps = trainer.feed.steps_per_epoch
    return tqdm(
        total=min(steps, trainer.total_steps - epoch * steps),
        initial=done,
        desc=f"epoch {epoch + 1}/{-(-trainer.total_steps // steps)}",
        unit="step",
        leave=False,
        disable=None if trainer.rank == 0 else True,
    )
