"""The command line of a config: options from its fields and from the quantizers' constructors."""

from __future__ import annotations

from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import click

from .config import SECTIONS, TrainConfig
from .errors import UserError
from .options import flat_name
from .quantizers import QUANTIZERS, QuantizerOption, read_quantizers

# What may differ from the interrupted run when it goes on.
RESUMABLE = ("out", "device", "epochs", "steps", "data_dir")
TITLES = {"optimizer": "Optimiser"}


class ConfigOption(click.Option):
    """An option that ``--help`` lists under the title of its section."""

    def __init__(self, *args: Any, section: str = "run", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class ConfigCommand(click.Command):
    """A command whose ``--help`` groups the options by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list of options for each section; click's own go with the run's."""
        for section in SECTIONS:
            with formatter.section(TITLES.get(section, section.capitalize())):
                params = self.get_params(ctx)
                own = [p for p in params if getattr(p, "section", "run") == section]
                formatter.write_dl([r for p in own if (r := p.get_help_record(ctx)) is not None])


def config_options() -> list[click.Parameter]:
    """An option for each field, and for each keyword of a quantizer's constructor."""
    options: list[click.Parameter] = []
    for name, section in SECTIONS.items():
        options += [_field_option(spec, name) for spec in fields(section) if spec.metadata]
        if name == "quantizer":
            names = {n: None for q in read_quantizers().values() for n in q.options}
            options += [_constructor_option(n) for n in names]
    return options


def _option(name: str, kind: str, section: str, **settings: Any) -> ConfigOption:
    flag = "--" + name.replace("_", "-")
    words = [f"{flag}/--no-{flag[2:]}"] if kind == "bool" else [flag]
    return ConfigOption([*words, name], section=section, **settings)


def _field_option(spec: Field[Any], section: str) -> ConfigOption:
    rule, settings = spec.metadata, {}
    kind = str(spec.type).removesuffix(" | None")
    if rule["choices"]:
        settings["type"] = click.Choice(rule["choices"])
    elif kind in ("int", "float"):
        ranged = click.IntRange if kind == "int" else click.FloatRange
        low = rule["minimum"] if rule["above"] is None else rule["above"]
        settings["type"] = ranged(low, rule["maximum"], min_open=rule["above"] is not None)
    elif kind == "str":
        settings["type"] = click.STRING
    only = "" if rule["only"] == QUANTIZERS else f" For {', '.join(rule['only'])}."
    return _option(
        flat_name(spec),
        kind,
        section,
        default=spec.default,
        show_default=spec.default is not None,
        help=rule["help"] + only,
        **settings,
    )


def _constructor_option(name: str) -> ConfigOption:
    own = {n: q.options[name] for n, q in read_quantizers().items() if name in q.options}
    first = next(iter(own.values()))
    kind = click.Choice(first.choices) if first.choices else first.kind
    settings = {} if first.kind is bool else {"type": kind}
    help_text = f"{first.help} {_defaults(own)}"
    return _option(name, first.kind.__name__, "quantizer", default=None, help=help_text, **settings)


def _defaults(own: dict[str, QuantizerOption]) -> str:
    """The quantizers that an option is for, by their defaults."""
    values = {option.default: None for option in own.values()}
    parts = [
        f"{value} for {', '.join(name for name, o in own.items() if o.default == value)}"
        for value in values
    ]
    return f"[default: {'; '.join(parts)}]"


def resumed_config(given: dict[str, Any]) -> TrainConfig:
    """The config of an interrupted run, with what may change changed.

    Args:
        given: The options of the command line that somebody chose.

    Raises:
        UserError: If there is no such run, or an option differs that must not.
    """
    from .checkpoint import load_checkpoint

    if not given.get("out"):
        raise UserError("--resume needs --out, the folder of the run to continue")
    saved = TrainConfig.from_dict(load_checkpoint(Path(given["out"]) / "last.pt")["config"])
    options = saved.options(defaults=True)
    for name, value in given.items():
        found_by_auto = name == "dataset" and value == "auto"
        if name not in RESUMABLE and options.get(name) != value and not found_by_auto:
            raise UserError(
                f"--{name.replace('_', '-')} is {value} but the run has {options.get(name)}; "
                f"only {', '.join(RESUMABLE)} may change when a run goes on"
            )
    changes = {name: value for name, value in given.items() if name in RESUMABLE}
    if "epochs" in given:
        changes = {"steps": None} | changes  # otherwise the run's own steps would overrule
    return saved.replace(**changes)
