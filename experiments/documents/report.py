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
    """The scores of the test split, as Markdown; mean and standard deviation over seeds.

    Below stands the pairing of clusters and classes of the first seed.
    """
    seeds = result["seeds"]
    lines = [
        f"K = {result['codebook_size']} clusters, {len(result['classes'])} classes; test split, "
        f"{seeds} seed{'s' if seeds != 1 else ''}.",
        "",
        "| method | ACC | NMI | ARI | purity | seconds |",
        "|---|---|---|---|---|---|",
        *(
            f"| {row['method']} | "
            + " | ".join(figure(row["test"][key]) for key in SCORES)
            + f" | {row['seconds']:.0f} |"
            for row in result["methods"]
        ),
        "",
        *pairing_table({row["method"]: row["test"]["mapping"][0] for row in result["methods"]}),
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


def pairing_table(mappings: Mapping[str, Mapping[str, str]]) -> list[str]:
    r"""Lines of Markdown that say which class each method's clusters are paired with.

    Args:
        mappings: Method to cluster to class; a cluster without a class is left out.

    Example:
        >>> print(*pairing_table({"k-means": {"0": "sea", "2": "stars"}}), sep="\n")
        | method | clusters and their classes, test rows of the first seed |
        |---|---|
        | k-means | 0 sea, 2 stars |
    """
    return [
        "| method | clusters and their classes, test rows of the first seed |",
        "|---|---|",
        *(
            f"| {name} | {', '.join(f'{k} {label}' for k, label in found.items())} |"
            for name, found in mappings.items()
        ),
    ]


def figure(values: Mapping[str, Any]) -> str:
    """Mean and standard deviation, as a share of one."""
    spread = "" if values["sd"] is None else f" ± {values['sd']:.3f}"
    return f"{values['mean']:.3f}{spread}"
