"""``diagnose``: examine a run, make all checks, leave out what another finding explains."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eval.run import log_of_checkpoint, splits_of
from models import ImageTokenizer
from softvq import SoftCodebook
from softvq.functional import largest_variance, latent_covariance
from softvq.geometry import relative_spread
from training.checkpoint import find_checkpoint, load_checkpoint, load_model
from training.config import TrainConfig
from training.config.quantizers import LATTICES, SOFT
from training.data.feed import to_float
from training.distributed import choose_device
from training.errors import UserError
from training.run_log import read_metrics

from . import geometry, gradient, temperature, usage, whole
from .finding import Finding, sorted_findings
from .measure import LevelMeasures, ModelMeasures, measure

GRADIENT_IMAGES = 64
# What a severe finding of a level explains, and need not be said again.
EXPLAINS = {
    "collapsed": (
        "too-soft", "starved-codes", "low-perplexity", "duplicates", "far-codes", "dead-gradient",
    ),
    "never-recovered": ("starved-codes", "low-perplexity"),
    "starved-codes": ("low-perplexity",),
    "too-many-codes": ("starved-codes", "low-perplexity"),
}  # fmt: skip


class Patient(NamedTuple):
    """A run, opened.

    Attributes:
        state: All that the checkpoint holds.
        config: The options of the training.
        model: The model in eval mode, on the device.
        images: uint8 (N, C, H, W), of the training and validation splits.
        lines: The lines of ``metrics.jsonl``; none for a lone checkpoint.
    """

    state: dict[str, Any]
    config: TrainConfig
    model: ImageTokenizer
    images: Tensor
    lines: list[dict[str, Any]]

    @property
    def step(self) -> int:
        """Step of the checkpoint."""
        return int(self.state["step"])

    @property
    def total_steps(self) -> int:
        """Steps that the training was to have."""
        own, trained = self.config.optimizer, int(self.state["images"][0])
        return own.steps or own.epochs * (trained // min(own.batch_size, trained))

    @property
    def schedule_end(self) -> int | None:
        """Step at which the temperature's schedule ends; None without one."""
        soft = self.config.quantizer.name in SOFT
        return self.state["model_config"]["temperature_steps"] if soft else None


def diagnose(
    run: Path, *, data_dir: str | None = None, device: str = "auto", images: int = 1000
) -> list[Finding]:
    """Say what is wrong with a run, and what to change.

    Args:
        run: Run folder (its best.pt) or checkpoint.
        data_dir: Folder of the data; where the training found it by default.
        device: As in train.py.
        images: Sample of the data, half of it training and half validation images, at least 2.
            The test split is not looked at.

    Returns:
        The findings, severe ones first; none where nothing is wrong.

    Raises:
        UserError: If the checkpoint, the data or the device cannot be used.
    """
    if images < 2:
        raise UserError(f"images is {images}: give at least 2, a training and a validation image")
    path = find_checkpoint(run)
    saved = load_checkpoint(path)
    config = TrainConfig.from_dict(saved["config"])
    log = log_of_checkpoint(path)
    lines = read_metrics(log) if log is not None else []
    half = math.ceil(images / 2)
    limit = min(half, config.data.limit_train or half)

    @functools.cache
    def sample() -> Tensor:
        splits = splits_of(config, data_dir, limit_train=limit, limit_test=half)
        return torch.cat([splits.train, splits.val])

    def findings(path: Path, state: dict[str, Any]) -> list[Finding]:
        broken = whole.check_non_finite(state["model"], config)
        model = load_model(state, str(path), finite=False).to(choose_device(device))
        if broken is not None:
            return [broken]  # nothing that is measured from here on would mean anything
        return examine(Patient(state, config, model, sample(), lines))

    found = findings(path, saved)
    last = path.with_name("last.pt")
    if path.name == "best.pt" and last.is_file():
        end = load_checkpoint(last)
        if end["step"] > saved["step"]:
            found += _later(found, findings(last, end), end["step"])
    return sorted_findings(found)


def _later(before: list[Finding], after: list[Finding], step: int) -> list[Finding]:
    """What is severe at a run's end and was not in its best checkpoint: one finding a level."""
    known = {(f.name, f.level) for f in before if f.severity == "severe"}
    worse = [f for f in after if f.severity == "severe" and (f.name, f.level) not in known]
    return [
        Finding(
            "later-collapse",
            "severe",
            f"At the run's end, at step {step}, it is {f.name}: {f.evidence}",
            f"The checkpoint is of before; look at the end with python -m eval doctor "
            f"RUN/last.pt. {f.advice}",
            level,
        )
        for level, f in {f.level: f for f in reversed(worse)}.items()
    ]


def examine(patient: Patient) -> list[Finding]:
    """All checks of a run that is open, severe findings first."""
    measured = measure(patient.model, patient.images)
    norms = [[geometry.check_norm_statistics(*norm)] for norm in measured.norms]
    levels = [_level(patient, measured, number) for number in range(len(measured.levels))]
    found = [f for f in _whole(patient, measured) if f is not None]
    for groups in (norms, _gradients(patient), levels):
        found += _numbered(groups)
    return sorted_findings(_unexplained(found))


def _numbered(groups: Sequence[Iterable[Finding | None]]) -> list[Finding]:
    """The findings of groups; where there are several groups, with their numbers as levels."""
    return [
        f._replace(level=number if len(groups) > 1 else None)
        for number, group in enumerate(groups, start=1)
        for f in group
        if f is not None
    ]


def _unexplained(findings: list[Finding]) -> list[Finding]:
    """Without what a severe finding of the same level, or of the whole, explains."""
    explained = {
        (name, finding.level)
        for finding in findings
        if finding.severity == "severe"
        for name in EXPLAINS.get(finding.name, ())
    }
    if any(f.name == "collapsed" for f in findings):
        explained.add(("dead-gradient", None))  # a stack has one gradient for all of its levels
    return [f for f in findings if (f.name, f.level) not in explained]


def _whole(patient: Patient, measured: ModelMeasures) -> Iterator[Finding | None]:
    """Checks of the model and the run as a whole."""
    config, quantizer = patient.config, patient.config.quantizer
    mse, what = measured.mse_argmax, "the tokens"
    if mse is None:
        mse, what = measured.mse_soft, "the model"
    yield whole.check_worse_than_mean(mse, measured.mse_mean, what, config)
    yield whole.check_got_worse(patient.lines, config)
    ends_at = ""
    if patient.schedule_end is not None:
        unit = {"codes": " codes per token", "critical": " T_c", "constant": ""}
        ends_at = f"{config.temperatures[1]:g}{unit[quantizer.temperature_mode]}"
    last = max([patient.step, *(line["step"] for line in patient.lines)])
    total, logged = patient.total_steps, bool(patient.lines)
    yield whole.check_unfinished(last, total, patient.schedule_end, ends_at, logged)


def _gradients(patient: Patient) -> list[list[Finding | None]]:
    """The gradient through each codebook that stands by itself."""
    if not patient.model.has_tokens:
        return []
    device = next(patient.model.parameters()).device
    images = to_float(patient.images[:GRADIENT_IMAGES].to(device))
    flows = gradient.gradient_flow(patient.model, images)
    return [[gradient.check_dead_gradient(flow, patient.config)] for flow in flows]


def _level(patient: Patient, measured: ModelMeasures, number: int) -> Iterator[Finding | None]:
    """All checks of a level."""
    config, own, level = patient.config, measured.levels[number], patient.model.levels[number]
    covariance = latent_covariance(own.latents.double())
    ratio = None
    if isinstance(level, SoftCodebook):
        critical = level.critical_factor * float(largest_variance(covariance))
        ratio = float(level.temperature) / max(critical, 1e-30)
        yield temperature.check_too_soft(
            own.codes_per_token,
            own.variance / max(own.loss_q, 1e-30),
            (measured.mse_argmax or 0.0) / max(measured.mse_soft, 1e-30),
            patient.step >= (patient.schedule_end or 0),
            config,
        )
    yield geometry.check_low_dimension(own.latents, config)
    yield gradient.check_epsilon(math.sqrt(float(covariance.trace()) / level.dim), config)
    if config.quantizer.name not in LATTICES:
        if level.codebook_size > 1:
            spread = relative_spread(own.codebook, own.latents)
            yield temperature.check_collapse(ratio, spread, config)
        yield geometry.check_duplicates(own.codebook, config, number)
        yield geometry.check_far_codes(own.codebook, own.latents, config)
    yield from _usage(patient, measured, own, number)


def _usage(
    patient: Patient, measured: ModelMeasures, own: LevelMeasures, number: int
) -> Iterator[Finding | None]:
    """Checks of the counts of the training, or, before an epoch has ended, of the sample."""
    config = patient.config
    history: Tensor = patient.state["trackers"][number]["history"]
    tokens = patient.state["images"][0] * measured.tokens_per_image[number]
    source = f"training epoch {len(history)}"
    if not len(history) or not int(history[-1].sum()):
        history, source = own.counts[None], f"{len(patient.images)} images"
    yield usage.check_starved_codes(history, source, config, number)
    yield usage.check_never_recovered(history, config, number)
    yield usage.check_low_perplexity(history[-1], source, config, number)
    yield usage.check_too_many_codes(tokens, len(own.codebook), config, number)
