"""The filters and tests that chat templates may use: a closed list, with provenance and budgets."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jinja2
from jinja2 import filters as builtin
from jinja2.defaults import DEFAULT_TESTS
from jinja2.runtime import Undefined

from octavo.errors import TemplateError
from octavo.hf.provenance import TracedText, concat, trace
from octavo.hf.template_runtime import Runtime, TemplateContext
from octavo.hf.template_strings import METHODS, join, map_case, percent, replace, strip

__all__ = ["FILTERS", "TESTS"]

_MAX_ARGUMENT = 1_000_000  # widths and counts
_SIZED = frozenset(("batch", "center", "indent", "slice", "truncate"))  # filters whose numbers are widths and counts
_MAX_INDENT = 16  # of tojson
_MAX_DIGITS = 400  # of a text turned into a number; a float has at most 309 before the point
_WORDS = re.compile(r"\w+")
_TITLE_PARTS = re.compile(r"[-\s({\[<]+|[^-\s({\[<]+")


def _abs(run: Runtime, value: Any) -> Any:
    """Return the absolute value."""
    return abs(value)


def _capitalize(run: Runtime, value: object) -> TracedText:
    """Return the text with its first character in upper case."""
    return map_case(run.text(value), str.capitalize)


def _center(run: Runtime, value: object, width: int = 80) -> object:
    """Center a text."""
    return METHODS["center"](run.text(value), width)


def _default(run: Runtime, value: object, default_value: object = "", boolean: bool = False) -> object:
    """Return the default if the value is undefined, or also if it is false when `boolean` is set."""
    if isinstance(value, Undefined) or (boolean and not value):
        return default_value
    return value


def _escape(run: Runtime, value: object) -> TracedText:
    """Escape the five characters of HTML."""
    text = run.text(value)
    for old, new in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&#39;"), ('"', "&#34;")):
        text = replace(text, old, new)
    return text


def _float(run: Runtime, value: Any, default: float = 0.0) -> float:
    """Turn a value into a float, or return the default."""
    return builtin.do_float(_short(value), default)


def _format(run: Runtime, value: object, *args: object, **kwargs: object) -> TracedText:
    """Format with the `%` rules."""
    return percent(run.text(value), kwargs or args, run.text)


def _indent(run: Runtime, value: object, width: int | str = 4, first: bool = False, blank: bool = False) -> TracedText:
    """Indent the lines of a text."""
    indention = run.text(width if isinstance(width, str) else " " * width)
    # splitlines drops one final newline, as in the original
    lines = METHODS["splitlines"](concat((run.text(value), "\n"), run.budget))
    assert isinstance(lines, list)
    newline = trace("\n", run.budget)
    if blank:
        result = join(concat((newline, indention), run.budget), lines)
    else:
        result = join(newline, [lines[0], *(indention + line if line else line for line in lines[1:])])
    return concat((indention, result), run.budget) if first else result


def _int(run: Runtime, value: Any, default: int = 0, base: int = 10) -> int:
    """Turn a value into an int, or return the default."""
    return builtin.do_int(_short(value), default, base)


def _short(value: object) -> object:
    """Return the value as plain data; raise TemplateError for a text that is too long to be a number."""
    if isinstance(value, str) and len(value) > _MAX_DIGITS:
        raise TemplateError(f"the chat template turns a text of {len(value)} characters into a number")
    return str(value) if isinstance(value, str) else value


def _join(run: Runtime, value: Iterable[object], d: object = "", attribute: str | int | None = None) -> TracedText:
    """Join the texts of a sequence."""
    if attribute is not None:
        value = map(builtin.make_attrgetter(run.environment, attribute), value)
    return join(run.text(d), map(run.text, value))


def _lower(run: Runtime, value: object) -> TracedText:
    """Return the text in lower case."""
    return map_case(run.text(value), str.lower)


def _replace(run: Runtime, value: object, old: object, new: object, count: int | None = None) -> TracedText:
    """Replace a part of a text."""
    return replace(run.text(value), run.text(old), run.text(new), -1 if count is None else count)


def _round(run: Runtime, value: float, precision: int = 0, method: str = "common") -> float:
    """Round a number."""
    if abs(precision) > 30:
        raise TemplateError(f"the chat template rounds to {precision} digits; at most 30 are allowed")
    if method == "common":
        return round(value, precision)
    function = {"ceil": math.ceil, "floor": math.floor}[method]
    return function(value * 10**precision) / 10**precision


def _safe(run: Runtime, value: object) -> object:
    """Return the value unchanged: nothing is escaped here."""
    return value


def _string(run: Runtime, value: object) -> TracedText:
    """Turn a value into text."""
    return run.text(value)


def _sum(run: Runtime, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> object:
    """Add up numbers (or lists, with a list as start)."""
    if isinstance(start, str):
        raise TypeError("sum() can't sum strings")
    if attribute is not None:
        iterable = map(builtin.make_attrgetter(run.environment, attribute), iterable)
    for item in iterable:
        start = run.binop("+", start, item)
    return start


def _title(run: Runtime, value: object) -> TracedText:
    """Put the first character of each word in upper case, the others in lower case."""
    text = run.text(value)
    parts: list[str] = []
    for match in _TITLE_PARTS.finditer(text):
        part = text[match.start() : match.end()]
        parts += (map_case(part[:1], str.upper), map_case(part[1:], str.lower))
    return concat(parts, run.budget)


def _tojson(
    run: Runtime,
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write a value as JSON, without HTML escapes (as chat templates expect)."""
    weight, depth = run.budget.weigh(value)
    width = len(indent) if isinstance(indent, str) else (indent or 0)
    if width > _MAX_INDENT:
        raise TemplateError(f"the chat template indents JSON by {width}; at most {_MAX_INDENT} is allowed")
    if weight * depth * width > 64 * run.budget.max_chars:
        raise TemplateError("the chat template indents a JSON value that is too large")
    if separators is not None:
        run.budget.check_chars(sum(map(len, separators)) * (weight // 8))
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    total, chunks = 0, []
    for chunk in encoder.iterencode(value):
        total += len(chunk)
        run.budget.check_chars(total)
        run.budget.tick()
        chunks.append(chunk)
    return "".join(chunks)


def _trim(run: Runtime, value: object, chars: str | None = None) -> TracedText:
    """Remove white space, or the given characters, at both ends."""
    return strip(run.text(value), chars)


def _truncate(
    run: Runtime, value: object, length: int = 255, killwords: bool = False, end: str = "...", leeway: int | None = None
) -> TracedText:
    """Cut a text to a length, at a space unless `killwords` is set."""
    text, leeway = run.text(value), 5 if leeway is None else leeway
    if length < len(end) or leeway < 0:
        raise TemplateError(f"the chat template truncates to {length} with leeway {leeway}; too small")
    if len(text) <= length + leeway:
        return text
    kept = text[: length - len(end)]
    if not killwords:
        kept = kept[: len(str.rsplit(kept, " ", 1)[0])]
    return concat((kept, end), run.budget)


def _upper(run: Runtime, value: object) -> TracedText:
    """Return the text in upper case."""
    return map_case(run.text(value), str.upper)


def _wordcount(run: Runtime, value: object) -> int:
    """Count the words of a text."""
    return sum(1 for _ in _WORDS.finditer(run.text(value)))


def _guard(name: str, function: Callable[..., object], first: str) -> Callable[..., object]:
    """Wrap a filter: count it, bound its numbers, and take its result in.

    `first` names what the function takes before the value: run, context, environment or nothing.
    """

    @jinja2.pass_context
    def call(context: TemplateContext, value: object, *args: object, **kwargs: object) -> object:
        run = context.run
        run.budget.tick(4)
        for argument in (*args, *kwargs.values()) if name in _SIZED else ():
            if isinstance(argument, int) and abs(argument) > _MAX_ARGUMENT:
                raise TemplateError(f"the chat template passes {argument:.3g} to {name!r}; at most {_MAX_ARGUMENT}")
        taken = {"run": (run,), "context": (context,), "environment": (run.environment,), "nothing": ()}[first]
        return run.adopt(function(*taken, value, *args, **kwargs))

    return call


def _filters() -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the name and function of every filter."""
    own: tuple[Callable[..., object], ...] = (
        _abs,
        _capitalize,
        _center,
        _default,
        _escape,
        _float,
        _format,
        _indent,
        _int,
        _join,
        _lower,
        _replace,
    )
    own += (_round, _safe, _string, _sum, _title, _tojson, _trim, _truncate, _upper, _wordcount)
    for function in own:
        yield function.__name__[1:], _guard(function.__name__[1:], function, "run")
    yield "d", _guard("default", _default, "run")
    yield "e", _guard("escape", _escape, "run")
    by_context: dict[str, Any] = {
        "map": builtin.sync_do_map,
        "select": builtin.sync_do_select,
        "reject": builtin.sync_do_reject,
    }
    by_context |= {"selectattr": builtin.sync_do_selectattr, "rejectattr": builtin.sync_do_rejectattr}
    by_environment: dict[str, Any] = {"first": builtin.sync_do_first, "last": builtin.do_last, "max": builtin.do_max}
    by_environment |= {"min": builtin.do_min, "sort": builtin.do_sort, "unique": builtin.sync_do_unique}
    by_environment |= {"groupby": builtin.sync_do_groupby}
    alone: dict[str, Any] = {
        "batch": builtin.do_batch,
        "count": len,
        "dictsort": builtin.do_dictsort,
        "items": builtin.do_items,
    }
    alone |= {"length": len, "list": builtin.sync_do_list, "reverse": builtin.do_reverse}
    alone |= {"slice": builtin.sync_do_slice}
    for first, table in (("context", by_context), ("environment", by_environment), ("nothing", alone)):
        for name, function in table.items():
            yield name, _guard(name, function, first)


FILTERS: Mapping[str, Callable[..., object]] = MappingProxyType(dict(_filters()))

# "escaped" belongs to HTML; "filter" and "test" look into the environment, which is harmless.
TESTS: Mapping[str, Callable[..., object]] = MappingProxyType(
    {name: test for name, test in DEFAULT_TESTS.items() if name != "escaped"}
)
