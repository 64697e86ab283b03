"""An argparse that says what was meant."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

__all__ = ["ArgumentParser"]


class ArgumentParser(argparse.ArgumentParser):
    """argparse without abbreviations, with --a_b as --a-b, and with a hint for an unknown flag."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_HelpFormatter, **options)

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        """Parse, after turning underscores of flag names into dashes."""
        return super().parse_known_args(_dashes(sys.argv[1:] if args is None else list(args)), namespace)

    def parse_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        """Parse everything, or exit with the nearest known flag."""
        parsed, extra = self.parse_known_args(args, namespace)
        if extra:
            self.error(self._explain(extra[0]))
        return parsed

    def _explain(self, text: str) -> str:
        """Say what is wrong with an argument that nothing takes."""
        if not text.startswith("-"):
            return f"unexpected argument {text!r}"
        flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        close = difflib.get_close_matches(text.split("=", 1)[0], flags, n=1)
        return f"unknown option {text!r}; " + (f"did you mean {close[0]}?" if close else "--help lists all")

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with status 2."""
        self.exit(2, f"{self.prog}: {message}\n")


class _HelpFormatter(argparse.HelpFormatter):
    """Help with a wide left column."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=38)


def _dashes(args: Sequence[str]) -> list[str]:
    """Write --max_num_seqs=8 as --max-num-seqs=8; values and what follows a bare -- stay as they are."""
    result: list[str] = []
    for index, text in enumerate(args):
        if text == "--":
            return result + list(args[index:])
        if text.startswith("--"):
            name, equals, value = text.partition("=")
            text = name.replace("_", "-") + equals + value
        result.append(text)
    return result
