"""Trainer: the state of a run and its loop, resumable bit for bit on the CPU."""

from __future__ import annotations

import math
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from models import ImageTokenizer, ImageTokenizerOutput
from softvq import two_timescale_groups
from softvq._internal.distributed import summed, world_size

from .checkpoint import mismatch, new_model, save_checkpoint
from .config import TrainConfig
from .data.datasets import ImageSplits
from .data.feed import ImageFeed, draw_seed
from .devices import choose_device
from .distributed import mean_over_processes, rank
from .errors import DivergedError, UserError
from .figures import CLASS_NAMES
from .losses import PerceptualDistance
from .metrics import (
    code_figures,
    evaluate_split,
    finish_code_figures,
    is_tokenless,
    trackers_of,
)
from .run_log import RunLog, table_header, table_row

GRID_IMAGES = 12
# Epochs. They take about two seconds; besides, the first and the last epoch have them.
PICTURES_EVERY = 10
SECONDS_BETWEEN_CHECKPOINTS = 300.0


class Trainer:
    """One run: model, optimiser, data, log, and how far it has come.

    Started by torchrun, every process has a Trainer. A batch is shared out among them, all end
    each step with the same state, and the main one alone writes files.

    Args:
        config: The options.
        splits: The data.
        folder: The run folder.
        state: A checkpoint of this run to continue from.
    """

    def __init__(
        self,
        config: TrainConfig,
        splits: ImageSplits,
        folder: Path,
        state: dict[str, Any] | None = None,
    ) -> None:
        self.config = config
        self.folder = folder
        self.device = choose_device(config.run.device)
        self.splits = splits
        self.batch_size = min(config.optimizer.batch_size, len(splits.train))
        if self.batch_size % world_size():
            raise UserError(
                f"a batch of {self.batch_size} images cannot be shared out evenly among "
                f"{world_size()} processes; choose another --batch-size"
            )
        images = splits.train.to(self.device)
        self.feed = ImageFeed(images, self.batch_size, config.run.seed, config.data.augment)
        self.steps_per_epoch = self.feed.steps_per_epoch
        self.total_steps = config.optimizer.steps or config.optimizer.epochs * self.steps_per_epoch
        self.model_config = config.model_config(self.total_steps)
        if state is not None:
            # More epochs than planned go on at the last temperature: a longer schedule would
            # heat up what has cooled down.
            for name in ("temperature_hold_steps", "temperature_steps"):
                self.model_config[name] = state["model_config"][name]
        torch.manual_seed(config.run.seed)
        # Channels last is twice as fast on the CPU as contiguous, and faster on tensor cores.
        self.model: ImageTokenizer = new_model(self.model_config).to(self.device)
        self.model = self.model.to(memory_format=torch.channels_last).train()
        groups = two_timescale_groups(self.model, config.optimizer.lr, config.timescale_ratio)
        self.learning_rates = [group["lr"] for group in groups]
        self.optimizer = torch.optim.Adam(groups, fused=self.device.type != "mps")
        self.trackers = trackers_of(self.model)
        # Losses in units of the data's variance: a weight then means the same for all data.
        variance = float(splits.train.float().div(255).var(dim=(0, 2, 3)).mean())
        self.data_variance = max(variance, 1e-6)  # images of one flat colour have none
        self.perceptual: PerceptualDistance | None = None
        if config.optimizer.perceptual_weight:
            weights = (
                Path(config.optimizer.lpips_weights) if config.optimizer.lpips_weights else None
            )
            self.perceptual = PerceptualDistance(config.optimizer.lpips, weights).to(self.device)
            self.perceptual(*[images[:1].float() / 255] * 2)  # too small images are told now
        self.step = 0
        self.sums: dict[str, float] = {}
        self.seconds = 0.0
        self.best = math.inf
        if state is None:
            self._start()
        else:
            self._restore(state)
        self.forward_model: nn.Module = self.model
        if world_size() > 1:
            self.forward_model = DistributedDataParallel(self.model)
        if config.run.compile:
            self.forward_model = torch.compile(self.forward_model)  # type: ignore[assignment]
        self.log: RunLog | None = None
        self._signal: int | None = None
        self._saved_at = time.monotonic()
        self._save_due = False

    def run(self) -> int | None:
        """Train to the end, or to a signal.

        Returns:
            The signal that stopped the run after saving it, or None.
        """
        self.log = RunLog(self.folder, self.step) if rank() == 0 else None
        previous = {s: signal.signal(s, self._stop) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            if self.log is not None:
                tqdm.write(table_header())
            while self.step < self.total_steps and self._signal is None:
                self._epoch()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            if self.log is not None:
                self.log.close()
        return self._signal

    def _epoch(self) -> None:
        epoch = self.step // self.steps_per_epoch
        end = min((epoch + 1) * self.steps_per_epoch, self.total_steps)
        self._saved_at = time.monotonic()
        with tqdm(
            total=end - epoch * self.steps_per_epoch,
            initial=self.step - epoch * self.steps_per_epoch,
            desc=f"epoch {epoch + 1}/{math.ceil(self.total_steps / self.steps_per_epoch)}",
            unit="step",
            leave=False,
            disable=None if rank() == 0 else True,
        ) as bar:
            for batch in self.feed.epoch(epoch, self.step):
                loss = self._train_step(batch)
                bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
                bar.update()
                if self._signal is not None and self.step < end:
                    self.save("last.pt")
                    return
                if self._save_due:
                    self.save("last.pt")
                    self._saved_at = time.monotonic()
                if self.step == end:
                    break
        self._finish_epoch(epoch)

    def _train_step(self, images: Tensor) -> float:
        start = time.perf_counter()
        # What the model itself draws, the levels to drop, differs between processes.
        torch.manual_seed(draw_seed(self.config.run.seed, self.step, 3) + rank() * 0x9E3779B1)
        bf16 = self.config.run.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            output: ImageTokenizerOutput = self.forward_model(images)
        recon_loss = F.mse_loss(output.recon.float(), images)
        loss = recon_loss / self.data_variance + output.code.loss
        figures = {"mse_soft": recon_loss, **code_figures(output.code)}
        if self.perceptual is not None:
            figures["lpips"] = self.perceptual(output.recon.float().clamp(0, 1), images).mean()
            loss = loss + self.config.optimizer.perceptual_weight * figures["lpips"]
        figures = {"loss": loss, **figures}
        # One transfer for all figures, since each would wait for the device.
        values = torch.stack([figure.detach().float() for figure in figures.values()]).tolist()
        *values, save_due, stopped = mean_over_processes([*values, *self._flags()], self.device)
        self._save_due = save_due > 0
        if stopped and self._signal is None:
            self._signal = signal.SIGTERM
        if not math.isfinite(values[0]):
            raise self._diverged(f"the loss became {values[0]}")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._set_learning_rates()
        self.optimizer.step()
        try:
            self.model.after_step(output.code)
        except (FloatingPointError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
            raise self._diverged("latents or prototypes overflowed") from error
        for tracker, level in zip(self.trackers, output.code.levels, strict=True):
            tracker.update(level.indices)
        self.step += 1
        for name, value in zip(figures, values, strict=True):
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.sums["steps"] = self.sums.get("steps", 0.0) + 1
        self.seconds += time.perf_counter() - start
        return float(values[0])

    def _set_learning_rates(self) -> None:
        """Of the step to come, a function of the step alone, so that a run resumes with them."""
        factor = 1.0
        if self.config.optimizer.lr_schedule == "cosine":
            factor = (1 + math.cos(math.pi * self.step / self.total_steps)) / 2
        for group, lr in zip(self.optimizer.param_groups, self.learning_rates, strict=True):
            group["lr"] = lr * factor

    def _flags(self) -> tuple[float, float]:
        """Whether the main process wants to save, and whether this one got a signal."""
        late = time.monotonic() - self._saved_at > SECONDS_BETWEEN_CHECKPOINTS
        return float(late and rank() == 0), float(self._signal is not None)

    def _diverged(self, what: str) -> DivergedError:
        return DivergedError(
            f"{what} at step {self.step + 1}; lower --lr, or use --precision fp32; "
            f"checkpoints in {self.folder}, if there are any, are of before"
        )

    def _finish_epoch(self, epoch: int) -> None:
        steps = self.sums.pop("steps")
        means = {name: value / steps for name, value in self.sums.items()}
        tokenless = is_tokenless(self.model)
        head = {"epoch": epoch + 1, "step": self.step}
        train = {
            **head,
            "split": "train",
            **finish_code_figures(means, self.trackers, self.model),
            "images_per_second": steps * self.batch_size / self.seconds,
        }
        usage = [tracker.end_epoch().counts for tracker in self.trackers]
        # The running statistics that training leaves are an average over a moving encoder and a few
        # batches, which can cost an evaluation a quarter of its error.
        self.model.calibrate(self.feed.sample(count=16, step=self.step))
        lines = [train]
        for split, images in (("val", self.splits.val), ("test", self.splits.test)):
            lines.append({**head, "split": split, **evaluate_split(self.model, images)})
        self.sums, self.seconds = {}, 0.0
        if self.log is not None:
            self.log.write(lines)
            tqdm.write(table_row(epoch + 1, lines))
        # The validation split chooses; the test split is only looked at.
        error = lines[1]["mse_soft" if tokenless else "mse_argmax"]
        if error < self.best:
            self.best = error
            self.save("best.pt")
        self.save("last.pt")
        if self.log is not None:
            try:
                self._draw(self.log, epoch, usage)
            except Exception as error:  # of a picture: no reason to lose a run
                tqdm.write(f"no pictures of epoch {epoch + 1}: {error}", file=sys.stderr)

    def _draw(self, log: RunLog, epoch: int, usage: list[Tensor]) -> None:
        """What TensorBoard shows of an epoch; dear pictures of the first, the last and some."""
        tokenless = is_tokenless(self.model)
        ended = self.step >= self.total_steps
        if not tokenless:
            log.write_usage(self.trackers, self.step)
        log.write_images(self.model, self.splits.test[:GRID_IMAGES], self.step)
        if ended or epoch == 0 or (epoch + 1) % PICTURES_EVERY == 0:
            names = CLASS_NAMES.get(self.splits.name)
            val, labels = self.splits.val, self.splits.val_labels
            log.write_pictures(self.model, val, labels, names, self.step)
        if ended and not tokenless:
            log.write_codebook(self.model, usage, self.step)

    def save(self, name: str) -> None:
        """Write a checkpoint of everything that the run needs to go on; every process calls it."""
        counts = [{"counts": summed(tracker.counts)} for tracker in self.trackers]
        if rank() > 0:
            return
        state = {
            "model_config": self.model_config,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "trackers": [
                tracker.state_dict() | own
                for tracker, own in zip(self.trackers, counts, strict=True)
            ],
            "step": self.step,
            "sums": self.sums,
            "seconds": self.seconds,
            "best": self.best,
            "config": self.config.options(),
            "images": self._image_counts(),
        }
        save_checkpoint(self.folder / name, state)

    def _start(self) -> None:
        """Statistics of the latents first, then prototypes from latents of several batches."""
        # Counted, not encoded: a quantizer of others would start itself on these raw latents.
        batch = next(self.feed.sample(1, step=0))
        grids = self.model.grids(*batch.shape[2:])
        wanted = [
            math.ceil(16 * level.codebook_size / (len(batch) * height * width))
            for level, (height, width) in zip(self.model.levels, grids, strict=True)
        ]
        sample_batches = self.feed.sample(min(max(4, *wanted), 64), step=0)
        if not self.config.quantizer.kmeans_init:
            self.model.calibrate(sample_batches)
            return
        try:
            self.model.initialize(sample_batches, seed=self.config.run.seed)
        except ValueError as error:
            raise UserError(f"no k-means of the latents ({error}); or --init random") from error

    def _restore(self, state: dict[str, Any]) -> None:
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            for tracker, saved in zip(self.trackers, state["trackers"], strict=True):
                tracker.load_state_dict(saved)
            self._check_optimizer()
            self.step, self.sums = int(state["step"]), dict(state["sums"])
            self.seconds, self.best = float(state["seconds"]), float(state["best"])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise mismatch(str(self.folder / "last.pt"), error) from error
        if state["images"] != self._image_counts():
            raise UserError(
                f"the data has changed since {self.folder} was saved: train, val and test had "
                f"{state['images']} images, now {self._image_counts()}; restore it, or start anew"
            )
        if rank() > 0:
            for tracker in self.trackers:
                tracker.reset()  # the counts of all processes are the main one's now

    def _check_optimizer(self) -> None:
        """Adam takes moments of any shape and then writes out of bounds."""
        for parameter, moments in self.optimizer.state.items():
            for name, value in moments.items():
                if value.dim() and value.shape != parameter.shape:
                    raise ValueError(
                        f"size mismatch: {name} of the optimizer is {tuple(value.shape)}, its "
                        f"parameter {tuple(parameter.shape)}"
                    )

    def _image_counts(self) -> list[int]:
        return [len(self.splits.train), len(self.splits.val), len(self.splits.test)]

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        if rank() == 0:
            tqdm.write("stopping: saving after this step (again to quit at once)", file=sys.stderr)
        # A second signal ends the process at once, as without us.
        signal.signal(number, signal.SIG_DFL)
