"""Pretrained weights of the networks that judge images: from a file, or from torchvision."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .errors import UserError

# PyTorch loads nothing but tensors and plain values where this is set, whatever it was told.
WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


class WeightsError(UserError):
    """Weights that are missing, damaged, or of another network; a report goes on without them."""


def read_weights(file: Path, option: str, what: str) -> dict[str, Tensor]:
    """The state dict in a file, also where it lies under the key ``state_dict``.

    Args:
        file: Written by ``torch.save``; loaded as plain tensors.
        option: Of the command line that named it, for errors.
        what: What it should hold, for errors.

    Raises:
        WeightsError: If there is no such file, or no weights in it.
    """
    if not file.is_file():
        raise WeightsError(f"{option} {file}: there is no such file; it should hold {what}")
    try:
        state: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes raise errors of many kinds
        reason = str(error).split("\n", 1)[0]
        raise WeightsError(
            f"{option} {file} cannot be read ({type(error).__name__}: {reason:.80}); it should "
            f"hold {what}, as torch.save writes them"
        ) from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise WeightsError(f"{option} {file} holds no state dict; it should hold {what}")
    return {key.removeprefix("module."): value for key, value in state.items()}


def fetch_weights(fetch: Callable[[], Any], option: str, what: str) -> Any:
    """Weights from the network, or an error that says which file to get instead.

    Args:
        fetch: Downloads and returns them, or raises an :class:`OSError`.
        option: Of the command line that takes a file instead.
        what: What is fetched, for errors.

    Raises:
        WeightsError: If it fails.
    """
    # What lies in a cache may be anybody's, and the libraries load it as a pickle that runs code.
    forced = os.environ.get(WEIGHTS_ONLY)
    os.environ[WEIGHTS_ONLY] = "1"
    try:
        return fetch()
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"the cached file of {what} holds more than weights: it is damaged, or not what it "
            f"should be; delete it, or give the file with {option}"
        ) from error
    except (OSError, RuntimeError) as error:  # torch.hub: RuntimeError for a wrong hash
        reason = str(error).split("\n", 1)[0]
        raise WeightsError(
            f"{what} could not be downloaded ({type(error).__name__}: {reason:.80}); get them on "
            f"another machine and give the file with {option}"
        ) from error
    finally:
        os.environ.pop(WEIGHTS_ONLY)
        if forced is not None:
            os.environ[WEIGHTS_ONLY] = forced


def fill(network: nn.Module, weights: dict[str, Tensor], option: str, file: object) -> None:
    """Load weights into a network, all of them.

    Raises:
        WeightsError: If they are not the network's.
    """
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise WeightsError(
            f"{option} {file} is of another network ({lines[-1]:.160}); it should be of "
            f"{type(network).__name__}"
        ) from error
