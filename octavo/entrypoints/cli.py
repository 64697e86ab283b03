"""The octavo command: choose a subcommand by name, import only that one, run it.

A subcommand is a module of this package that defines add_arguments(parser) and run(args) -> int; its name is the
file's, with dashes, and its one-line help is the first line of its docstring.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from octavo.envs import read_envs
from octavo.errors import OctavoError
from octavo.utils.arguments import ArgumentParser
from octavo.version import __version__

__all__ = ["find_commands", "main"]

_FOLDER = os.path.dirname(__file__)
_MARKS = ("\ndef add_arguments(", "\ndef run(")

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def find_commands(folder: str = _FOLDER) -> dict[str, tuple[str, str]]:
    """Return name -> (module, one-line help) of every subcommand; reads the files and imports none."""
    commands = {}
    for entry in sorted(os.listdir(folder)):
        if not entry.endswith(".py") or entry.startswith("_"):
            continue
        with open(os.path.join(folder, entry), encoding="utf-8") as file:
            source = file.read()
        if all(mark in source for mark in _MARKS):
            stem = entry[: -len(".py")]
            help_line = source.split("\n", 1)[0].strip().strip('"').strip()
            commands[stem.replace("_", "-")] = (f"octavo.entrypoints.{stem}", help_line)
    return commands


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's). Returns the exit status.

    Errors that octavo raises on purpose become one line on stderr and status 1; OCTAVO_TRACEBACK=1 shows where.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    commands = find_commands()
    if not args or args[0] in ("-h", "--help", "help"):
        print(_help(commands))
        return EXIT_OK if args else EXIT_USAGE
    if args[0] in ("-V", "--version"):
        print(f"octavo {__version__}")
        return EXIT_OK
    name = args[0].replace("_", "-")
    if name not in commands:
        close = difflib.get_close_matches(name, commands, n=1)
        hint = f"; did you mean `octavo {close[0]}`?" if close else f"; there are: {', '.join(commands)}"
        print(f"octavo: no command named {args[0]!r}{hint}", file=sys.stderr)
        return EXIT_USAGE
    return _run(name, commands[name], args[1:])


def _help(commands: dict[str, tuple[str, str]]) -> str:
    """Render the top-level help."""
    width = max((len(name) for name in commands), default=0)
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in commands.items()]
    return "\n".join(
        [
            f"octavo {__version__}: an LLM inference and serving engine",
            "",
            "usage: octavo COMMAND [options]        octavo COMMAND --help",
            "",
            "commands:",
            *lines,
            "",
            "options:",
            "  -h, --help     show this help",
            "  -V, --version  show the version",
        ]
    )


def _run(name: str, command: tuple[str, str], args: list[str]) -> int:
    """Import one subcommand, parse its arguments and run it."""
    traceback_wanted = False
    try:
        traceback_wanted = read_envs().traceback
        module: ModuleType = importlib.import_module(command[0])
        parser = ArgumentParser(prog=f"octavo {name}", description=command[1])
        module.add_arguments(parser)
        status: int = module.run(parser.parse_args(args))
        sys.stdout.flush()
    except OctavoError as error:
        if traceback_wanted:
            raise
        print(f"octavo {name}: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`octavo ... | head`): nothing is left to say, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    return status


if __name__ == "__main__":
    sys.exit(main())
