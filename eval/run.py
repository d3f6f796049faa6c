"""A finished run, opened for evaluation from its checkpoint alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models import ImageTokenizer
from softvq import VQCodebook, VQEMACodebook
from training.checkpoint import find_checkpoint, load_checkpoint, load_model
from training.config import TrainConfig
from training.data.splits import ImageSplits, load_splits
from training.distributed import choose_device
from training.errors import UserError


class Model(NamedTuple):
    """A trained model, without the data it was trained on.

    Attributes:
        network: In eval mode, on the device.
        device: Where it is.
        counts: For each level int64 (K,), tokens of its last training epoch on the CPU; ones where
            none has ended.
        state: All that the checkpoint holds.
        hash: :func:`model_hash` of the network.
    """

    network: ImageTokenizer
    device: torch.device
    counts: list[Tensor]
    state: dict[str, Any]
    hash: str


def open_model(run: Path, *, device: str = "auto") -> Model:
    """Load the model of a run, from its checkpoint alone.

    Args:
        run: Run folder (its best.pt) or checkpoint.
        device: As in train.py.

    Raises:
        UserError: If the checkpoint or the device cannot be used, or the model has no tokens.
    """
    return model_of(*_load(run, device))


def model_of(path: Path, state: dict[str, Any], network: ImageTokenizer) -> Model:
    """The model of a checkpoint that is open already.

    Args:
        path: The checkpoint, for errors.
        state: All that it holds.
        network: Its network, on the device.

    Raises:
        UserError: If the model has no tokens.
    """
    if not network.has_tokens:
        raise UserError(f"{path} was trained with --quantizer none, so it has no tokens")
    counts = []
    for level, saved in zip(network.levels, state["trackers"], strict=True):
        used = next((row for row in reversed(saved["history"]) if row.sum() > 0), None)
        counts.append(torch.ones(level.codebook_size).long() if used is None else used)
    device = next(network.parameters()).device
    return Model(network, device, counts, state, model_hash(network))


def model_hash(network: ImageTokenizer) -> str:
    """What two models share only if all weights and the shapes of their tokens are equal."""
    digest = hashlib.sha256(repr(network.grids(960, 960)).encode())
    state = network.state_dict()
    for name, module in network.named_modules():
        # Token files are bound to what hard codebooks' usage was called when they were written.
        if isinstance(module, VQCodebook | VQEMACodebook) and f"{name}.running_usage" in state:
            state[f"{name}.cluster_size"] = state.pop(f"{name}.running_usage")
    for name, tensor in sorted(state.items()):
        value = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


class Run(NamedTuple):
    """What an evaluation needs.

    Attributes:
        path: The checkpoint.
        state: All that it holds.
        config: The options of the training.
        model: In eval mode, on the device.
        dataset: What the images are.
        test_images: uint8 (N, C, H, W).
    """

    path: Path
    state: dict[str, Any]
    config: TrainConfig
    model: ImageTokenizer
    dataset: str
    test_images: Tensor


def open_run(
    run: Path, *, data_dir: str | None = None, limit_test: int | None = None, device: str = "auto"
) -> Run:
    """Load the model of a run and its test images.

    Args:
        run: Run folder (its best.pt) or checkpoint.
        data_dir: Folder of the data; where the training found it by default.
        limit_test: Use only the first N test images; all by default.
        device: As in train.py.

    Raises:
        UserError: If the checkpoint, the data or the device cannot be used.
    """
    path, state, model = _load(run, device)
    config = TrainConfig.from_dict(state["config"])
    splits = splits_of(config, data_dir, limit_train=1, limit_test=limit_test)
    return Run(path, state, config, model, splits.name, splits.test)


def splits_of(
    config: TrainConfig,
    data_dir: str | None,
    *,
    limit_train: int | None,
    limit_test: int | None,
    skip_bad: bool = False,
    announce: Callable[[str], object] = lambda _: None,
) -> ImageSplits:
    """The data of a run, where the training found it unless a folder is given.

    Args:
        config: The options of the run.
        data_dir: Another folder of the data.
        limit_train: The largest number of training images.
        limit_test: The largest number of validation images, and of test images.
        skip_bad: Whether files that cannot be read are left out, though the run did not.
        announce: Called with a line for what was left out; the training has said it already.
    """
    return load_splits(
        config.data.dataset,
        data_dir or config.data.data_dir,
        limit_train=limit_train,
        limit_test=limit_test,
        image_size=config.data.image_size,
        skip_bad=config.data.skip_bad or skip_bad,
        announce=announce,
    )


def log_of_checkpoint(checkpoint: Path) -> Path | None:
    """The metrics.jsonl that belongs to a checkpoint; None where none is known to.

    It is the one beside a best.pt or last.pt. A checkpoint of another name was saved or copied by
    hand, and what lies beside it may be of another run.

    Args:
        checkpoint: The file, as :func:`training.checkpoint.find_checkpoint` gives it.

    Example:
        >>> log_of_checkpoint(Path("nowhere/best.pt")) is None
        True
    """
    log = checkpoint.parent / "metrics.jsonl"
    return log if checkpoint.name in ("best.pt", "last.pt") and log.is_file() else None


def _load(run: Path, device: str) -> tuple[Path, dict[str, Any], ImageTokenizer]:
    """The checkpoint of a run, what it holds, and its network."""
    path = find_checkpoint(run)
    state = load_checkpoint(path)
    return path, state, load_model(state, str(path)).to(choose_device(device))
