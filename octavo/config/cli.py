"""Command-line flags and help, derived from the fields."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from octavo.config.engine import SECTIONS, EngineConfig, all_fields
from octavo.config.field import Field, parse_text, section_fields
from octavo.config.file import read_config_file
from octavo.errors import ConfigError

__all__ = ["add_engine_arguments", "engine_config_from_args"]


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one flag per configuration field, grouped by section, and --config."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="TOML or JSON file with configuration fields; flags win over it",
    )
    for name, section in SECTIONS.items():
        group = parser.add_argument_group(name, section.__doc__)
        for declared in section_fields(section):
            _add(group, declared)


def _add(group: argparse._ArgumentGroup, declared: Field) -> None:
    """Add one field's flag. Flags that are not given are absent from the namespace."""
    text = describe(declared).replace("%", "%%")
    common: dict[str, Any] = {"dest": declared.name, "default": argparse.SUPPRESS, "help": text}
    if declared.kind == "bool":
        group.add_argument(declared.flag, action=_Switch, nargs=0, **common)
    elif declared.kind == "tuple":
        group.add_argument(declared.flag, action=_Several, metavar="A,B", **common)
    else:
        metavar = "{" + ",".join(declared.choices) + "}" if declared.choices else _METAVARS[declared.kind]
        group.add_argument(declared.flag, action=_Single, metavar=metavar, **common)


_METAVARS = {"int": "N", "float": "X", "str": "TEXT"}


def describe(declared: Field) -> str:
    """Return a field's help with its bounds and default."""
    notes = []
    if declared.kind in ("int", "float") and (declared.ge is not None or declared.le is not None):
        notes.append(
            declared.allowed.removesuffix(", or none").removeprefix("a whole number ").removeprefix("a number ")
        )
    notes.append(f"default: {default_text(declared)}")
    return f"{declared.help} ({'; '.join(notes)})"


def default_text(declared: Field) -> str:
    """Write a field's default as the command line would take it."""
    if declared.default is None:
        return "auto"
    if declared.kind == "bool":
        return "on" if declared.default else "off"
    if declared.kind == "tuple":
        return ", ".join(declared.default) or "none"
    return str(declared.default)


class _FieldAction(argparse.Action):
    """An action whose value is a configuration field's."""

    def read(self, text: str) -> Any:
        """Parse one value; a wrong one is a usage error that says what is allowed."""
        try:
            return parse_text(all_fields()[self.dest][1], text)
        except ConfigError as error:
            raise argparse.ArgumentError(None, str(error)) from error


class _Single(_FieldAction):
    """Store one value; the last one given wins."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Parse and store."""
        setattr(namespace, self.dest, self.read(values))


class _Several(_FieldAction):
    """Collect values: repeated, or separated by commas."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Parse and append."""
        setattr(namespace, self.dest, vars(namespace).get(self.dest, ()) + self.read(values))


class _Switch(argparse.Action):
    """--x and --no-x."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        both = [*option_strings, *(f"--no-{flag[2:]}" for flag in option_strings)]
        super().__init__(both, dest, **options)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Store on or off."""
        assert option_string is not None, "a switch is always given by its name"
        setattr(namespace, self.dest, not option_string.startswith("--no-"))


def engine_config_from_args(args: argparse.Namespace) -> EngineConfig:
    """Build the configuration from parsed flags; a flag wins over the file given with --config.

    Raises ConfigError naming the file and field at fault.
    """
    given = vars(args)
    values = read_config_file(given["config"]) if given.get("config") else {}
    values.update({name: given[name] for name in all_fields() if name in given})
    return EngineConfig.from_flat(**values)
