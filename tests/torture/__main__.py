"""Everything that must not lose a run, run away with memory, or end in a traceback.

    make torture                                        # all, about half an hour on two cores
    PYTHONPATH=tests python -m torture --share 0.1      # a tenth of each

Prints one table of what was tried and what failed; ends with status 1 if anything did.
"""

from __future__ import annotations

import collections
import sys
import tempfile
from pathlib import Path

import click
from tabulate import tabulate
from torture.child import MOST_MEGABYTES, MOST_SECONDS
from torture.hostile import HOSTILE
from torture.kills import KILLS

COLUMNS = ("lost", "traceback", "wrong", "above bounds")


@click.command()
@click.option("--share", default=1.0, show_default=True, help="The share of all that is tried.")
@click.option("--only", help="Kinds whose name holds this text.")
def main(share: float, only: str | None) -> None:
    """Try all kinds, and print the table."""
    body, failed = [], False
    for name, (attempt, times) in {**KILLS, **HOSTILE}.items():
        if only and only not in name:
            continue
        times = max(1, round(times * share))
        found: collections.Counter[str] = collections.Counter()
        seconds, megabytes = 0.0, 0.0
        with tempfile.TemporaryDirectory() as folder:
            for number, (outcome, wrong) in enumerate(attempt(Path(folder), times)):
                bounded = name in HOSTILE
                seconds = max(seconds, outcome.seconds)
                megabytes = max(megabytes, outcome.megabytes)
                problems = {wrong} - {""}
                if outcome.trace:
                    problems.add("traceback")
                if bounded and (
                    outcome.megabytes > MOST_MEGABYTES or outcome.seconds > MOST_SECONDS
                ):
                    problems.add("above bounds")
                found.update(problems)
                if problems:
                    click.echo(f"{name}, {number}: {problems} {outcome}", err=True)
        failed = failed or bool(found)
        most = (f"{seconds:.2f}", f"{megabytes:.0f}") if name in HOSTILE else ("-", "-")
        body.append([name, times, *(found[column] for column in COLUMNS), *most])
        click.echo(f"{name}: {times} tried, {sum(found.values())} failed", err=True)
    headers = ["what", "tried", *COLUMNS, "most seconds", "most MiB"]
    click.echo(tabulate(body, headers=headers, tablefmt="github"))
    sys.exit(failed)


if __name__ == "__main__":
    main()
