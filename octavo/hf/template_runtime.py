"""What a compiled chat template may do while it runs: values, operators, attributes and globals."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from jinja2 import Environment
from jinja2.exceptions import SecurityError
from jinja2.filters import _GroupTuple
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.utils import Cycler, Joiner, Namespace

from octavo.errors import InvalidRequestError, TemplateError
from octavo.hf.provenance import TRUSTED, UNTRUSTED, TracedText, concat, trace
from octavo.hf.template_budget import CONTAINERS, Budget
from octavo.hf.template_strings import METHODS, percent

__all__ = ["GLOBAL_NAMES", "Runtime", "TemplateContext", "TemplateNamespace", "member"]

_MAX_RANGE = 100_000  # entries, as in jinja2.sandbox
_MAX_SHOWN = 2_000  # characters of a template's own error message

# Everything else has no attributes at all: a closed list is the sandbox.
_MEMBERS: tuple[tuple[type, frozenset[str]], ...] = (
    (dict, frozenset(("copy", "get", "items", "keys", "values"))),
    (_GroupTuple, frozenset(("grouper", "list"))),
    (list, frozenset(("copy", "count", "index"))),
    (tuple, frozenset(("count", "index"))),
    (
        LoopContext,
        frozenset(
            ("changed", "cycle", "depth", "depth0", "first", "index", "index0", "last", "length", "nextitem")
            + ("previtem", "revindex", "revindex0")
        ),
    ),
    (Macro, frozenset(("arguments", "name"))),
    (Cycler, frozenset(("current", "next", "reset"))),
)
_WRITABLE = (bool, int, float, complex, *CONTAINERS, range, Undefined, Macro, LoopContext, Namespace)

GLOBAL_NAMES = frozenset(("cycler", "dict", "joiner", "namespace", "raise_exception", "range", "strftime_now"))


class TemplateNamespace(Namespace):
    """A namespace of jinja2 that stores no private names and does not show its contents."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        """Store the given attributes; the signature leaves every keyword free for them."""
        values = dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        """Set one attribute (`{% set ns.name = value %}`)."""
        _check_name(name)
        Namespace.__setitem__(self, name, value)

    def __repr__(self) -> str:
        """Return a fixed text: contents may refer to the namespace itself."""
        return "<Namespace>"


def _check_name(name: object) -> None:
    """Refuse a private attribute name."""
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a namespace attribute cannot be named {name!r}")


class TemplateContext(Context):
    """The context of jinja2, with the runtime of one rendering in `run`."""

    run: Runtime


class Runtime:
    """Serve one rendering: make values, apply operators, give out attributes, all within a budget.

    Values that enter are JSON-like data with TracedText for strings; values that leave are TracedText.
    """

    __slots__ = ("budget", "environment", "now")

    def __init__(self, environment: Environment, budget: Budget, now: Callable[[], datetime]) -> None:
        self.environment = environment
        self.budget = budget
        self.now = now

    def literal(self, text: str) -> TracedText:
        """Return a literal of the template: trusted text."""
        return TracedText(text, TRUSTED, self.budget)

    def text(self, value: object) -> TracedText:
        """Turn a value into text as `str` does; only texts keep a provenance."""
        if isinstance(value, TracedText):
            return value
        if isinstance(value, str):
            return TracedText(value, UNTRUSTED, self.budget)
        if value is None:
            return TracedText("None", UNTRUSTED, self.budget)
        if not isinstance(value, _WRITABLE):
            raise TypeError(f"a value of type {type(value).__name__} cannot be written as text")
        self.budget.weigh(value)
        return TracedText(str(value), UNTRUSTED, self.budget)

    def joined(self, values: Iterable[object]) -> TracedText:
        """Apply the `~` operator."""
        return concat(map(self.text, values), self.budget)

    def concat(self, parts: Iterable[str]) -> TracedText:
        """Join the output of a block."""
        return concat(parts, self.budget)

    def adopt(self, value: Any) -> Any:
        """Take in the result of a call: plain strings become untrusted text, containers are weighed."""
        if isinstance(value, TracedText):
            return value
        if isinstance(value, str):
            return TracedText(value, UNTRUSTED, self.budget)
        if isinstance(value, CONTAINERS):
            self.budget.weigh(value)
        elif isinstance(value, int):
            self.budget.check_int_bits(value.bit_length())
        return value

    def sliced(self, value: Any, key: slice) -> Any:
        """Apply `value[a:b:c]`."""
        return self.adopt(trace(value, self.budget)[key] if isinstance(value, str) else value[key])

    def attribute(self, value: object, name: str) -> object:
        """Apply `value.name`: a listed member first, then an item."""
        return member(self.environment, self.adopt(value) if isinstance(value, str) else value, name)

    def item(self, value: Any, key: object) -> object:
        """Apply `value[key]`: an item first, then a listed member."""
        return self.environment.getitem(self.adopt(value) if isinstance(value, str) else value, key)

    def binop(self, symbol: str, left: Any, right: Any) -> Any:
        """Apply `+`, `*`, `**` or `%` if the result is not too large."""
        self.budget.tick()
        if symbol == "%":
            if isinstance(left, str):
                self.budget.weigh(right)
                return percent(self.text(left), right, self.text)
        elif symbol == "+":
            if isinstance(left, str) and isinstance(right, str):
                return concat((left, right), self.budget)
            if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
                self.budget.check_nodes(len(left) + len(right))
        elif symbol == "*":
            left, right = self._check_product(left, right)
        elif isinstance(left, int) and isinstance(right, int) and right > 0:
            self.budget.check_int_bits(max(left.bit_length(), 1) * right if abs(left) > 1 else 1)
        return self.adopt(_OPERATORS[symbol](left, right))

    def _check_product(self, left: Any, right: Any) -> tuple[Any, Any]:
        """Raise TemplateError if `left * right` is too large; return them, the sequence first."""
        if isinstance(left, int) and isinstance(right, int):
            self.budget.check_int_bits(left.bit_length() + right.bit_length())
            return left, right
        if isinstance(left, int):
            left, right = right, left
        if isinstance(right, int) and isinstance(left, (list, tuple)):
            self.budget.check_nodes(len(left) * max(right, 0))
        if isinstance(right, int) and isinstance(left, str):
            return trace(left, self.budget), right
        return left, right

    def names(self) -> dict[str, object]:
        """Return the functions that templates may call, bound to this rendering."""
        return {
            "cycler": Cycler,
            "dict": _make_dict,
            "joiner": Joiner,
            "namespace": TemplateNamespace,
            "raise_exception": self._raise_exception,
            "range": _make_range,
            "strftime_now": self._strftime_now,
        }

    def _raise_exception(self, message: object) -> None:
        """Refuse the request in the template's words: it says what is wrong with the messages."""
        raise InvalidRequestError(f"the chat template refuses: {str(self.text(message))[:_MAX_SHOWN]}", "messages")

    def _strftime_now(self, format: str) -> str:  # templates may name the argument
        """Return the current date and time in a format."""
        if len(format) > 200:
            raise TemplateError(f"the chat template formats a date with {len(format)} characters; at most 200")
        return self.now().strftime(str(format))


_OPERATORS = {"+": operator.add, "*": operator.mul, "**": operator.pow, "%": operator.mod}


def member(environment: Environment, value: Any, name: str) -> object:
    """Return a listed member of a value, else its item of that name, else undefined.

    A private name gives an undefined that raises SecurityError when used.
    """
    if isinstance(value, TracedText):
        method = METHODS.get(name)
        if method is not None:
            return partial(method, value)
    elif isinstance(value, Undefined):
        return getattr(value, name)  # raises UndefinedError
    elif isinstance(value, Namespace):
        stored = object.__getattribute__(value, "_Namespace__attrs")
        if name in stored:
            return stored[name]
    else:
        for kind, names in _MEMBERS:
            if isinstance(value, kind) and name in names:
                return getattr(value, name)
    if isinstance(value, Mapping) and name in value:
        return value[name]
    if name.startswith("_"):
        return environment.undefined(
            f"access to attribute {name!r} is not allowed in a chat template", name=name, exc=SecurityError
        )
    return environment.undefined(obj=value, name=name)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """Make a dict, as the builtin does."""
    return dict(*args, **kwargs)


def _make_range(*args: int) -> range:
    """Make a range of at most 100,000 entries."""
    made = range(*args)
    if len(made) > _MAX_RANGE:
        raise TemplateError(f"the chat template makes a range of {len(made)} entries; at most {_MAX_RANGE}")
    return made
