"""What a checkpoint has to look like, checked before anything is built of it.

A file may have been edited, or be a stranger's. Its values are compared with the kinds that
``training.state.save_run`` writes, and the sizes that its options name with those of its tensors.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from models import build_model

_KINDS: dict[str, type | tuple[type, ...]] = {
    "config": dict,
    "model_config": dict,
    "model": dict,
    "optimizer": dict,
    "trackers": list,
    "step": int,
    "sums": dict,
    "seconds": (int, float),
    "best": (int, float),
    "images": list,
    "images_digest": str,
}


def check_kinds(state: dict[str, Any]) -> None:
    """Compare the values of a checkpoint with what is written to one.

    Args:
        state: All that the file holds.

    Raises:
        ValueError: If one is of another kind, or no number; the message names its key.
    """
    for key, kind in _KINDS.items():
        if key in state and (not isinstance(state[key], kind) or isinstance(state[key], bool)):
            raise ValueError(f"{key} is of the type {type(state[key]).__name__}")
    for key in ("config", "model_config", "sums", "model"):
        for name, value in state[key].items():
            if not isinstance(name, str):
                raise ValueError(f"{key} has a key {name!r:.20}, expected a text")
            if isinstance(value, Tensor) != (key == "model"):
                raise ValueError(f"{key}/{name} is of the type {type(value).__name__}")
    numbers = [("step", state["step"]), ("seconds", state["seconds"])]
    for name, value in [*numbers, *state["sums"].items()]:
        if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
            raise ValueError(f"{name} is {value!r:.20}, expected a number of at least 0")
    if any(type(size) is not int for size in state.get("images", ())):
        raise ValueError("images does not hold three whole numbers")
    if math.isnan(state["best"]):
        raise ValueError("best is NaN")
    _check_trackers(state["trackers"])


def _check_trackers(trackers: list[Any]) -> None:
    for number, tracker in enumerate(trackers):
        own = tracker if isinstance(tracker, dict) else {}
        both = [own.get(name) for name in ("counts", "history")]
        counts, history = (
            value if isinstance(value, Tensor) else torch.tensor(0.0) for value in both
        )
        whole = counts.dtype == history.dtype == torch.int64
        if not whole or counts.dim() != 1 or history.shape[1:] != counts.shape:
            raise ValueError(f"trackers/{number} does not hold the counts of codes and epochs")


def check_sizes(model_config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Compare the sizes of a model with those of its weights, without memory for the model.

    Args:
        model_config: The options of the model.
        tensors: Its weights by name.

    Raises:
        ValueError: If one has another shape, or would be larger than all that there is.
    """
    blocks = model_config.get("residual_blocks", 0)
    if isinstance(blocks, int) and blocks > len(tensors):
        raise ValueError(f"residual_blocks is {blocks}, but there are {len(tensors)} tensors")
    with torch.device("meta"):
        try:
            model = build_model(model_config)
        except RuntimeError:  # fsq reads its tensors as it is built
            model = build_model({**model_config, "quantizer": "none"})
    largest = max((tensor.numel() for tensor in tensors.values()), default=0)
    for name, value in model.state_dict().items():
        if name not in tensors:
            # Older versions had other names, which loading knows; none had other sizes.
            if value.numel() > largest:
                raise ValueError(f"its weights lack {name}")
        elif tensors[name].shape != value.shape:
            raise ValueError(
                f"size mismatch: {name} is {tuple(tensors[name].shape)}, and its options say "
                f"{tuple(value.shape)}"
            )
