"""``python -m eval cluster``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

CACHE = Path(tempfile.gettempdir()) / "softvq-embeddings"


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
) -> None:
    """Cluster documents, or orbits, by DDCL and by k-means; score the clusters by classes."""
    if name == "satellites":
        satellites(out, data_dir, codebook_size, seeds, limit)
        return
    import sys

    from eval.cluster import run
    from eval.cluster_report import table

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


def satellites(
    out: Path, data_dir: Path | None, codebook_size: int | None, seeds: int, limit: int | None
) -> None:
    """The same for orbits."""
    from eval.satellites import run
    from training.errors import UserError

    if limit is not None:
        raise UserError("--limit is of documents; satellites are few enough to take all")
    run(
        data_dir,
        out,
        codebook_size=codebook_size or 4,
        seeds=seeds,
        say=lambda line: click.echo(line, err=True),
    )
    click.echo((out / "satellites.md").read_text(encoding="utf-8"), nl=False)
    click.echo(f"written to {out}: satellites.json, .md and .png")
