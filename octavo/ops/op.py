"""Op: one schema, its reference, faster implementations, test cases; and Ops, what a model is given.

An op is declared once, as a plain function with a docstring and no body:

    @op
    def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        '''Scale each row of x to unit root mean square, times weight. ...'''

    @rms_norm.cases
    def _(rng):  yield Case("row", {"x": ..., "weight": ..., "eps": 1e-6}, rtol=1e-5, atol=1e-6)

An implementation decorates itself in ops/<backend>/<family>.py: `@norm.rms_norm.impl("torch")`.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from octavo.errors import ConfigError

__all__ = ["Binding", "Case", "Op", "Ops", "Tensor", "bind", "load", "op", "registered"]

# Opaque on purpose: a torch tensor, a native buffer, or a symbol while a program is recorded.
Tensor: TypeAlias = Any

Implementation: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One test input of an op: named arguments (arrays become tensors) and its tolerances."""

    name: str
    args: Mapping[str, Any]
    rtol: float = 1e-5
    atol: float = 1e-6


@dataclass(frozen=True, slots=True)
class Binding:
    """Which implementation an op got, and why."""

    op: str
    backend: str
    reason: str
    function: Implementation


class Op:
    """The contract of one kernel: signature and docstring, with its implementations by backend."""

    def __init__(self, schema: Callable[..., Any]) -> None:
        self.name = schema.__name__
        self.signature = inspect.signature(schema)
        self.__doc__ = schema.__doc__
        self.implementations: dict[str, Implementation] = {}
        self._cases: Callable[[np.random.Generator], Iterable[Case]] | None = None

    def impl(self, backend: str) -> Callable[[Implementation], Implementation]:
        """Register the decorated function as this op's implementation for a backend."""

        def register(function: Implementation) -> Implementation:
            assert backend not in self.implementations, f"{self.name}: two {backend} implementations"
            theirs = list(inspect.signature(function).parameters)
            assert theirs == list(self.signature.parameters), f"{self.name}[{backend}]: parameters {theirs}"
            self.implementations[backend] = function
            return function

        return register

    def cases(self, function: Callable[[np.random.Generator], Iterable[Case]]) -> None:
        """Register the decorated generator of test cases."""
        self._cases = function

    def make_cases(self, rng: np.random.Generator) -> Iterator[Case]:
        """Yield the op's test cases; an op without cases yields none."""
        if self._cases is not None:
            yield from self._cases(rng)

    def bind(self, preference: Sequence[str]) -> Binding:
        """Choose the first backend of `preference` that implements this op.

        Raises ConfigError when none does.
        """
        for backend in preference:
            if backend in self.implementations:
                lost = preference[: preference.index(backend)]
                reason = f"no {', '.join(lost)} implementation" if lost else "preferred"
                return Binding(self.name, backend, reason, self.implementations[backend])
        raise ConfigError(
            f"op {self.name} has no implementation for {', '.join(preference)}; it has {sorted(self.implementations)}"
        )


_REGISTRY: dict[str, Op] = {}
_HERE = os.path.dirname(__file__)


def op(schema: Callable[..., Any]) -> Op:
    """Declare an op from a function's signature and docstring."""
    declared = Op(schema)
    assert declared.name not in _REGISTRY, f"op {declared.name} is declared twice"
    _REGISTRY[declared.name] = declared
    return declared


def registered() -> Mapping[str, Op]:
    """Return every declared op by name."""
    return _REGISTRY


def load(backend: str) -> None:
    """Import every op family and, where there is one, its implementation for a backend.

    A family is a module octavo/ops/<family>.py; its implementation is octavo/ops/<backend>/<family>.py.
    """
    families = [info.name for info in pkgutil.iter_modules([_HERE]) if not info.ispkg and info.name != "op"]
    implemented = {info.name for info in pkgutil.iter_modules([f"{_HERE}/{backend}"])}
    for family in families:
        importlib.import_module(f"octavo.ops.{family}")
        if family in implemented:
            importlib.import_module(f"octavo.ops.{backend}.{family}")


class Ops:
    """The operations a model, sampler or pooler is written against: one attribute per op."""

    def __init__(self, bindings: Iterable[Binding]) -> None:
        self.bindings = tuple(bindings)
        for binding in self.bindings:
            self.__dict__[binding.op] = binding.function

    def __getattr__(self, name: str) -> Implementation:
        raise AttributeError(f"no op named {name} is bound; bound: {', '.join(sorted(b.op for b in self.bindings))}")


def bind(preference: Sequence[str], overrides: Mapping[str, str] | None = None) -> Ops:
    """Bind every declared op once: `overrides` (op -> backend) first, then `preference` in order.

    Raises ConfigError for an override that names no op or no implementation of it.
    """
    overrides = overrides or {}
    if unknown := set(overrides) - set(_REGISTRY):
        raise ConfigError(f"--op names no op: {', '.join(sorted(unknown))}", field="op")
    return Ops(
        declared.bind([overrides[name]] if name in overrides else preference) for name, declared in _REGISTRY.items()
    )
