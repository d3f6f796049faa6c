"""The command line of a config: options from its sections and from the quantizers' constructors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..errors import UserError
from .checks import check_given
from .declaration import Option, flag_of
from .quantizers import owners, read_quantizers
from .sections import OPTIONS
from .train_config import PRESETS, TrainConfig

# What may differ from the interrupted run when it goes on.
RESUMABLE = ("out", "device", "epochs", "steps", "data_dir")
TITLES = {"optimizer": "Optimiser"}


class UserPath(click.Path):
    """A path whose first ``~`` is the home folder, where the shell has left it alone."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the word of a command line."""
        return super().convert(os.path.expanduser(value), param, ctx)


class OneLineErrors(click.Command):
    """A command that shows a wrong call as one line, and ends with the error's own status."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (UserError, OSError) as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(getattr(error, "exit_code", 1))
        except KeyboardInterrupt:
            ctx.exit(130)


class ConfigCommand(OneLineErrors):
    """A command with the options of a config, which ``--help`` lists by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a list of options for each section; what is of none goes with the run's."""
        for section in OPTIONS:
            params = [p for p in self.get_params(ctx) if _section_of(str(p.name)) == section]
            with formatter.section(TITLES.get(section, section.capitalize())):
                formatter.write_dl([r for p in params if (r := p.get_help_record(ctx)) is not None])


def _section_of(name: str) -> str:
    for section, own in OPTIONS.items():
        if name in [option.name for option in own.values()]:
            return section
    return "quantizer" if owners(name) else "run"


def config_options() -> list[click.Parameter]:
    """An option for each field of a config, and for each keyword of a quantizer's constructor."""
    declared = [_field_option(option) for option in TrainConfig.fields().values()]
    keywords = {name: None for q in read_quantizers().values() for name in q.options}
    return [*declared, *(_keyword_option(name) for name in keywords)]


def _field_option(option: Option) -> click.Option:
    only = f" For {', '.join(option.only)}." if option.only else ""
    return _click_option(option, option.help + only, show_default=option.default is not None)


def _keyword_option(name: str) -> click.Option:
    """One option for all quantizers that have it; the help says what it is for each of them."""
    own = owners(name)
    words = _by_quantizer({quantizer: option.help for quantizer, option in own.items()}, "{1}: {0}")
    defaults = _by_quantizer({q: option.default for q, option in own.items()}, "{0} for {1}")
    text = f"{' '.join(words)} [default: {'; '.join(defaults)}]"
    return _click_option(next(iter(own.values()))._replace(default=None), text)


def _by_quantizer(values: dict[str, Any], pattern: str) -> list[str]:
    """Each value with the quantizers that have it; words that all have stand alone."""
    groups = {
        value: ", ".join(quantizer for quantizer, own in values.items() if own == value)
        for value in dict.fromkeys(values.values())
    }
    alone = len(groups) == 1 and pattern.endswith("{0}")
    return [value if alone else pattern.format(value, own) for value, own in groups.items()]


def _click_option(option: Option, text: str, **settings: Any) -> click.Option:
    low = option.minimum if option.above is None else option.above
    if option.choices:
        settings["type"] = click.Choice(option.choices)
    elif low is not None:
        ranged: Any = click.IntRange if option.kind is int else click.FloatRange
        settings["type"] = ranged(low, option.maximum, min_open=option.above is not None)
    elif option.kind is not bool:
        settings["type"] = option.kind
    flag = flag_of(option.name)
    flags = f"{flag}/--no-{flag[2:]}" if option.kind is bool else flag
    return click.Option([flags, option.name], default=option.default, help=text, **settings)


def given_config(context: click.Context, preset: str | None, resume: bool) -> TrainConfig:
    """The config that a command line asks for.

    Args:
        context: The call of a :class:`ConfigCommand`.
        preset: The name of a preset, whose options are defaults.
        resume: Whether to take the options from the run in ``--out``.

    Raises:
        UserError: If an option is wrong or does nothing, or if there is no run to resume.
    """
    known = TrainConfig.kinds()
    given = {
        name: value
        for name, value in context.params.items()
        if name in known and context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    if resume and preset:
        raise UserError("--resume takes its options from the run: leave out --preset")
    if resume:
        return resumed_config(given)
    config = TrainConfig.from_options(**(PRESETS.get(preset or "", {}) | given))
    check_given(config, given)
    return config


def resumed_config(given: dict[str, Any]) -> TrainConfig:
    """The config of an interrupted run, with what may change changed.

    Args:
        given: The options that somebody chose, by their flat names.

    Raises:
        UserError: If there is no such run, or an option differs that must not.
    """
    from ..checkpoint import load_checkpoint

    if not given.get("out"):
        raise UserError("--resume needs --out, the folder of the run to continue")
    saved = TrainConfig.from_dict(load_checkpoint(Path(given["out"]) / "last.pt")["config"])
    options = saved.options(defaults=True)
    for name, value in given.items():
        found_by_auto = name == "dataset" and value == "auto"
        if name not in RESUMABLE and options.get(name) != value and not found_by_auto:
            raise UserError(
                f"{flag_of(name)} is {value} but the run has {options.get(name)}; "
                f"only {', '.join(RESUMABLE)} may change when a run goes on"
            )
    changes = {name: value for name, value in given.items() if name in RESUMABLE}
    if "epochs" in given:
        changes = {"steps": None} | changes  # otherwise the run's own steps would overrule
    return saved.replace(**changes)
