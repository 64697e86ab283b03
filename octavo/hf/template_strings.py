"""The string methods and operators that chat templates may use, with provenance and size checks.

Each function takes and returns TracedText where `str` has a method of the same name, with the same results.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from octavo.errors import TemplateError
from octavo.hf.provenance import (
    UNTRUSTED,
    Mask,
    TracedText,
    concat,
    mask_bytes,
    same_length_mask,
    spans,
    trace,
)

__all__ = ["METHODS", "join", "map_case", "pad", "percent", "replace", "strip"]

_PERCENT = re.compile(
    r"%(?:\((?P<key>[^()]*)\))?(?P<flags>[#0\- +]*)(?P<width>\d{1,6})?(?:\.(?P<precision>\d{0,6}))?[hlL]?"
    r"(?P<kind>[diouxXeEfFgGcrsa%])"
)
_LONG_NUMBER = re.compile(r"\d{5}")
_MAX_SEPARATORS = 1_000_000  # pieces of one split

# Methods with results that carry no characters: they are used as `str` has them.
_PLAIN_METHODS = (
    "count",
    "endswith",
    "find",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "rfind",
    "rindex",
    "startswith",
)


def join(separator: TracedText, items: Iterable[str]) -> TracedText:
    """Join texts with a separator; every part keeps its provenance."""
    parts: list[str] = []
    total = 0
    for item in items:
        if not isinstance(item, str):
            raise TypeError(f"join() needs strings, not {type(item).__name__}")
        if parts:
            parts.append(separator)
        parts.append(item)
        total += len(item) + len(separator)
        separator.budget.check_chars(total - len(separator))
        separator.budget.tick()
    return concat(parts, separator.budget)


def split(text: TracedText, sep: str | None = None, maxsplit: int = -1) -> list[TracedText]:
    """Split at a separator, or at runs of white space."""
    return _split(text, sep, maxsplit, str.split)


def rsplit(text: TracedText, sep: str | None = None, maxsplit: int = -1) -> list[TracedText]:
    """Split at a separator, or at runs of white space, from the right."""
    return _split(text, sep, maxsplit, str.rsplit)


def _split(text: TracedText, sep: str | None, maxsplit: int, method: Callable[..., list[str]]) -> list[TracedText]:
    """Split with `method` of str and give each piece its provenance."""
    text.budget.check_nodes(min(len(text), _MAX_SEPARATORS) // 2 if sep is None else text.count(sep))
    pieces = method(text, sep, maxsplit)
    if sep is not None:
        return spans(text, pieces, gap=len(sep))
    found, start = [], 0
    for piece in pieces:
        start = text.find(piece, start)
        found.append(text[start : start + len(piece)])
        start += len(piece)
    return found


def splitlines(text: TracedText, keepends: bool = False) -> list[TracedText]:
    """Split into lines."""
    lines = spans(text, str.splitlines(text, True))
    if keepends:
        return lines
    return [line[: len(bare)] for line, bare in zip(lines, str.splitlines(text), strict=True)]


def partition(text: TracedText, sep: str) -> tuple[TracedText, ...]:
    """Split at the first separator into (before, separator, after)."""
    return tuple(spans(text, str.partition(text, sep)))


def rpartition(text: TracedText, sep: str) -> tuple[TracedText, ...]:
    """Split at the last separator into (before, separator, after)."""
    return tuple(spans(text, str.rpartition(text, sep)))


def lstrip(text: TracedText, chars: str | None = None) -> TracedText:
    """Remove white space, or the given characters, at the start."""
    return text[len(text) - len(str.lstrip(text, chars)) :]


def rstrip(text: TracedText, chars: str | None = None) -> TracedText:
    """Remove white space, or the given characters, at the end."""
    return text[: len(str.rstrip(text, chars))]


def strip(text: TracedText, chars: str | None = None) -> TracedText:
    """Remove white space, or the given characters, at both ends."""
    return lstrip(rstrip(text, chars), chars)


def removeprefix(text: TracedText, prefix: str) -> TracedText:
    """Remove a prefix, if it is there."""
    return text[len(prefix) :] if str.startswith(text, prefix) else text


def removesuffix(text: TracedText, suffix: str) -> TracedText:
    """Remove a suffix, if it is there."""
    return text[: len(text) - len(suffix)] if suffix and str.endswith(text, suffix) else text


def replace(text: TracedText, old: str, new: str, count: int = -1) -> TracedText:
    """Replace occurrences of `old`; what is put in keeps the provenance of `new`."""
    if not isinstance(old, str) or not isinstance(new, str):
        raise TypeError("replace() needs strings")
    num_found = str.count(text, old)
    if count >= 0:
        num_found = min(num_found, count)
    if num_found == 0:
        return text
    text.budget.check_chars(len(text) + num_found * (len(new) - len(old)))
    if not isinstance(text.mask, bytes) and isinstance(new, TracedText) and new.mask == text.mask:
        return TracedText(str.replace(text, old, new, count), text.mask, text.budget)
    text.budget.tick(num_found)
    if not old:  # str.replace puts `new` before each character, and at the end if the count allows
        kept = [part for i in range(min(num_found, len(text))) for part in (new, text[i])]
        kept.append(text[num_found:] if num_found <= len(text) else new)
        return concat(kept, text.budget)
    return join(trace(new, text.budget), spans(text, str.split(text, old, count), gap=len(old)))


def map_case(text: TracedText, method: Callable[[str], str]) -> TracedText:
    """Apply a method of str that changes case."""
    changed = method(text)
    return TracedText(changed, same_length_mask(text, changed), text.budget)


def pad(text: TracedText, padded: str, left: int, fill_mask: Mask) -> TracedText:
    """Give `padded`, which is `text` with `left` characters put before and some after, its provenance."""
    right = len(padded) - left - len(text)
    fill = bytes((fill_mask if isinstance(fill_mask, int) else UNTRUSTED,))
    return TracedText(padded, fill * left + mask_bytes(text) + fill * right, text.budget)


def center(text: TracedText, width: int, fill: str = " ") -> TracedText:
    """Pad on both sides to a width."""
    text.budget.check_chars(width)
    extra = max(width - len(text), 0)
    return pad(text, str.center(text, width, fill), extra // 2 + (extra & width & 1), _mask_of_fill(fill))


def ljust(text: TracedText, width: int, fill: str = " ") -> TracedText:
    """Pad on the right to a width."""
    text.budget.check_chars(width)
    return pad(text, str.ljust(text, width, fill), 0, _mask_of_fill(fill))


def rjust(text: TracedText, width: int, fill: str = " ") -> TracedText:
    """Pad on the left to a width."""
    text.budget.check_chars(width)
    return pad(text, str.rjust(text, width, fill), max(width - len(text), 0), _mask_of_fill(fill))


def _mask_of_fill(fill: str) -> Mask:
    """Return the mask of a fill character."""
    return fill.mask if isinstance(fill, TracedText) else UNTRUSTED


def zfill(text: TracedText, width: int) -> TracedText:
    """Pad a number with zeros on the left, after its sign."""
    text.budget.check_chars(width)
    sign = text[:1] if text[:1] in ("+", "-") else text[:0]
    zeros = "0" * max(width - len(text), 0)
    return concat((sign, trace(zeros, text.budget), text[len(sign) :]), text.budget)


def expandtabs(text: TracedText, tabsize: int = 8) -> TracedText:
    """Replace tabs by spaces; the result is untrusted unless there was no tab."""
    if "\t" not in text:
        return text
    text.budget.check_chars(len(text) + str.count(text, "\t") * max(tabsize, 0))
    return TracedText(str.expandtabs(text, tabsize), UNTRUSTED, text.budget)


def percent(text: TracedText, values: object, to_text: Callable[[object], TracedText]) -> TracedText:
    """Format with `%`: literal parts and %s values keep their provenance, other values are untrusted.

    `to_text` turns a value into text. Widths and precisions are at most 6 digits; `*` is refused.
    """
    is_mapping = isinstance(values, Mapping)
    queue = values if isinstance(values, tuple) else (values,)
    parts: list[str] = []
    end = used = total = 0
    for match in _PERCENT.finditer(text):
        parts.append(text[end : match.start()])
        _refuse_percent(parts[-1])
        end = match.end()
        if match[0] == "%%":
            parts.append(text[match.start() : match.start() + 1])
            continue
        if match["kind"] == "%":
            raise TemplateError(f"the chat template uses the unsupported format {match[0]!r}")
        if match["key"] is not None:
            if not is_mapping:
                raise TypeError("format requires a mapping")
            value = values[match["key"]]
        elif used < len(queue):
            value, used = queue[used], used + 1
        else:
            raise TypeError("not enough arguments for format string")
        text.budget.tick()
        parts.append(_percent_value(text, match, value, to_text))
        total += len(parts[-1]) + len(parts[-2])
        text.budget.check_chars(total)
    parts.append(text[end:])
    _refuse_percent(parts[-1])
    if used < len(queue) and not is_mapping:
        raise TypeError("not all arguments converted during string formatting")
    return concat(parts, text.budget)


def _refuse_percent(literal: str) -> None:
    """Raise TemplateError if a percent sign is left that is not a known format."""
    if "%" in literal:
        raise TemplateError("the chat template uses a format with '%' that is not supported (* or an unknown letter)")


def _percent_value(
    text: TracedText, match: re.Match[str], value: object, to_text: Callable[[object], TracedText]
) -> TracedText:
    """Format one value with one specification."""
    width = int(match["width"] or 0)
    text.budget.check_chars(width + int(match["precision"] or 0))
    if match["kind"] != "s":
        spec = f"%{match['flags']}{match['width'] or ''}"
        spec += "" if match["precision"] is None else f".{match['precision']}"
        return trace((spec + match["kind"]) % (value,), text.budget)
    shown = to_text(value)
    if match["precision"] is not None:
        shown = shown[: int(match["precision"] or 0)]
    return ljust(shown, width) if "-" in match["flags"] else rjust(shown, width)


def format_text(text: TracedText, *args: object, **kwargs: object) -> TracedText:
    """Format with `{}`: literal parts and plain `{}` texts keep their provenance, other values are untrusted.

    Fields are names or numbers only: attribute and index access, nested fields and widths of 5 digits are refused.
    """
    parts: list[str] = []
    auto = iter(range(len(args) + len(text)))
    total = 0
    for literal, field, spec, conversion in string.Formatter().parse(str(text)):
        mask = text.mask if isinstance(text.mask, int) else UNTRUSTED
        parts.append(TracedText(literal, mask, text.budget))
        total += len(literal)
        if field is None:
            continue
        if "{" in (spec or "") or _LONG_NUMBER.search(spec or "") or not re.fullmatch(r"\w*", field):
            raise TemplateError(
                f"the chat template uses the format field {{{field}:{spec}}}; only {{name:width}} is allowed"
            )
        index = str(next(auto)) if field == "" else field
        value = args[int(index)] if index.isdigit() else kwargs[index]
        parts.append(_format_value(text, value, spec or "", conversion))
        total += len(parts[-1])
        text.budget.check_chars(total)
    return concat(parts, text.budget)


def _format_value(text: TracedText, value: object, spec: str, conversion: str | None) -> TracedText:
    """Format one value of `{}`."""
    if isinstance(value, str) and not spec and conversion in (None, "s"):
        return trace(value, text.budget)
    text.budget.tick(8)
    shown = {None: lambda v: v, "s": str, "r": repr, "a": ascii}[conversion](value)
    return trace(format(str(shown) if isinstance(shown, str) else shown, spec), text.budget)


def _plain(name: str) -> Callable[..., object]:
    """Return a method of str unchanged; its arguments may be traced texts."""
    method = vars(str)[name]

    def call(text: TracedText, *args: object) -> object:
        text.budget.tick(1 + (len(text) >> 8))
        return method(text, *args)

    return call


def _case(name: str) -> Callable[[TracedText], TracedText]:
    """Return a method of str that changes case, with provenance."""
    method = vars(str)[name]

    def call(text: TracedText) -> TracedText:
        return map_case(text, method)

    return call


def _methods() -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the name and function of every method that templates may call on a text."""
    yield from ((name, _plain(name)) for name in _PLAIN_METHODS)
    for name in ("capitalize", "casefold", "lower", "swapcase", "title", "upper"):
        yield name, _case(name)
    own: tuple[Callable[..., object], ...] = (
        center,
        expandtabs,
        join,
        ljust,
        lstrip,
        partition,
        removeprefix,
        removesuffix,
        replace,
        rjust,
        rpartition,
    )
    own += (rsplit, rstrip, split, splitlines, strip, zfill)
    yield from ((function.__name__, function) for function in own)
    yield "format", format_text


METHODS: Mapping[str, Callable[..., object]] = MappingProxyType(dict(_methods()))
