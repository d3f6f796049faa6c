"""Check a wheel: what it holds, what it imports, and that the README's example runs on it.

    python .ci/check_wheel.py WHEEL PYTHON README

PYTHON is an interpreter with the wheel installed and nothing of the checkout in sight.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def main(wheel: Path, python: str, readme: Path) -> None:
    """Raise or exit non-zero when something is wrong."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    unexpected = {top for top in tops if top != "softvq" and not top.endswith(".dist-info")}
    if unexpected or "softvq/py.typed" not in names:
        sys.exit(f"the wheel must hold softvq alone, typed; it holds {sorted(tops)}")
    blocks = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    examples = [block for block in blocks if "from softvq import" in block]
    if not examples:
        sys.exit("the README has no import example")
    with tempfile.TemporaryDirectory() as empty:
        for example in examples:
            # torch itself warns where there is no NumPy, which softvq does not need.
            quiet = ["-W", "error", "-W", "ignore:Failed to initialize NumPy"]
            subprocess.run([python, *quiet, "-c", example], cwd=empty, check=True)
        where = subprocess.run(
            [python, "-c", "import softvq; print(softvq.__file__)"],
            cwd=empty,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    if "site-packages" not in where:
        sys.exit(f"softvq was imported from {where.strip()}, not from the wheel")
    print(f"{wheel.name}: {len(names)} files, {len(examples)} README examples ran")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
