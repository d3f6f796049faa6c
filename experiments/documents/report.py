"""Results of a clustering of documents as JSON and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from experiments.clustering import figure, markdown, pairing_table

SCORES = ("accuracy", "nmi", "ari", "purity")


def to_json(result: Mapping[str, Any]) -> str:
    """Write JSON with a line for each entry.

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
    """Write the scores of the test split as Markdown, mean and standard deviation over seeds.

    Below stands the pairing of clusters and classes of the first seed, then the linear heads.
    """
    seeds, methods = result["seeds"], result["methods"]
    scores = [
        [row["method"], *(figure(row["test"][key]) for key in SCORES), f"{row['seconds']:.0f}"]
        for row in methods
    ]
    parts = [
        f"K = {result['codebook_size']} clusters, {len(result['classes'])} classes; test split, "
        f"{seeds} seed{'s' if seeds != 1 else ''}.",
        markdown(scores, ["method", "ACC", "NMI", "ARI", "purity", "seconds"]),
        pairing_table({row["method"]: row["test"]["mapping"][0] for row in methods}),
    ]
    if result["heads"]:
        rows = [
            [row["vectors"], str(row["features"]), figure(row["dev"]), figure(row["test"])]
            for row in result["heads"]
        ]
        parts.append(markdown(rows, ["linear head on", "values", "dev", "test"]))
    return "\n\n".join(parts) + "\n"
