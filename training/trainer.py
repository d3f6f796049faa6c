"""Trainer: the state of a run and its loop, resumable bit for bit on the CPU."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import LambdaLR

from models import ImageTokenizer, ImageTokenizerOutput
from softvq import two_timescale_groups

from .callbacks import Callback, progress_bar, standard_callbacks
from .checkpoint import new_model
from .config import TrainConfig
from .data.feed import ImageFeed
from .data.splits import ImageSplits
from .distributed import any_process, choose_device, mean_over_processes, rank, world_size
from .errors import DivergedError, UserError
from .losses import data_variance, perceptual_loss
from .metrics import epoch_lines, trackers_of
from .state import begin_run, resumed_model_config, save_run

SECONDS_BETWEEN_CHECKPOINTS = 300.0


class Trainer:
    """One run: model, optimiser, data, and how far it has come.

    Started by torchrun, every process has a Trainer. A batch is shared out among them, all end
    each step with the same state, and the main one alone writes files.

    Args:
        config: The options.
        splits: The data.
        folder: The run folder.
        state: A checkpoint of this run to continue from.
        callbacks: Called after the standard ones, which log, save, draw and take signals.
    """

    def __init__(
        self,
        config: TrainConfig,
        splits: ImageSplits,
        folder: Path,
        state: dict[str, Any] | None = None,
        *,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.config, self.splits, self.folder, self.callbacks = config, splits, folder, callbacks
        options, seed = config.optimizer, config.run.seed
        self.device = choose_device(config.run.device)
        self.rank, self.processes = rank(), world_size()
        self.batch_size = min(options.batch_size, len(splits.train))
        if self.batch_size % self.processes:
            raise UserError(
                f"a batch of {self.batch_size} images cannot be shared out evenly among "
                f"{self.processes} processes; choose another --batch-size"
            )
        images, share = splits.train.to(self.device), (self.rank, self.processes)
        augment = config.data.augment
        self.feed = ImageFeed(images, self.batch_size, seed=seed, augment=augment, share=share)
        self.total_steps = options.steps or options.epochs * self.feed.steps_per_epoch
        planned = config.model_config(self.total_steps)
        self.model_config = resumed_model_config(planned, state, folder)
        torch.manual_seed(seed)
        # Channels last is twice as fast on the CPU as contiguous, and faster on tensor cores.
        self.model: ImageTokenizer = new_model(self.model_config).to(self.device)
        self.model = self.model.to(memory_format=torch.channels_last).train()
        groups = two_timescale_groups(self.model, options.lr, config.timescale_ratio)
        self.optimizer = torch.optim.Adam(groups, fused=self.device.type != "mps")
        self.trackers = trackers_of(self.model)
        self.data_variance = data_variance(splits.train)
        self.perceptual = perceptual_loss(options, images)
        self.step, self.best, self.seconds = 0, math.inf, 0.0
        self.loss, self.sums = math.nan, dict[str, float]()
        self.signal: int | None = None
        begin_run(self, state)
        self.schedule = LambdaLR(self.optimizer, self._lr_factor, last_epoch=self.step - 1)
        self.forward_model: nn.Module = DDP(self.model) if self.processes > 1 else self.model
        if config.run.compile:
            self.forward_model = torch.compile(self.forward_model)  # type: ignore[assignment]

    def run(self) -> int | None:
        """Train to the end, or to a signal.

        Returns:
            The signal that stopped the run after saving it, or None.
        """
        callbacks = [*standard_callbacks(self.rank), *self.callbacks]
        with ExitStack() as started:
            for callback in callbacks:
                callback.on_start(self)
                started.callback(callback.on_end, self)
            self.saved_at = time.monotonic()
            while self.step < self.total_steps and not self._stopping():
                self._epoch(callbacks)
        return self.signal

    def _epoch(self, callbacks: Sequence[Callback]) -> None:
        at_steps = [own for own in callbacks if type(own).on_step is not Callback.on_step]
        epoch, done = divmod(self.step, self.feed.steps_per_epoch)
        with progress_bar(self, epoch, done) as bar:
            for images in self.feed.epoch(epoch, self.step):
                self.train_step(images)
                bar.set_postfix(loss=f"{self.loss:.4f}", refresh=False)
                bar.update()
                for callback in at_steps:
                    callback.on_step(self)
                if self.step % self.feed.steps_per_epoch == 0 or self.step == self.total_steps:
                    break
                stopping = self._stopping()
                if stopping or self._late():
                    save_run(self, "last.pt")
                if stopping:
                    return
        lines = epoch_lines(self, epoch + 1)
        for callback in callbacks:
            callback.on_epoch(self, lines)

    def _stopping(self) -> bool:
        """Whether a signal has come, to any of the processes."""
        if self.processes > 1 and any_process(self.signal is not None, self.device):
            self.signal = self.signal or signal.SIGTERM
        return self.signal is not None

    def _late(self) -> bool:
        """Whether the last checkpoint is too long ago, by the main process's clock."""
        late = time.monotonic() - self.saved_at > SECONDS_BETWEEN_CHECKPOINTS
        return any_process(late and self.rank == 0, self.device) if self.processes > 1 else late

    def train_step(self, images: Tensor) -> None:
        """One step of all processes, each on its share of the batch."""
        start = time.perf_counter()
        torch.manual_seed(self.feed.model_seed(self.step))  # for the levels that are dropped
        bf16 = self.config.run.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            output: ImageTokenizerOutput = self.forward_model(images)
        recon = output.recon.float()
        terms = {"mse_soft": F.mse_loss(recon, images), **output.code.log_terms()}
        loss = terms["mse_soft"] / self.data_variance + output.code.loss
        if self.perceptual is not None:
            terms["lpips"] = self.perceptual(recon.clamp(0, 1), images).mean()
            loss = loss + self.config.optimizer.perceptual_weight * terms["lpips"]
        # One transfer for all figures, since each would wait for the device.
        terms = {"loss": loss, **terms}
        values = torch.stack([term.detach().float() for term in terms.values()]).tolist()
        if self.processes > 1:
            values = mean_over_processes(values, self.device)
        self.loss = values[0]
        if not math.isfinite(self.loss):
            raise DivergedError.of(self, f"the loss became {self.loss}")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        try:
            self.model.after_step(output.code)
        except (FloatingPointError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
            raise DivergedError.of(self, "latents or prototypes overflowed") from error
        for tracker, level in zip(self.trackers, output.code.levels, strict=True):
            tracker.update(level.indices)
        self.step += 1
        for name, value in zip([*terms, "steps"], [*values, 1.0], strict=True):
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.seconds += time.perf_counter() - start

    def _lr_factor(self, step: int) -> float:
        if self.config.optimizer.lr_schedule == "constant":
            return 1.0
        return (1 + math.cos(math.pi * step / self.total_steps)) / 2
