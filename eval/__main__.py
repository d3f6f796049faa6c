"""The command line: ``python -m eval COMMAND``."""

from __future__ import annotations

import click

from eval.cli import codec, compare, doctor, report
from training.config.cli import OneLineErrors
from training.errors import UserError

# Former commands, and what to do instead.
GONE = {
    "cluster": "use python -m experiments.documents, or python -m experiments.satellites",
    "grid": "its picture is in python -m eval report RUN --html FILE, and in TensorBoard",
    "stability": "use python -m experiments.stability",
}


class Group(OneLineErrors, click.Group):
    """A group that shows a wrong call as one line, and says what became of former commands."""

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command of that name."""
        if name in GONE:
            raise UserError(f"eval {name} is gone: {GONE[name]}")
        return super().get_command(context, name)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Judge what train.py made."""


for command in (
    compare.compare, codec.compress, codec.decompress, doctor.doctor, codec.rate, report.report,
    codec.tokens,
):  # fmt: skip
    main.add_command(command)


if __name__ == "__main__":
    main(prog_name="python -m eval")
