"""Figures of a split: soft and argmax reconstruction, decomposition, usage."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from models import ImageTokenizer
from models.tokenizer import size_of
from softvq import CodebookOutput, StackOutput, UtilizationTracker
from softvq.functional import widest_dtype

from .data.feed import to_float
from .distributed import rank, sum_over_processes, world_size

if TYPE_CHECKING:
    from .trainer import Trainer

ImageSums = Callable[[Tensor, Tensor], dict[str, Tensor]]
# Images (B, C, H, W) and the tokens of each level to a reconstruction in [0, 1].
Decoder = Callable[[Tensor, list[Tensor]], Tensor]
# Images, what the codebooks returned, and the reconstructions by name.
Observer = Callable[[Tensor, CodebookOutput | StackOutput, Mapping[str, Tensor]], None]

# How several levels are summed up; all else by the sum.
LOWEST = ("utilization", "perplexity")
HIGHEST = ("codes_per_token", "temperature", "temperature_ratio")


def squared_error_sums(recon: Tensor, images: Tensor) -> dict[str, Tensor]:
    """Sums over images of the MSE and the PSNR of each image.

    Args:
        recon: (B, C, H, W) in [0, 1].
        images: (B, C, H, W) in [0, 1].

    Returns:
        ``mse`` and ``psnr``, float64 scalars; PSNR in dB for a range of 1, the mean over images is
        then the mean of the images' own PSNR.
    """
    mse = (recon - images).to(widest_dtype(images.device)).square().flatten(1).mean(dim=1)  # (B,)
    return {"mse": mse.sum(), "psnr": -10 * mse.clamp_min(1e-12).log10().sum()}


def evaluate_split(
    model: ImageTokenizer,
    images: Tensor,
    *,
    batch_size: int = 256,
    image_sums: ImageSums = squared_error_sums,
    decoders: Mapping[str, Decoder] | None = None,
    decoder_sums: ImageSums = squared_error_sums,
    observers: Iterable[Observer] = (),
    progress: Callable[[Iterable[Tensor]], Iterable[Tensor]] = iter,
) -> dict[str, Any]:
    """Evaluate a model on uint8 images, soft and argmax side by side, shared out among processes.

    Args:
        model: Put into eval mode for the time of the call.
        images: uint8 (N, C, H, W).
        batch_size: Number of images in the network at a time.
        image_sums: Returns sums of per-image figures of a batch; each comes back as
            ``<name>_soft`` and ``<name>_argmax``, divided by N.
        decoders: Further ways to decode a model that has tokens.
        decoder_sums: As ``image_sums``, for those; they come back as ``<name>_<decoder>``.
        observers: Called with every batch.
        progress: Wraps the iterable of batches.

    Returns:
        The figures of :func:`finish_code_figures`, with the usage of the tokens, and those of the
        images, as floats; without tokens argmax and usage figures are None.
    """
    trackers, sums, seconds = trackers_of(model), Counter[str](), 0.0
    with model.evaluating():
        for part in progress(images[rank() :: world_size()].split(batch_size)):
            batch = to_float(part.to(next(model.parameters()).device))
            start = time.perf_counter()
            code, recons, tokens = _coded(model, batch)
            for tracker, own in zip(trackers, tokens, strict=False):
                tracker.update(own)
            seconds += time.perf_counter() - start
            more = {k: decode(batch, tokens) for k, decode in (decoders or {}).items() if tokens}
            for observe in observers:
                observe(batch, code, recons | more)
            terms = {name: value * len(batch) for name, value in code.log_terms().items()}
            terms |= _named_sums(image_sums, recons, batch) | _named_sums(decoder_sums, more, batch)
            sums.update({name: float(value) for name, value in terms.items()})
    means = {name: value / len(images) for name, value in sum_over_processes(dict(sums)).items()}
    figures = finish_code_figures(means, trackers, model)
    without = {} if model.has_tokens else {"mse_argmax": None, "psnr_argmax": None}
    return figures | without | {"images_per_second": len(images) / seconds}


def _coded(
    model: ImageTokenizer, batch: Tensor
) -> tuple[CodebookOutput | StackOutput, dict[str, Tensor], list[Tensor]]:
    """What the codebooks return, the reconstructions by name, and the tokens of each level."""
    recon, code = model(batch)
    recons = {"soft": recon.clamp(0, 1)}
    if not model.has_tokens:
        return code, recons, []
    # Levels after the first code what the tokens, not the soft codes, have left over.
    tokens = code.indices if len(model.levels) == 1 else model.tokens(batch)
    recons["argmax"] = model.decode_tokens(tokens, size_of(batch))
    return code, recons, model.split(tokens)


def _named_sums(sums: ImageSums, recons: Mapping[str, Tensor], images: Tensor) -> dict[str, Tensor]:
    return {
        f"{name}_{mode}": value
        for mode, recon in recons.items()
        for name, value in sums(recon, images).items()
    }


def trackers_of(model: ImageTokenizer) -> list[UtilizationTracker]:
    """A fresh tracker for each level, on the model's device."""
    device = next(model.parameters()).device
    return [UtilizationTracker(level.codebook_size).to(device) for level in model.levels]


def finish_code_figures(
    means: dict[str, float], trackers: list[UtilizationTracker], model: ImageTokenizer
) -> dict[str, Any]:
    """Means of ``log_terms``, entropies turned into codes, with usage and temperatures.

    Args:
        means: Those of :meth:`softvq.CodebookOutput.log_terms`, and others, which are kept.
        trackers: One for each level, which has counted its indices.
        model: The model, for the temperatures.

    Returns:
        The figures. Several levels have a list of dicts, ``levels``, coarse first, and are summed
        up by the sum of their losses and dead codes and by the worst of all else: the lowest
        utilization and perplexity, the highest temperatures and codes per token.
    """
    figures: dict[str, Any] = {k: v for k, v in means.items() if "/" not in k}
    levels = []
    for number, (level, tracker) in enumerate(zip(model.levels, trackers, strict=True)):
        prefix = f"{number}/"
        own = {k.removeprefix(prefix): v for k, v in means.items() if k.startswith(prefix)}
        weight = own.pop("weight")
        own = {name: value / weight if weight else 0.0 for name, value in own.items()}
        usage = tracker.compute()
        used: dict[str, Any] = {
            "utilization": usage.utilization,
            "dead_codes": len(usage.dead),
            "perplexity": usage.perplexity,
            "codes_per_token": math.exp(own.pop("entropy")),
        }
        used = used if level.has_tokens else dict.fromkeys(used)
        levels.append(own | used | level.temperature_info())
    if len(levels) == 1:
        return figures | levels[0]
    return figures | summed_up(levels) | {"levels": levels}


def epoch_lines(trainer: Trainer, epoch: int) -> list[dict[str, Any]]:
    """Figures of the epoch that ends, of the three splits; the next epoch's begin.

    Args:
        trainer: The run.
        epoch: Number of the epoch, from 1.
    """
    steps = trainer.sums.pop("steps")
    means = {name: value / steps for name, value in trainer.sums.items()}
    figures = finish_code_figures(means, trainer.trackers, trainer.model)
    lines = {"train": figures | {"images_per_second": steps * trainer.batch_size / trainer.seconds}}
    trainer.sums, trainer.seconds = {}, 0.0
    for tracker in trainer.trackers:
        tracker.end_epoch()
    # The running statistics that training leaves are an average over a moving encoder and a few
    # batches, which can cost an evaluation a quarter of its error.
    trainer.model.calibrate(trainer.feed.sample(count=16, step=trainer.step))
    for split in ("val", "test"):
        lines[split] = evaluate_split(trainer.model, getattr(trainer.splits, split))
    head = {"epoch": epoch, "step": trainer.step}
    return [{**head, "split": split, **own} for split, own in lines.items()]


def summed_up(levels: list[dict[str, Any]]) -> dict[str, Any]:
    """One figure for all levels: the worst, or the sum; see :func:`finish_code_figures`.

    Example:
        >>> summed_up([{"loss_q": 1.0, "perplexity": 9.0}, {"loss_q": 2.0, "perplexity": 5.0}])
        {'loss_q': 3.0, 'perplexity': 5.0}
    """

    def one(name: str, values: list[Any]) -> Any:
        if any(value is None for value in values):
            return None
        return (min if name in LOWEST else max if name in HIGHEST else sum)(values)

    return {name: one(name, [level[name] for level in levels]) for name in levels[0]}
