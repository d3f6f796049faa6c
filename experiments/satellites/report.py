"""Results of the satellites: a table, a picture, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.documents.clustering import clustering_scores, contingency
from experiments.documents.report import pairing_table
from experiments.satellites.choice import Chosen, Split
from experiments.satellites.methods import DDCL, KMEANS, TRIVIAL, Rows
from experiments.satellites.orbits import ELEMENTS, REGIMES, Orbits
from training.checkpoint import write_atomic, write_text

COLUMNS = (
    ("ACC", "test_accuracy"),
    ("balanced ACC", "test_balanced_accuracy"),
    ("NMI", "test_nmi"),
    ("ARI", "test_ari"),
    ("purity", "test_purity"),
    ("silhouette", "silhouette"),
)


class Picture(NamedTuple):
    """Test rows of the first seed.

    Attributes:
        elements: (N, 5).
        classes: (N,), or None.
        clusters: Method to (N,).
        latents: (N, D) of DDCL's encoder.
    """

    elements: Rows
    classes: NDArray[np.str_] | None
    clusters: dict[str, NDArray[np.int64]]
    latents: Rows


def picture_of(
    orbits: Orbits,
    classes: NDArray[np.str_] | None,
    chosen: dict[str, Chosen],
    scaled: Rows,
    split: Split,
) -> Picture:
    """What is drawn of the first seed."""
    rows = scaled[split.test]
    fits = {name: chosen[name].fits[0] for name in (DDCL, KMEANS)}
    encode = fits[DDCL].latents
    assert encode is not None
    return Picture(
        elements=orbits.elements[split.test],
        classes=None if classes is None else classes[split.test],
        clusters={name: one.assigns[name](rows) for name, one in fits.items()},
        latents=encode(rows),
    )


def table(result: dict[str, Any]) -> str:
    """Markdown: a row for each method, mean ± standard deviation over seeds; the pairing."""
    heads = ["method", "K", "chosen", *(head for head, _ in COLUMNS)]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for entry in result["methods"]:
        count = result["codebook_size"]
        if entry["chosen"].startswith("K = "):
            count = int(entry["chosen"].removeprefix("K = "))
        trivial = entry["name"] == TRIVIAL
        cells = [entry["name"], "1" if trivial else str(count), entry["chosen"] or "-"]
        for _, key in COLUMNS:
            found = entry["summary"].get(key)
            undefined = found is None or (trivial and key == "silhouette")
            cells.append("-" if undefined else cell(found))
        lines.append("| " + " | ".join(cells) + " |")
    if reason := unscored(result):
        return "\n".join([*lines, "", reason])
    first = {entry["name"]: entry["runs"][0]["test"] for entry in result["methods"]}
    mappings = {name: test["mapping"] for name, test in first.items() if "mapping" in test}
    return "\n".join([*lines, *(["", *pairing_table(mappings)] if mappings else [])])


def unscored(result: dict[str, Any]) -> str | None:
    """Why nothing is scored although there are labels, or None."""
    test = result["methods"][0]["runs"][0]["test"]
    if len(test.get("classes", ())) != 1:
        return None
    count = result["rows"]["test"]
    return f"All {count} test rows are of one class, {test['classes'][0]}: nothing is scored by it."


def cell(found: dict[str, Any]) -> str:
    """Mean ± standard deviation.

    Example:
        >>> cell({"mean": 0.5, "sd": 0.0123}), cell({"mean": 0.5, "sd": None})
        ('.500 ± .012', '.500')
    """
    parts = [found["mean"]] if found["sd"] is None else [found["mean"], found["sd"]]
    return " ± ".join(f"{value:.3f}".replace("0.", ".", 1) for value in parts)


def write(result: dict[str, Any], out: Path, picture: Picture) -> None:
    """``satellites.json``, ``satellites.md`` and ``satellites.png``."""
    write_text(out / "satellites.json", json.dumps(result, indent=1) + "\n")
    write_text(out / "satellites.md", table(result) + "\n")
    plot(picture, out / "satellites.png")


def plot(picture: Picture, path: Path) -> None:
    """Perigee over apogee by class and by cluster; confusion matrices; latents by class."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 9.5), layout="constrained")
    axes = figure.subplots(2, 3)
    names = list(picture.clusters)
    perigee, apogee = (picture.elements[:, ELEMENTS.index(n)] for n in ("perigee", "apogee"))
    by_class = groups_of(picture.classes, len(picture.elements))
    panels = [("class", by_class)]
    for name in names:
        panels.append((f"{name}, clusters", clusters_by_class(picture, name)))
    for axis, (title, groups) in zip(axes[0], panels, strict=True):
        scatter(axis, apogee, perigee, groups)
        axis.set(xscale="log", yscale="log", title=title)
        axis.set(xlabel="apogee, km", ylabel="perigee, km")
    for axis, name in zip(axes[1], names, strict=False):
        confusion(axis, picture, name)
    # A latent of one dimension is drawn over itself.
    first, second = picture.latents[:, 0], picture.latents[:, min(1, picture.latents.shape[1] - 1)]
    scatter(axes[1, 2], first, second, by_class)
    axes[1, 2].set(title=f"latents of {DDCL}, by class", xlabel="first", ylabel="second")
    write_atomic(path, lambda file: figure.savefig(file, format="png", dpi=90))


class Group(NamedTuple):
    """Points of one colour: their name in the legend, which they are, the colour."""

    name: str
    rows: NDArray[np.bool_]
    colour: str


def order_of(classes: NDArray[np.str_] | None) -> list[str]:
    """Classes that there are, regimes first, in their order.

    Example:
        >>> order_of(np.array(["GEO", "Other", "LEO"]))
        ['LEO', 'GEO', 'Other']
    """
    there = set() if classes is None else set(classes.tolist())
    return [name for name in REGIMES if name in there] + sorted(there - set(REGIMES))


def groups_of(classes: NDArray[np.str_] | None, count: int = 0) -> list[Group]:
    """Points by class; of one colour where there are no classes."""
    if classes is None:
        return [Group("no classes", np.ones(count, dtype=bool), "grey")]
    return [
        Group(name, classes == name, f"C{number}") for number, name in enumerate(order_of(classes))
    ]


def clusters_by_class(picture: Picture, name: str) -> list[Group]:
    """Points by cluster, in the colour of the class that it is paired with."""
    clusters, classes = picture.clusters[name], picture.classes
    order = order_of(classes)
    mapping = {} if classes is None else clustering_scores(classes, clusters).mapping
    groups = []
    for number, cluster in enumerate(np.unique(clusters).tolist()):
        label = mapping.get(cluster)
        colour = f"C{len(order) + number}" if label is None else f"C{order.index(label)}"
        title = f"{cluster}" if label is None else f"{cluster}: {label}"
        groups.append(Group(title, clusters == cluster, colour))
    return groups


def scatter(axis: Any, x: Rows, y: Rows, groups: list[Group]) -> None:
    """Points, the smaller groups on top."""
    for group in sorted(groups, key=lambda one: -int(one.rows.sum())):
        name = f"{group.name} ({int(group.rows.sum())})"
        axis.scatter(x[group.rows], y[group.rows], s=14, color=group.colour, alpha=0.6, label=name)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def confusion(axis: Any, picture: Picture, name: str) -> None:
    """Counts of rows by class and cluster, shaded by share of the class."""
    classes, clusters = picture.classes, picture.clusters[name]
    if classes is None:
        classes = np.full(len(clusters), "all rows")
    found = contingency(classes, clusters, order_of(classes))
    shares = found.counts / found.counts.sum(axis=1, keepdims=True)
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, counts in enumerate(found.counts):
        for column, count in enumerate(counts):
            shade = "white" if shares[row, column] > 0.5 else "black"
            axis.text(column, row, str(count), ha="center", va="center", color=shade)
    axis.set_xticks(range(len(found.clusters)), found.clusters)
    axis.set_yticks(range(len(found.classes)), found.classes)
    axis.set(title=f"{name}, rows of class by cluster", xlabel="cluster", ylabel="class")
