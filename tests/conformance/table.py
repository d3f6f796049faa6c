"""Who passes what: runs every check on every codebook that is installed, and prints the page.

python tests/conformance/table.py > docs/conformance.md
"""

from __future__ import annotations

import re
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import forward_checks  # noqa: F401
import graph_checks  # noqa: F401
import training_checks  # noqa: F401
from adapters import OURS, Adapter, NotApplicableError, NotOfferedError, UnavailableError
from peers import PEERS
from registry import CHECKS

PACKAGES = ("torch", "vector-quantize-pytorch", "onnx", "onnxscript", "onnxruntime")

PAGE = """\
# Conformance

What users of a codebook rely on, checked alike on softvq's codebooks and on those of
vector-quantize-pytorch. Written by

    python tests/conformance/table.py > docs/conformance.md

with {versions}.
The test suite fails when a run with these versions gives another table.

**yes** passes, **no** fails, **absent**: the library has no such function, **n/a**: the check makes
no sense there. The checks are `tests/conformance/*_checks.py`. The codebooks are built as below,
plus the flags that their libraries ask for in other layouts:

{calls}

The page compares contracts, not reach: vector-quantize-pytorch has many quantisers and options that
softvq lacks (residual and grouped codebooks, heads, cosine distance, projections, LFQ and more).

{table}

## Reasons

{reasons}
"""


def outcome(row: str, adapter: Adapter) -> tuple[str, str]:
    """Mark and reason of a check; warnings are left to the library that gives them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            CHECKS[row](adapter)
        except UnavailableError:
            raise
        except NotApplicableError as error:
            return "n/a", str(error)
        except NotOfferedError as error:
            return "absent", str(error)
        except AssertionError as error:
            return "no", str(error)
        except Exception as error:
            return "no", f"{type(error).__name__}: {error}"
    return "yes", ""


def versions() -> str:
    """The packages that decide the outcome, without local suffixes."""
    return ", ".join(f"{package} {version(package).split('+')[0]}" for package in PACKAGES)


def brief(reason: str) -> str:
    """The start of a reason, without what would be markup."""
    plain = " ".join(re.sub(r"\x1b\[\d+m|[`|*_<>]", "", reason).split())
    return plain if len(plain) <= 100 else plain[:100].rsplit(" ", 1)[0] + " ..."


def page() -> str:
    """The page, from a run of everything."""
    adapters = (*OURS, *PEERS)
    lines = [
        "| | " + " | ".join(adapter.name for adapter in adapters) + " |",
        "|---|" + "---|" * len(adapters),
    ]
    reasons = []
    for row in CHECKS:
        outcomes = [outcome(row, adapter) for adapter in adapters]
        lines.append(f"| {row} | " + " | ".join(mark for mark, _ in outcomes) + " |")
        given = [
            f"{adapter.name} ({mark}): {brief(reason)}"
            for adapter, (mark, reason) in zip(adapters, outcomes, strict=True)
            if reason
        ]
        if given:
            reasons.append(f"- *{row}*. {'; '.join(given)}")
    return PAGE.format(
        versions=versions(),
        calls="\n".join(f"    {adapter.call}" for adapter in adapters),
        table="\n".join(lines),
        reasons="\n".join(reasons),
    )


def main() -> None:
    """Print the page."""
    if not PEERS:
        sys.exit("vector-quantize-pytorch is not installed: pip install -e '.[peers]'")
    torch.set_num_threads(1)
    try:
        text = page()
    except UnavailableError as error:
        sys.exit(f"{error}: pip install -e '.[peers]'")
    print(text, end="")


if __name__ == "__main__":
    main()
