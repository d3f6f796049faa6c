"""``python -m experiments.documents``."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import click

from experiments.command import FOLDER, SETTINGS
from training.config.cli import OneLineErrors

CACHE = Path(tempfile.gettempdir()) / "softvq-embeddings"
AT_LEAST_ONE = click.IntRange(1)


@click.command(cls=OneLineErrors, context_settings=SETTINGS)
@click.option(
    "--data", "name", required=True, type=click.Choice(["sst2", "20news", "imdb"]),
    help="A corpus with classes.",
)  # fmt: skip
@click.option("-o", "--out", required=True, type=FOLDER, help="Folder of the results.")
@click.option("--data-dir", type=FOLDER, help="Folder of the corpus [default: in $SOFTVQ_SHARED].")
@click.option(
    "--encoder", type=FOLDER,
    help="Hugging Face folder of the frozen encoder [default: MiniLM in $SOFTVQ_SHARED].",
)  # fmt: skip
@click.option(
    "--k", "codebook_size", type=click.IntRange(2), help="Clusters [default: one for each class]."
)
@click.option("--seeds", type=AT_LEAST_ONE, default=5, help="Repetitions of every fit.")
@click.option("--limit", type=AT_LEAST_ONE, help="Use only N documents of each split.")
@click.option("--max-length", type=AT_LEAST_ONE, default=128, help="Tokens kept of a document.")
@click.option("--cache", type=FOLDER, default=CACHE, help="Folder of the token embeddings.")
def main(out: Path, **options: Any) -> None:
    """Cluster documents by DDCL and by k-means, and score the clusters by classes."""
    from eval.packages import require

    packages = ("transformers", "safetensors", "sklearn", "scipy", "jinja2", "pandas", "tabulate")
    require(*packages, purpose="clustering text")
    from .run import run, table
    from .study import Options

    click.echo(table(run(Options(**options), out, partial(click.echo, err=True))), nl=False)
    click.echo(f"written to {out}: cluster-{options['name']}.json, .md and .html")


if __name__ == "__main__":
    main(prog_name="python -m experiments.documents")
