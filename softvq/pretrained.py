"""Codebooks on disk: safetensors weights with the config beside them.

A folder holds ``config.json`` and ``codebook.safetensors``; a single file carries the config in its
header. Needs the safetensors package.
"""

from __future__ import annotations

import inspect
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import temperature as controllers
from .temperature import Schedule

if TYPE_CHECKING:
    from .codebook import Codebook

WEIGHTS = "codebook.safetensors"
CONFIG = "config.json"


def config_of(codebook: Codebook) -> dict[str, Any]:
    """What builds an equal codebook, as plain values: its class and constructor's arguments.

    Example:
        >>> from softvq import VQCodebook
        >>> config = config_of(VQCodebook(4, 8))
        >>> config["class"], config["dim"], config["codebook_size"]
        ('VQCodebook', 4, 8)
    """
    config: dict[str, Any] = {"class": type(codebook).__name__}
    for name in list(inspect.signature(type(codebook).__init__).parameters)[1:]:
        config[name] = getattr(codebook, "controller" if name == "temperature" else name)
    if "temperature" in config:
        controller = config["temperature"]
        config["temperature"] = {"class": type(controller).__name__, **asdict(controller)}
    return config


def codebook_from(config: dict[str, Any]) -> Codebook:
    """A fresh codebook of a config of :func:`config_of`.

    Raises:
        ValueError: If the class or an argument is unknown.

    Example:
        >>> codebook_from({"class": "VQCodebook", "dim": 4, "codebook_size": 8}).dim
        4
    """
    from . import DDCLCodebook, VQCodebook, VQEMACodebook

    known = {kind.__name__: kind for kind in (DDCLCodebook, VQCodebook, VQEMACodebook)}
    arguments = dict(config)
    name = arguments.pop("class", None)
    if name not in known:
        raise ValueError(f"the config names the class {name!r}; known: {sorted(known)}")
    if "temperature" in arguments:
        saved = dict(arguments["temperature"])
        kind = getattr(controllers, saved.pop("class"))
        arguments["temperature"] = kind(schedule=Schedule(**saved.pop("schedule")), **saved)
    try:
        codebook: Codebook = known[name](**arguments)
    except TypeError as error:
        raise ValueError(
            f"the config of a {name} does not fit this version ({error}); "
            "load it with the version that wrote it"
        ) from error
    return codebook


def save(codebook: Codebook, path: str | os.PathLike[str]) -> None:
    """Write a codebook to a file that ends in ``.safetensors``, or into a folder.

    Args:
        codebook: Any of softvq's codebooks.
        path: The file, or the folder, made if it is missing.
    """
    safetensors = _safetensors()
    path = Path(path)
    config = json.dumps(config_of(codebook), indent=2)
    tensors = {name: tensor.contiguous() for name, tensor in codebook.state_dict().items()}
    metadata = {"softvq": config, "format": "pt"}
    if path.suffix == ".safetensors":
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, safetensors.save(tensors, metadata))
        return
    path.mkdir(parents=True, exist_ok=True)
    _replace(path / WEIGHTS, safetensors.save(tensors, metadata))
    _replace(path / CONFIG, (config + "\n").encode())


def load(path: str | os.PathLike[str]) -> Codebook:
    """Read what :func:`save` wrote, in eval mode, on the CPU.

    Args:
        path: The file or the folder.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If a file is damaged, or not one of softvq's.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    weights = path / WEIGHTS if path.is_dir() else path
    if not weights.is_file():
        raise FileNotFoundError(f"no {weights}: give a folder or a file of save_pretrained")
    try:
        with safe_open(weights, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{weights} is damaged or no safetensors file ({error})") from error
    if path.is_dir() and (path / CONFIG).is_file():
        text = (path / CONFIG).read_text()
    elif "softvq" in metadata:
        text = metadata["softvq"]
    else:
        raise ValueError(f"{weights} was not written by softvq: its header has no config")
    codebook = codebook_from(json.loads(text))
    if "codebook" in tensors:
        codebook = codebook.to(tensors["codebook"].dtype)
    try:
        codebook.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"the weights in {weights} do not fit its config: {error}") from error
    return codebook.eval()


def _replace(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, then rename it, so that no reader sees a part of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("saving codebooks needs safetensors: pip install safetensors") from error
    return safetensors.torch
