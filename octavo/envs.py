"""Debug switches from the environment: at most 12, typed, read in one place. Everything else is configuration."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from octavo.errors import ConfigError

__all__ = ["PREFIX", "Envs", "describe_envs", "read_envs"]

PREFIX = "OCTAVO_"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def _switch(default: Any, help: str) -> Any:
    """Declare a switch: default and one-line help."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True, slots=True)
class Envs:
    """The switches. A field's variable is its name in capitals after OCTAVO_."""

    traceback: bool = _switch(False, "Show the full traceback when a command fails with an error raised on purpose.")
    test_models: str = _switch("", "Tests only: folder with the GGUF files that the slow tests run on.")


def describe_envs() -> dict[str, str]:
    """Return variable -> what it does, for docs and doctor."""
    return {PREFIX + item.name.upper(): item.metadata["help"] for item in fields(Envs)}


def read_envs(environ: Mapping[str, str] | None = None) -> Envs:
    """Read the switches from `environ` (default: the process's).

    Raises ConfigError for a value that a switch cannot take and for an OCTAVO_ variable that means nothing.
    """
    environ = os.environ if environ is None else environ
    known = {PREFIX + item.name.upper(): item for item in fields(Envs)}
    values: dict[str, Any] = {}
    for name, value in environ.items():
        if not name.startswith(PREFIX):
            continue
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"
            raise ConfigError(f"environment variable {name} means nothing to octavo; {hint}")
        item = known[name]
        values[item.name] = _boolean(name, value) if isinstance(item.default, bool) else value
    return Envs(**values)


def _boolean(name: str, value: str) -> bool:
    """Read a switch that is on or off."""
    text = value.strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ConfigError(f"{name}={value!r} is neither on nor off; set it to 1 or 0")
