"""``python -m eval cluster``."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import click

CACHE = Path(tempfile.gettempdir()) / "softvq-embeddings"
OF_DOCUMENTS = ("encoder", "max_length", "cache", "limit")  # options


@click.command("cluster")
@click.option(
    "--data",
    "name",
    required=True,
    type=click.Choice(["sst2", "20news", "imdb", "satellites"]),
    help="Three corpora with classes, or orbits.",
)
@click.option(
    "-o", "--out", required=True, type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the results.",
)  # fmt: skip
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Folder of the data's files (of satellites, or the file); by default in $SOFTVQ_SHARED.",
)
@click.option(
    "--encoder",
    type=click.Path(path_type=Path),
    help="Hugging Face folder of the frozen encoder; by default MiniLM in $SOFTVQ_SHARED.",
)
@click.option(
    "--k", "codebook_size", type=click.IntRange(2), help="Clusters; by default one for each class."
)
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--limit", type=click.IntRange(1), help="Use only N documents of each split.")
@click.option(
    "--max-length", type=click.IntRange(1), default=128, show_default=True,
    help="Tokens kept of a document.",
)  # fmt: skip
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    default=CACHE,
    show_default=True,
    help="Folder of the token embeddings.",
)
@click.option(
    "--labels",
    type=click.Choice(["auto", "rule", "none"]),
    default="auto",
    show_default=True,
    help="Classes of satellites: the file's or else the rule's, the rule's, or none.",
)
def command(
    name: str,
    out: Path,
    data_dir: Path | None,
    encoder: Path | None,
    codebook_size: int | None,
    seeds: int,
    limit: int | None,
    max_length: int,
    cache: Path,
    labels: Literal["auto", "rule", "none"],
) -> None:
    """Cluster documents, or orbits, by DDCL and by k-means; score the clusters by classes."""
    if name == "satellites":
        refuse(OF_DOCUMENTS, "is of documents; --data satellites takes none")
        satellites(out, data_dir, codebook_size, seeds, labels)
        return
    refuse(("labels",), "is of satellites; a corpus has its own classes")
    import sys

    from eval.packages import require

    require("transformers", "safetensors", "sklearn", "scipy", "jinja2", purpose="clustering text")
    from experiments.documents.report import table
    from experiments.documents.run import run

    result = run(
        name,
        out,
        data_dir=data_dir,
        encoder=encoder,
        cache=cache,
        codebook_size=codebook_size,
        seeds=seeds,
        limit=limit,
        max_length=max_length,
        progress=sys.stderr.isatty(),
        say=lambda line: click.echo(line, err=True),
    )
    click.echo(table(result), nl=False)
    click.echo(f"written to {out}: cluster-{name}.json, .md and .html")


def refuse(names: Sequence[str], reason: str) -> None:
    """Refuse options that were given, whatever their value, where they would do nothing.

    Raises:
        UserError: If any was given.
    """
    from click.core import ParameterSource

    from training.errors import UserError

    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise UserError(f"--{name.replace('_', '-')} {reason}")


def satellites(
    out: Path,
    data_dir: Path | None,
    codebook_size: int | None,
    seeds: int,
    labels: Literal["auto", "rule", "none"],
) -> None:
    """The same for orbits."""
    from eval.packages import require

    require("sklearn", "scipy", "matplotlib", purpose="clustering satellites")
    from experiments.satellites.study import run

    run(
        data_dir,
        out,
        labels=labels,
        codebook_size=codebook_size or 4,
        seeds=seeds,
        say=lambda line: click.echo(line, err=True),
    )
    click.echo((out / "satellites.md").read_text(encoding="utf-8"), nl=False)
    click.echo(f"written to {out}: satellites.json, .md and .png")
