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
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from .codebooks.interface import warn_of_forgotten_calls
from .codebooks.temperature import CodesPerToken, ConstantTemperature, CriticalFraction, Schedule

if TYPE_CHECKING:
    from typing_extensions import Self

WEIGHTS = "codebook.safetensors"
CONFIG = "config.json"
CONTROLLERS: dict[str, Any] = {
    kind.__name__: kind for kind in (CodesPerToken, ConstantTemperature, CriticalFraction)
}
# Arguments that are lists of codebooks.
PARTS = {"levels", "groups"}
# The classes of codebooks and stacks by name, as they are defined.
KINDS: dict[str, type[Pretrained]] = {}


class Pretrained(nn.Module):
    """Saving and loading, for codebooks and stacks of them, and for subclasses of your own.

    A class can be saved where its constructor keeps each argument in an attribute of the same
    name, and loaded where the module that defines it has been imported.
    """

    initialized: bool = False
    # What a saved config means that lacks these arguments, because it is older than they are.
    earlier_arguments: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        # A class of the same name elsewhere must not be what softvq's own files are read as.
        known = KINDS.get(cls.__name__)
        if known is None or not known.__module__.startswith("softvq."):
            KINDS[cls.__name__] = cls

    def extra_repr(self) -> str:
        """Sizes, what was set otherwise than by default, and how far the state is; one line."""
        shown = []
        for name, own in list(inspect.signature(type(self).__init__).parameters.items())[1:]:
            value = getattr(self, name, own.default)
            plain = isinstance(value, bool | int | float | str | tuple)
            if plain and value != own.default:
                shown.append(f"{name}={value!r}")
        return ", ".join([*shown, *(f"{name}={value}" for name, value in self._state_shown())])

    def _state_shown(self) -> list[tuple[str, Any]]:
        """Names and values of the state that ``print`` shows."""
        return []

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # Beside the tensors, where torch keeps the versions of modules.
        kinds = getattr(destination, "_metadata", {}).get(prefix[:-1], {})
        kinds["class"] = type(self).__name__

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: dict[str, Any], *args: Any
    ) -> None:
        kind = local_metadata.get("class")
        if kind is None or kind in [base.__name__ for base in type(self).__mro__]:
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)
            self.initialized = True
        else:
            args[-1].append(  # torch's list of error messages
                f"the state at {prefix + 'codebook'!r} is that of a {kind}, not of a "
                f"{type(self).__name__}; load it into a {kind}"
            )

    def save_pretrained(self, path: str | os.PathLike[str]) -> None:
        """Write weights and config with safetensors.

        Args:
            path: A file that ends in ``.safetensors``, or a folder, made if it is missing.

        Raises:
            TypeError: If the codebook could not be loaded again: as :func:`config_of`.
        """
        safetensors = _safetensors()
        warn_of_forgotten_calls(self.codebooks)  # type: ignore[arg-type]
        path = Path(path)
        config = json.dumps(config_of(self), indent=2)
        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        weights = safetensors.torch.save(tensors, {"softvq": config, "format": "pt"})
        files = {path: weights}
        if path.suffix != ".safetensors":
            files = {path / WEIGHTS: weights, path / CONFIG: (config + "\n").encode()}
        next(iter(files)).parent.mkdir(parents=True, exist_ok=True)
        _replace(files)

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str]) -> Self:
        """Read what :meth:`save_pretrained` wrote, in eval mode, on the CPU, not frozen.

        Args:
            path: The file or the folder.

        Raises:
            FileNotFoundError: If there is none.
            TypeError: If it holds a codebook of another class; ``Codebook`` takes any single one.
            ValueError: If it is damaged, or not softvq's.
        """
        path = Path(path)
        weights = path / WEIGHTS if path.is_dir() else path
        tensors, metadata = _read(weights)
        if path.is_dir() and (path / CONFIG).is_file():
            source, text = path / CONFIG, (path / CONFIG).read_bytes()
        elif "softvq" in metadata:
            source, text = weights, metadata["softvq"].encode()
        else:
            raise ValueError(f"{weights} was not written by softvq: its header has no config")
        try:
            loaded = codebook_from(json.loads(text))
        except ValueError as error:
            raise ValueError(f"the config in {source} is damaged or unknown: {error}") from error
        for name, level in loaded.named_modules():
            prototypes = tensors.get(f"{name}.codebook" if name else "codebook")
            if prototypes is not None:
                level.to(prototypes.dtype)
        try:
            loaded.load_state_dict(tensors)
        except RuntimeError as error:
            raise ValueError(f"the weights in {weights} do not fit its config: {error}") from error
        if not isinstance(loaded, cls):
            raise TypeError(f"{path} holds a {type(loaded).__name__}, not a {cls.__name__}")
        return loaded.eval()


def config_of(codebook: Pretrained) -> dict[str, Any]:
    """What builds an equal codebook, as plain values: its class and constructor's arguments.

    Raises:
        TypeError: If an argument of the codebook is not kept, or is no plain value, or its
            controller is of a class that only the caller knows.

    Example:
        >>> from softvq import VQCodebook
        >>> config = config_of(VQCodebook(4, 8))
        >>> config["class"], config["dim"], config["codebook_size"]
        ('VQCodebook', 4, 8)
    """
    kind = type(codebook)
    if KINDS.get(kind.__name__) is not kind:
        raise TypeError(f"another class has the name of {kind}; save its state_dict instead")
    config: dict[str, Any] = {"class": kind.__name__}
    for name in list(inspect.signature(kind.__init__).parameters)[1:]:
        value: Any = getattr(codebook, "controller" if name == "temperature" else name, inspect)
        if name in PARTS:
            value = [config_of(part) for part in value]
        elif name == "temperature":
            value = _controller_config(value)
        elif not isinstance(value, bool | int | float | str | tuple | list | None):
            raise TypeError(
                f"a {kind.__qualname__} keeps no plain value in .{name}, so it could not be loaded "
                "again; save its state_dict instead"
            )
        config[name] = value
    return config


def _controller_config(controller: Any) -> dict[str, Any]:
    name = type(controller).__name__
    if type(controller) is not CONTROLLERS.get(name):
        raise TypeError(
            f"only softvq's own controllers, {sorted(CONTROLLERS)}, can be loaded again, not "
            f"a {name}; save the codebook's state_dict instead"
        )
    return {"class": name, **asdict(controller)}


def codebook_from(config: dict[str, Any]) -> Any:
    """A fresh codebook of a config of :func:`config_of`.

    Raises:
        ValueError: If the class or an argument is unknown.

    Example:
        >>> codebook_from({"class": "VQCodebook", "dim": 4, "codebook_size": 8}).dim
        4
    """
    if not isinstance(config, dict):
        raise ValueError(f"a config is an object with names, got {config!r}")
    arguments = dict(config)
    name = arguments.pop("class", None)
    if name not in KINDS:
        known = sorted(kind for kind in KINDS if not kind.startswith("_"))
        raise ValueError(
            f"the config names the class {name!r}; known: {known}. Import the module that "
            "defines a class of your own before loading"
        )
    try:
        for part in PARTS & set(arguments):
            arguments[part] = [codebook_from(config) for config in arguments[part]]
        if "temperature" in arguments:
            arguments["temperature"] = _controller_from(**arguments["temperature"])
        return KINDS[name](**KINDS[name].earlier_arguments | arguments)
    except TypeError as error:
        raise ValueError(
            f"the config of a {name} does not fit this version ({error}); "
            "load it with the version that wrote it"
        ) from error


def _controller_from(schedule: dict[str, Any], **arguments: Any) -> Any:
    name = arguments.pop("class", None)
    if name not in CONTROLLERS:
        raise ValueError(f"the config names the controller {name!r}; known: {sorted(CONTROLLERS)}")
    return CONTROLLERS[name](schedule=Schedule(**schedule), **arguments)


def _read(weights: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a safetensors file."""
    safetensors = _safetensors()
    if not weights.is_file():
        raise FileNotFoundError(f"no {weights}: give a folder or a file of save_pretrained")
    try:
        with safetensors.safe_open(weights, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    except safetensors.SafetensorError as error:
        raise ValueError(f"{weights} is damaged or no safetensors file ({error})") from error


def _replace(files: dict[Path, bytes]) -> None:
    """Write all under temporary names, then rename, so that no reader sees a part of one.

    A disk that fills up leaves every old file, not new weights beside an old config.
    """
    temporaries = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in files}
    try:
        for path, data in files.items():
            with temporaries[path].open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path, temporary in temporaries.items():
            os.replace(temporary, path)
    finally:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise ImportError("codebooks on disk need safetensors: pip install safetensors") from error
    return safetensors
