"""The command line: ``python -m eval COMMAND``."""

from __future__ import annotations

from importlib import import_module

import click

from training.cli import OneLineErrors
from training.errors import UserError

# Module and function of each command; a module is imported when one of its commands is asked for.
COMMANDS = {
    "compare": "eval.cli.compare:command",
    "compress": "eval.cli.codec:compress",
    "decompress": "eval.cli.codec:decompress",
    "doctor": "eval.cli.doctor:doctor",
    "rate": "eval.cli.codec:rate",
    "report": "eval.cli.report:report",
    "tokens": "eval.cli.codec:tokens",
}
# Former commands, and what to do instead.
GONE = {
    "cluster": "use python -m experiments.documents, or python -m experiments.satellites",
    "grid": "its picture is in python -m eval report RUN --html FILE, and in TensorBoard",
    "stability": "use python -m experiments.stability",
}


class Group(OneLineErrors, click.Group):
    """Loads a command when it is called; shows a wrong call as one line."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command of that name, loaded now."""
        if name in GONE:
            raise UserError(f"eval {name} is gone: {GONE[name]}")
        if name not in COMMANDS:
            return None
        module, function = COMMANDS[name].split(":")
        command: click.Command = getattr(import_module(module), function)
        return command


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Judge what train.py made."""


if __name__ == "__main__":
    main(prog_name="python -m eval")
