"""The command line: ``python -m eval COMMAND``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click

from training.errors import UserError

COMMANDS = Path(__file__).parent / "commands"


class Group(click.Group):
    """Finds commands by the files in eval/commands; shows a wrong call as one line."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Names of all commands."""
        files = {path.stem for path in COMMANDS.glob("*.py")}
        return sorted(files - {"__init__", "options"})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command of that name, loaded now."""
        if name not in self.list_commands(context):
            return None
        command: click.Command = import_module(f"eval.commands.{name}").command
        return command

    def invoke(self, context: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(context)
        except UserError as error:
            click.echo(f"Error: {error}", err=True)
            context.exit(error.exit_code)
        except OSError as error:
            click.echo(f"Error: {error}", err=True)
            context.exit(1)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Judge what train.py made."""


if __name__ == "__main__":
    main(prog_name="python -m eval")
