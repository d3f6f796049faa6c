"""Results of the satellites: a table and a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from experiments.clustering import figure, markdown, pairing_table
from training.checkpoint import write_atomic

from .methods import TRIVIAL, Rows
from .orbits import COLUMNS

SCORES = {
    "ACC": "test_accuracy",
    "balanced ACC": "test_balanced_accuracy",
    "NMI": "test_nmi",
    "ARI": "test_ari",
    "purity": "test_purity",
    "silhouette": "silhouette",
}


def table(result: dict[str, Any]) -> str:
    """Write the methods' mean ± standard deviation over seeds as Markdown, and the pairing."""
    rows = []
    for entry in result["methods"]:
        own, chosen = entry["name"], entry["chosen"]
        count = "1" if own == TRIVIAL else str(result["codebook_size"])
        if chosen.startswith("K = "):
            count = chosen.removeprefix("K = ")
        cells = [figure(entry["summary"][key]) for key in SCORES.values()]
        if own == TRIVIAL:
            cells[-1] = "-"  # One cluster has no silhouette.
        rows.append([own, count, chosen or "-", *cells])
    mappings = {entry["name"]: entry["runs"][0]["test"]["mapping"] for entry in result["methods"]}
    return markdown(rows, ["method", "K", "chosen", *SCORES]) + "\n\n" + pairing_table(mappings)


def plot(path: Path, elements: Rows, panels: Mapping[str, NDArray[Any]]) -> None:
    """Draw perigee over apogee, points coloured by the sizes of their groups.

    Args:
        path: The PNG file.
        elements: (N, 5) The orbits.
        panels: For each panel its title, and the class or cluster of each orbit, (N,).
    """
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(15, 5), layout="constrained")
    perigee, apogee = (elements[:, list(COLUMNS).index(name)] for name in ("perigee", "apogee"))
    for axis, (title, groups) in zip(drawn.subplots(1, len(panels)), panels.items(), strict=True):
        for name, count in Counter(groups.tolist()).most_common():  # the smaller ones on top
            rows = groups == name
            axis.scatter(apogee[rows], perigee[rows], s=14, alpha=0.6, label=f"{name} ({count})")
        axis.set(xscale="log", yscale="log", title=title)
        axis.set(xlabel="apogee, km", ylabel="perigee, km")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    write_atomic(path, lambda file: drawn.savefig(file, format="png", dpi=90))
