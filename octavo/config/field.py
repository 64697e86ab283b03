"""What one configuration field is: its declaration, its type, its bounds, and the text forms it is written in."""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, Literal

from octavo.errors import ConfigError

__all__ = ["Field", "Section", "field_", "parse_number", "parse_text", "section_fields"]

Kind = Literal["bool", "int", "float", "str", "choice", "tuple"]

_NUMBER = re.compile(r"([+-]?(?:\d+(?:_\d+)*)(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)")
MAX_DIGITS = 30  # a number of more digits is a slip, and costs time to make
# Counts and tokens: small letter decimal, capital letter binary.
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
# Bytes: IEC names binary, SI names decimal, a bare letter binary.
_BYTE_UNITS = {
    suffix: base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in ((letter, 1024), (f"{letter}b", 1000), (f"{letter}ib", 1024))
} | {"": 1, "b": 1}


def field_(
    default: Any, help: str, *, ge: float | None = None, le: float | None = None, unit: str | None = None
) -> Any:
    """Declare one field: default, one-line help, inclusive bounds.

    unit: "tokens" and "count" accept 32k / 32K forms on the command line, "bytes" accepts 2GiB and 500MB.
    """
    return field(default=default, metadata={"help": help, "ge": ge, "le": le, "unit": unit})


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A declared field, read back: what flags, docs and validation are derived from."""

    name: str
    kind: Kind
    optional: bool
    choices: tuple[str, ...]
    default: Any
    help: str
    ge: float | None
    le: float | None
    unit: str | None

    @property
    def flag(self) -> str:
        """Return the command-line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def allowed(self) -> str:
        """Say in words what values are allowed."""
        if self.kind == "choice":
            text = "one of " + ", ".join(self.choices)
        elif self.kind in ("int", "float"):
            text = ("a whole number" if self.kind == "int" else "a number") + _bounds(self.ge, self.le)
        else:
            text = {"bool": "true or false", "str": "text", "tuple": "a list of texts"}[self.kind]
        return text + (", or none" if self.optional else "")

    def check(self, value: Any) -> None:
        """Raise ConfigError unless `value` has this field's type and is within its bounds."""
        if value is None and self.optional:
            return
        if not _has_kind(self, value) or not _within(self, value):
            raise ConfigError(f"{self.name}={value!r} is not allowed; it must be {self.allowed}", field=self.name)


class Section:
    """A group of fields. Every instance is valid: construction and dataclasses.replace check each field."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check every field's type and bounds."""
        kind: type = type(self)
        for declared in section_fields(kind):
            declared.check(getattr(self, declared.name))


@cache
def section_fields(section: type) -> tuple[Field, ...]:
    """Return the fields of a section class, in declaration order."""
    hints = typing.get_type_hints(section)
    return tuple(_read(section, hints))


def _read(section: type, hints: dict[str, Any]) -> Iterator[Field]:
    """Read each dataclass field's type and metadata."""
    for item in fields(section):
        assert item.default is not MISSING, f"{section.__name__}.{item.name} has no default"
        hint, optional = hints[item.name], False
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
            rest = [part for part in typing.get_args(hint) if part is not type(None)]
            assert len(rest) == 1, f"{section.__name__}.{item.name}: only X | None unions are fields"
            hint, optional = rest[0], True
        choices: tuple[str, ...] = ()
        kind: Kind
        if typing.get_origin(hint) is Literal:
            kind, choices = "choice", typing.get_args(hint)
        elif hint == tuple[str, ...]:
            kind = "tuple"
        else:
            kind = _KINDS[hint]
        yield Field(
            name=item.name, kind=kind, optional=optional, choices=choices, default=item.default, **item.metadata
        )


_KINDS: dict[type, Kind] = {bool: "bool", int: "int", float: "float", str: "str"}


def _has_kind(declared: Field, value: Any) -> bool:
    """Tell whether a value has a field's type; a bool is no number, an int is a float."""
    match declared.kind:
        case "bool":
            return isinstance(value, bool)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        case "str":
            return isinstance(value, str)
        case "choice":
            return value in declared.choices
        case "tuple":
            return isinstance(value, tuple) and all(isinstance(item, str) for item in value)


def _within(declared: Field, value: Any) -> bool:
    """Tell whether a value is within a field's inclusive bounds."""
    return (declared.ge is None or value >= declared.ge) and (declared.le is None or value <= declared.le)


def _bounds(ge: float | None, le: float | None) -> str:
    """Say inclusive bounds in words."""
    if ge is not None and le is not None:
        return f" from {ge:g} to {le:g}" if le < 1e6 else f" from {ge:g} to {le}"
    if ge is not None:
        return f" of at least {ge:g}"
    return "" if le is None else f" of at most {le:g}"


def parse_number(text: str, unit: str | None = None) -> int:
    """Read a whole number as people write it.

    unit None: digits only.   "tokens", "count": 32k = 32000, 32K = 32768, 1.5m = 1500000.
    "bytes": 2GiB = 2 * 2**30, 500MB = 500 * 10**6, 4g = 4 * 2**30.
    Raises ValueError when the text is no number, has another unit, or is no whole number after scaling.
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a number")
    digits, suffix = match[1].replace("_", ""), match[2]
    units = {"bytes": _BYTE_UNITS, "tokens": _COUNT_UNITS, "count": _COUNT_UNITS}.get(unit or "", {"": 1})
    scale = units.get(suffix.lower() if unit == "bytes" else suffix)
    if scale is None:
        known = [name for name in units if name]
        raise ValueError(f"{text!r} has the unit {suffix!r}; known are {', '.join(known) if known else 'none here'}")
    return _scaled(digits, scale, text)


def _scaled(digits: str, scale: int, text: str) -> int:
    """Multiply a decimal number, written out, by a unit exactly."""
    mantissa, _, exponent = digits.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    power = int(exponent or 0) - len(fraction)
    if len(digits) > MAX_DIGITS or abs(power) > MAX_DIGITS:
        raise ValueError(f"{text!r} has too many digits")
    value: int = int(whole + fraction) * scale * 10 ** max(power, 0)
    divisor: int = 10 ** max(-power, 0)
    quotient, rest = divmod(value, divisor)
    if rest:
        raise ValueError(f"{text!r} is not a whole number")
    return quotient


def parse_text(declared: Field, text: str) -> Any:
    """Turn the text of a flag or of a configuration file into a field's value.

    "none" and "auto" leave an optional field open. Raises ConfigError saying what is allowed.
    """
    if declared.optional and text.strip().lower() in ("none", "auto"):
        return None
    try:
        match declared.kind:
            case "int":
                value: Any = parse_number(text, declared.unit)
            case "float":
                value = float(text)
            case "bool":
                value = {"true": True, "false": False}[text.strip().lower()]
            case "tuple":
                value = tuple(part.strip() for part in text.split(",") if part.strip())
            case _:
                value = text
    except (ValueError, KeyError) as error:
        reason = f": {error}" if isinstance(error, ValueError) and declared.kind == "int" else ""
        raise ConfigError(
            f"{declared.flag} {text!r} is not allowed; it must be {declared.allowed}{reason}", field=declared.name
        ) from error
    declared.check(value)
    return value
