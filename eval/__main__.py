"""The command line: ``python -m eval COMMAND``."""

from __future__ import annotations

from importlib import import_module

import click

from training.errors import UserError

COMMANDS = {
    **{
        name: f"eval.cli.{name}"
        for name in (
            "compare", "compress", "decompress", "doctor", "grid", "rate", "report", "tokens"
        )
    },
    "cluster": "experiments.documents.cluster_command",
    "stability": "experiments.stability.command",
}  # fmt: skip


class Group(click.Group):
    """Loads a command when it is called; shows a wrong call as one line."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command of that name, loaded now."""
        if name not in self.list_commands(context):
            return None
        command: click.Command = import_module(f"eval.cli.{name}").command
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
