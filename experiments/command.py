"""What the experiments' commands share: settings of click, and where the data lies."""

from __future__ import annotations

import os
from pathlib import Path

from training.config.cli import UserPath
from training.errors import UserError

SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}
FOLDER = UserPath(path_type=Path, file_okay=False)


def data_folder(name: str, given: Path | None, option: str) -> Path:
    """Find a folder of shared data: the given one, else one in ``$SOFTVQ_SHARED``.

    Where that variable is not set, ``../shared/data`` beside the repository takes its place.

    Args:
        name: The folder's name within the shared data.
        given: The folder that the user named, or None.
        option: The option that names a folder, for the message.

    Raises:
        UserError: If there is no such folder.
    """
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = given or Path(os.environ.get("SOFTVQ_SHARED") or beside) / name
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; name one with {option}")
    return folder
