"""Results of a clustering of documents, as files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SCORES = ("accuracy", "nmi", "ari", "purity")


def to_json(result: Mapping[str, Any]) -> str:
    """JSON with a line for each entry.

    Example:
        >>> print(to_json({"a": 1, "b": [2, 3]}), end="")
        {
        "a": 1,
        "b": [2, 3]
        }
    """
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in result.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def table(result: Mapping[str, Any]) -> str:
    """The scores of the test split, as Markdown; mean and standard deviation over seeds."""
    lines = [
        "| method | ACC | NMI | ARI | purity | seconds |",
        "|---|---|---|---|---|---|",
        *(
            f"| {row['method']} | "
            + " | ".join(figure(row["test"][key]) for key in SCORES)
            + f" | {row['seconds']:.0f} |"
            for row in result["methods"]
        ),
    ]
    if result["heads"]:
        lines += ["", "| linear head on | values | dev | test |", "|---|---|---|---|"]
        lines += [
            f"| {row['vectors']} | {row['features']} | {figure(row['dev'])} | "
            f"{figure(row['test'])} |"
            for row in result["heads"]
        ]
    if skipped := result.get("head_sizes_skipped"):
        sizes = ", ".join(str(size) for size in skipped)
        tokens = result["tokens"]["train"]
        lines += ["", f"No heads on {sizes} prototypes: there are only {tokens} training tokens."]
    return "\n".join(lines) + "\n"


def figure(values: Mapping[str, Any]) -> str:
    """Mean and standard deviation, as a share of one."""
    spread = "" if values["sd"] is None else f" ± {values['sd']:.3f}"
    return f"{values['mean']:.3f}{spread}"
