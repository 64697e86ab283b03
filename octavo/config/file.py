"""Read a configuration file: one flat table of field names, in TOML or JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from octavo.config.engine import all_fields, unknown_name
from octavo.config.field import Field, parse_text
from octavo.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib

    def _load_toml(text: str) -> Any:
        """Parse TOML."""
        return tomllib.loads(text)

else:

    def _load_toml(text: str) -> Any:
        """Say that this Python cannot parse TOML."""
        raise ConfigError("a TOML configuration file needs Python 3.11 or newer; write it as JSON, or upgrade Python")


__all__ = ["read_config_file"]

MAX_BYTES = 1 << 20  # a configuration has about a hundred short lines


def read_config_file(path: str) -> dict[str, Any]:
    """Read field names and values from `path` (.toml or .json). Dashes in names are underscores.

    Numbers may be written as texts with a unit ("32k", "2GiB"). Raises ConfigError naming the file and the field.
    """
    suffix = os.path.splitext(path)[1]
    if suffix not in (".toml", ".json"):
        raise ConfigError(f"--config {path}: a configuration file is .toml or .json", field="config")
    try:
        with open(os.path.expanduser(path), "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--config {path}: cannot be read: {error.strerror}", field="config") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"--config {path}: is longer than {MAX_BYTES} bytes", field="config")
    try:
        text = data.decode("utf-8")
        table = json.loads(text) if suffix == ".json" else _load_toml(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"--config {path}: is not valid {suffix[1:].upper()}: {error}", field="config") from error
    if not isinstance(table, dict):
        raise ConfigError(f"--config {path}: must be one table of field names and values", field="config")
    known = all_fields()
    values = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            raise ConfigError(f"--config {path}: {unknown_name(name, known)}", field=name)
        values[name] = _value(path, known[name][1], value)
    return values


def _value(path: str, declared: Field, value: Any) -> Any:
    """Check one value of a file. A text for a number is read as on the command line."""
    try:
        if isinstance(value, str) and declared.kind in ("int", "tuple"):
            return parse_text(declared, value)
        if isinstance(value, list) and declared.kind == "tuple":
            value = tuple(value)
        declared.check(value)
    except ConfigError as error:
        raise ConfigError(f"--config {path}: {error}", field=declared.name) from error
    return value
