"""Checkpoints and other files of a run: written whole or not at all, loaded as plain data."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch

from models import ImageTokenizer, build_model

from .config.migration import migrate_config, migrate_model_config
from .config.schema import check_kinds, check_sizes
from .errors import CheckpointError, UserError

FORMAT = 2
# What training.state.save_run writes.
KEYS = {
    "format", "config", "model_config", "model", "optimizer", "trackers",
    "step", "sums", "seconds", "best",
}  # fmt: skip


def write_atomic(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file under a temporary name, sync it, and rename it into place.

    Args:
        path: Where the file goes; an older one stays whole until the new one is.
        write: Called with the open temporary file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def check_target(path: Path | None, option: str) -> None:
    """Refuse a file that could not be written, before the work that would be lost.

    Args:
        path: The file; its folder is made. None is no file.
        option: That named it, for the error.

    Raises:
        UserError: If it cannot be written.
    """
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UserError(f"{option} {path} cannot be written: {error.strerror}") from error


def write_text(path: Path, text: str) -> None:
    """:func:`write_atomic` of a text, in UTF-8."""
    write_atomic(path, lambda file: file.write(text.encode()))


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Save tensors and plain values, and a digest, loadable with ``weights_only=True``."""
    state = {"format": FORMAT, **state}
    state["digest"] = digest_of(state)
    write_atomic(path, lambda file: _save(state, file))


def _save(state: dict[str, Any], file: IO[bytes]) -> None:
    try:
        torch.save(state, file)
    except RuntimeError as error:  # torch's own, for a disk that is full
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def digest_of(state: dict[str, Any]) -> str:
    """SHA-256 of all tensors of a checkpoint with their names, in hexadecimal."""
    digest = hashlib.sha256()

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key in value:
                add(f"{name}/{key}", value[key])
        elif isinstance(value, list | tuple):
            for number, part in enumerate(value):
                add(f"{name}/{number}", part)
        elif isinstance(value, torch.Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            # Bytes, whatever the dtype and the layout are.
            plain = value.detach().cpu().contiguous().reshape(-1)
            digest.update(plain.view(torch.uint8).numpy().tobytes())

    add("", state)
    return digest.hexdigest()


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Load a checkpoint onto the CPU.

    Args:
        path: A checkpoint, or a run folder, whose ``best.pt`` is then taken, or ``last.pt``.

    Raises:
        CheckpointError: If there is none, or it is damaged or not one of ours.
    """
    path = find_checkpoint(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes raise errors of many kinds
        reason = str(error).split("\n", 1)[0]
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint ({type(error).__name__}: {reason:.120}); "
            "it may be truncated: use the run's other checkpoint, or train again"
        ) from error
    given = set(state) if isinstance(state, dict) else set()
    if "format" in given and state["format"] != FORMAT:
        raise CheckpointError(
            f"{path} has checkpoint format {state['format']}, this version reads {FORMAT}: "
            "use the version of softvq that wrote it"
        )
    if "digest" in given and state["digest"] != digest_of(state):
        raise CheckpointError(
            f"{path} is damaged: its tensors are not those that were saved (their digest differs); "
            "use the run's other checkpoint, or a copy. To go on with it all the same, delete the "
            "key 'digest' from it"
        )
    if not given >= KEYS:
        raise CheckpointError(
            f"{path} is not a checkpoint of train.py: it lacks {', '.join(sorted(KEYS - given))}; "
            "give a run folder, or its best.pt or last.pt"
        )
    try:
        check_kinds(state)
        if "recipe" in state["config"]:
            state["model_config"] = migrate_model_config(state["model_config"])
            state["config"] = migrate_config(state["config"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise mismatch(str(path), error) from error
    return state


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that a path means.

    Raises:
        CheckpointError: If there is none.
    """
    if path.is_dir():
        for name in ("best.pt", "last.pt"):
            if (path / name).is_file():
                return path / name
        raise CheckpointError(
            f"{path} holds no best.pt or last.pt; give a run folder of train.py, or a checkpoint"
        )
    if not path.is_file():
        raise CheckpointError(
            f"{path} does not exist; give a run folder or a checkpoint (a run that stopped in its "
            "first steps has saved none: start it anew, without --resume)"
        )
    return path


def new_model(model_config: dict[str, Any]) -> ImageTokenizer:
    """A model of a run's options, with fresh weights.

    Args:
        model_config: As :meth:`training.config.TrainConfig.model_config` returns it.

    Raises:
        UserError: If the options do not make a model, or one that needs a package not installed.
    """
    try:
        return build_model(model_config)
    except (ValueError, ImportError) as error:
        raise UserError(str(error)) from error


def load_model(
    state: dict[str, Any], origin: str = "the checkpoint", *, finite: bool = True
) -> ImageTokenizer:
    """The model of a checkpoint, in eval mode.

    Args:
        state: What :func:`load_checkpoint` returned.
        origin: Name of the file, for errors.
        finite: Whether to refuse weights that are no numbers.

    Raises:
        CheckpointError: If its weights are not those of its config, or are no numbers.
    """
    try:
        check_sizes(state["model_config"], state["model"])
        model = build_model(state["model_config"])
        model.load_state_dict(state["model"])
    except Exception as error:  # options of an edited file fail in ways of their own
        raise mismatch(origin, error) from error
    broken = [name for name, value in model.state_dict().items() if not value.isfinite().all()]
    if finite and broken:
        raise CheckpointError(
            f"{origin} holds NaN or infinity in {broken[0]} and {len(broken) - 1} more: the run "
            "lost its numbers; use its other checkpoint, or train again at a lower --lr"
        )
    return model.eval()


def mismatch(origin: str, error: Exception) -> CheckpointError:
    """The error for a state that its model, or what goes with it, refuses."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = lines or [type(error).__name__]
    detail = next((line for line in lines if "size mismatch" in line), lines[-1])
    return CheckpointError(
        f"{origin} does not fit the model that it describes ({detail:.200}); it is of another "
        "configuration or was edited: use the checkpoint that train.py wrote"
    )
