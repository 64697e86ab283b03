"""Write docs/config.md from the fields: python -m octavo.config.docs > docs/config.md"""

from __future__ import annotations

from octavo.config.cli import default_text
from octavo.config.engine import SECTIONS
from octavo.config.field import Field, section_fields
from octavo.envs import describe_envs

__all__ = ["render"]

_INTRO = """\
# Configuration

Generated from `octavo/config/sections.py` by `python -m octavo.config.docs`; do not edit by hand.

Every field is a flag of each command that runs a model (`--max-num-seqs 8`), a keyword of Python's
`LLM(model, max_num_seqs=8)`, and a name in the file given with `--config` (TOML or JSON, one flat table; flags win
over the file). Counts and tokens may be written 32k (32,000) or 32K (32,768), bytes 500MB or 2GiB. "auto" is chosen at
start, and the choice is logged with its reason. A switch is `--name` or `--no-name`. A list is repeated or separated
by commas."""


def render() -> str:
    """Return the text of docs/config.md."""
    parts = [_INTRO]
    for name, section in SECTIONS.items():
        rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
        rows += [_row(declared) for declared in section_fields(section)]
        parts.append(f"## {name}\n\n{section.__doc__}\n\n" + "\n".join(rows))
    rows = [
        "| variable | meaning |",
        "|---|---|",
        *(f"| `{name}` | {text} |" for name, text in describe_envs().items()),
    ]
    parts.append(
        "## Environment variables\n\nFor debugging only. Any other variable that starts with `OCTAVO_` is an error.\n\n"
        + "\n".join(rows)
    )
    return "\n\n".join(parts) + "\n"


def _row(declared: Field) -> str:
    """Render one field."""
    allowed = declared.allowed.removesuffix(", or none")
    if declared.unit in ("tokens", "bytes"):
        allowed = allowed.replace("a whole number", declared.unit)
    return f"| `{declared.name}` | {allowed} | {default_text(declared)} | {declared.help} |"


if __name__ == "__main__":
    print(render(), end="")
