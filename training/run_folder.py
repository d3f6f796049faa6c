"""The folder of a run: one training at a time, nobody else's files, no remains of dead writes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .config import TrainConfig
from .errors import UserError

FILES = ("config.json", "status.json", "metrics.jsonl", "last.pt", "best.pt")


def check_run_folder(folder: Path) -> None:
    """Refuse a folder that holds a run or files of others, or that cannot be made.

    Raises:
        UserError: If a new run must not or cannot go there.
    """
    if (folder / "last.pt").exists():
        raise UserError(
            f"{folder} already holds a run; add --resume to continue it, or change --out"
        )
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise UserError(
            f"--out {folder} cannot be made: {nearest} is not a folder that can be written to"
        )
    # A run that died before its first checkpoint has left its config, and may be started anew.
    found = [name for name in FILES if (folder / name).exists()]
    if found and not _is_ours(folder / "config.json"):
        raise UserError(
            f"--out {folder} holds a {found[0]} that train.py did not write: move it away, or "
            "choose another --out"
        )


def _is_ours(config: Path) -> bool:
    try:
        saved = json.loads(config.read_text(encoding="utf-8"))
        return "quantizer" in saved and set(saved) <= {*TrainConfig.kinds(), "recipe"}
    except (OSError, ValueError, TypeError, RecursionError):
        return False


@contextmanager
def held_run_folder(folder: Path) -> Iterator[None]:
    """Keep other trainings out of a run folder, and sweep what killed writes have left in it.

    A folder that was made for a run that never started goes again. The lock goes with the process,
    however it ends. Where the system has no such locks, as on Windows, there is none.

    Raises:
        UserError: If another process is training there.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"another process is training in {folder}: wait for it, or change --out"
            ) from error
        except OSError:
            pass  # a file system without locks
        for name in FILES:
            for remains in folder.glob(f".{name}.*"):
                remains.unlink(missing_ok=True)
        yield
    finally:
        os.close(handle)
        with suppress(OSError):  # they hold something
            for path in made:
                path.rmdir()
