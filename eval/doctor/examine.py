"""``diagnose``: examine a run, make all checks, leave out what another finding explains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eval.run import log_of_checkpoint, splits_of
from models import ImageTokenizer
from softvq import Codebook, SoftCodebook
from softvq.functional import largest_variance, latent_covariance
from training.checkpoint import find_checkpoint, load_checkpoint, load_model
from training.config import TrainConfig
from training.data.feed import to_float
from training.distributed import choose_device
from training.errors import UserError
from training.metrics import is_tokenless
from training.options import LATTICES
from training.run_log import read_metrics

from . import geometry, later, learning, state, temperature, usage
from .finding import Finding, sorted_findings
from .gradient import gradient_flow
from .lines import figure, of_level, training_lines
from .measure import LevelMeasures, ModelMeasures, measure

GRADIENT_IMAGES = 64
# What a severe finding of a level explains, and need not be said again.
EXPLAINS = {
    "collapsed": (
        "too-soft",
        "starved-codes",
        "low-perplexity",
        "duplicates",
        "far-codes",
        "dead-gradient",
        "later-collapse",
    ),
    "never-recovered": ("starved-codes", "low-perplexity"),
    "starved-codes": ("low-perplexity",),
    "too-many-codes": ("starved-codes", "low-perplexity"),
}


class Patient(NamedTuple):
    """A run, opened.

    Attributes:
        state: All that the checkpoint holds.
        config: The options of the training.
        model: In eval mode, on the device.
        images: uint8 (N, C, H, W), of the training and validation splits.
        lines: Of ``metrics.jsonl``; none for a lone checkpoint.
    """

    state: dict[str, Any]
    config: TrainConfig
    model: ImageTokenizer
    images: Tensor
    lines: list[dict[str, Any]]

    @property
    def total_steps(self) -> int:
        """Steps that the training was to have."""
        if self.config.steps:
            return self.config.steps
        trained = self.state["images"][0]
        return self.config.epochs * (trained // min(self.config.batch_size, trained))


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
    broken = state.check_non_finite(saved["model"], config)
    model = load_model(saved, str(path)).to(choose_device(device))
    if broken is not None:
        return [broken]  # nothing that is measured from here on would mean anything
    log = log_of_checkpoint(path)
    lines = read_metrics(log) if log is not None else []
    half = math.ceil(images / 2)
    limit = min(half, config.limit_train or half)
    splits = splits_of(config, data_dir, limit_train=limit, limit_test=half)
    sample = torch.cat([splits.train, splits.val])
    return examine(Patient(saved, config, model, sample, lines))


def examine(patient: Patient) -> list[Finding]:
    """All checks of a run that is open, severe findings first."""
    measured = measure(patient.model, patient.images)
    found = [*_whole(patient, measured), *_gradients(patient)]
    several = len(measured.levels) > 1
    for number, own in enumerate(measured.levels):
        level = number + 1 if several else None
        found += [f._replace(level=level) for f in _level(patient, measured, number, own) if f]
    return sorted_findings(_unexplained([f for f in found if f is not None]))


def _unexplained(findings: list[Finding]) -> list[Finding]:
    """Without what a severe finding of the same level, or of the whole, explains."""
    explained = {
        (name, finding.level)
        for finding in findings
        if finding.severity == "severe"
        for name in EXPLAINS.get(finding.name, ())
    }
    collapsed = any(f.name == "collapsed" for f in findings)
    return [
        f
        for f in findings
        if (f.name, f.level) not in explained
        # A stack has one gradient for all of its levels.
        and not (f.name == "dead-gradient" and f.level is None and collapsed)
    ]


def _whole(patient: Patient, measured: ModelMeasures) -> Iterator[Finding | None]:
    """Checks of the model and the run as a whole."""
    config, step = patient.config, int(patient.state["step"])
    several = len(measured.norms) > 1
    for number, norm in enumerate(measured.norms):
        finding = state.check_norm_statistics(*norm)
        yield finding and finding._replace(level=number + 1 if several else None)
    tokens = measured.mse_argmax
    if tokens is None:
        yield learning.check_worse_than_mean(
            measured.mse_soft, measured.mse_mean, "the model", config
        )
    else:
        yield learning.check_worse_than_mean(tokens, measured.mse_mean, "the tokens", config)
    yield learning.check_got_worse(patient.lines, config)
    soft = config.quantizer == "ddcl"
    yield learning.check_unfinished(
        max([step, *(line["step"] for line in patient.lines)]),
        patient.total_steps,
        patient.state["model_config"]["temperature_steps"] if soft else None,
        _schedule_end(config) if soft else None,
        logged=bool(patient.lines),
    )


def _schedule_end(config: TrainConfig) -> str:
    unit = {"codes": "codes per token", "critical": "T_c", "constant": ""}
    return f"{config.temperatures[1]:g} {unit[config.temperature_mode]}".strip()


def _gradients(patient: Patient) -> Iterator[Finding | None]:
    """The gradient through each codebook that stands by itself."""
    if is_tokenless(patient.model):
        return
    device = next(patient.model.parameters()).device
    flows = gradient_flow(patient.model, to_float(patient.images[:GRADIENT_IMAGES].to(device)))
    for number, flow in enumerate(flows):
        finding = learning.check_dead_gradient(flow, patient.config)
        yield finding and finding._replace(level=number + 1 if len(flows) > 1 else None)


def _level(
    patient: Patient, measured: ModelMeasures, number: int, own: LevelMeasures
) -> Iterator[Finding | None]:
    """All checks of a level."""
    level = patient.model.levels[number]
    covariance = latent_covariance(own.latents.double())
    scale = math.sqrt(float(covariance.trace()) / level.dim)
    if isinstance(level, SoftCodebook):
        yield from _soft(patient, measured, number, own, level, scale)
    elif patient.config.quantizer not in LATTICES and level.codebook_size > 1:
        yield temperature.check_collapse(
            None, geometry.separation(own.codebook, own.latents), patient.config
        )
    yield from _usage(patient, measured, number, own)
    yield geometry.check_low_dimension(own.latents, patient.config)
    yield learning.check_epsilon(scale, patient.config)
    if patient.config.quantizer not in LATTICES:
        yield geometry.check_duplicates(own.codebook, patient.config, number)
        yield geometry.check_far_codes(own.codebook, own.latents, patient.config)
    running = _running_usage(level)
    if running is not None:
        yield state.check_stale_usage(running, own.usage, int(own.counts.sum()), patient.config)


def _soft(
    patient: Patient,
    measured: ModelMeasures,
    number: int,
    own: LevelMeasures,
    level: SoftCodebook,
    scale: float,
) -> Iterator[Finding | None]:
    """Checks of a level that has a temperature."""
    config = patient.config
    factor = temperature.critical_factor(level)
    largest = float(largest_variance(latent_covariance(own.latents)))
    ratio = float(level.temperature) / max((factor or 1.0) * largest, 1e-30)
    if level.codebook_size > 1:
        before, _ = training_lines(patient.lines, int(patient.state["step"]))
        since = hot_since(before, number, len(measured.levels))
        yield temperature.check_collapse(
            ratio,
            geometry.separation(own.codebook, own.latents),
            config,
            since if ratio >= 1 else None,
        )
    yield temperature.check_too_soft(
        own.codes_per_token,
        own.variance / max(own.loss_q, 1e-30),
        (measured.mse_argmax or 0.0) / max(measured.mse_soft, 1e-30),
        int(patient.state["step"]) >= patient.state["model_config"]["temperature_steps"],
        config,
    )
    yield temperature.check_free_scale(ratio, scale, config)
    yield state.check_stale_covariance(level.covariance.cpu(), own.latents, config)


def hot_since(lines: Sequence[Mapping[str, Any]], number: int = 0, levels: int = 1) -> int | None:
    """First of the epochs that had T at T_c or above without a break until the last.

    Args:
        lines: Of the training split.
        number: Of the level, from 0.
        levels: How many there are.

    Example:
        >>> ratios = [1.2, 0.9, 1.1, 1.3]
        >>> hot_since([{"epoch": n, "temperature_ratio": r} for n, r in enumerate(ratios, 1)])
        3
    """
    since = None
    for line in lines:
        ratio = figure(of_level(line, number, levels), "temperature_ratio") or 0.0
        since = (since or line["epoch"]) if ratio >= temperature.COLLAPSED_RATIO else None
    return since


def _usage(
    patient: Patient, measured: ModelMeasures, number: int, own: LevelMeasures
) -> Iterator[Finding | None]:
    """Checks of the counts of the training, or, before an epoch has ended, of the sample."""
    history: Tensor = patient.state["trackers"][number]["history"]
    tokens = patient.state["images"][0] * measured.tokens_per_image[number]
    if len(history) and int(history[-1].sum()) > 0:
        source = f"training epoch {len(history)}"
    else:
        history, source = own.counts[None], f"{len(patient.images)} images"
    yield usage.check_starved_codes(history, source, patient.config, number)
    yield usage.check_never_recovered(history, patient.config, number)
    yield usage.check_low_perplexity(history[-1], source, patient.config, number)
    codes = own.codebook.shape[0]
    yield usage.check_too_many_codes(tokens, codes, patient.config, number)
    if patient.config.quantizer != "none":
        level = later.Level(number, len(measured.levels), codes, tokens)
        yield later.check_later(patient.lines, int(patient.state["step"]), level, patient.config)


def _running_usage(level: Codebook) -> Tensor | None:
    """What restarts are decided by, once it has forgotten its start."""
    decay = getattr(level, "decay", None)
    if decay is None or int(level.steps) < 3 / (1 - decay):
        return None
    return level.running_usage.cpu()


def to_json(findings: list[Finding]) -> dict[str, Any]:
    """Findings as a plain dict, ``severe`` first."""
    return {"findings": [finding._asdict() for finding in findings]}
