"""Bound the time and memory of one chat template rendering, without signals or processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from itertools import chain

from octavo.errors import TemplateError

__all__ = ["CONTAINERS", "Budget"]

CONTAINERS: tuple[type, ...] = (list, tuple, dict, set, frozenset, type({}.keys()), type({}.values()), type({}.items()))

_STEPS_PER_CLOCK_READ = 512  # steps; one read costs about as much as a few steps
_STRING_OVERHEAD = 64  # chars; what one small string object costs in memory, in units of one char
_NODE_WEIGHT = 8  # chars; a list or dict entry, written out, is rarely shorter
_LIVE_FACTOR = 16  # times max_chars; strings alive at once
_WEIGHT_FACTOR = 4  # times max_chars; one value written out
_MAX_NODES = 10_000_000  # container entries created by one rendering
_MAX_VALUE_DEPTH = 128  # levels of lists in lists
_MAX_CALL_DEPTH = 100  # nested macro calls; far below the interpreter's own limit
_MAX_INT_BITS = 8192


class Budget:
    """Count what one rendering uses and raise TemplateError once it is too much.

    Values built by a template are immutable, so the size of a value "written out" (its weight, in chars) can be
    kept per container: it bounds every later operation that walks the value in C code (str, ==, tojson, join).
    """

    __slots__ = ("_clock", "_deadline", "_depth", "_live", "_nodes", "_steps", "_weights", "max_chars", "time_budget_s")

    def __init__(self, *, time_budget_s: float, max_chars: int, clock: Callable[[], float] = time.thread_time) -> None:
        # the thread's own time: on a busy machine an honest template must not be stopped for waiting
        self.time_budget_s = time_budget_s
        self.max_chars = max_chars
        self._clock = clock
        self._deadline = clock() + time_budget_s
        self._depth = 0
        self._live = 0
        self._nodes = 0
        self._steps = _STEPS_PER_CLOCK_READ
        # id -> (container, weight, depth); keeping the container keeps its id from being used again
        self._weights: dict[int, tuple[object, int, int]] = {}

    def tick(self, steps: int = 1) -> None:
        """Count work done; raise TemplateError past the deadline."""
        self._steps -= steps
        if self._steps < 0:
            self._steps = _STEPS_PER_CLOCK_READ
            if self._clock() > self._deadline:
                raise TemplateError(
                    f"the chat template ran longer than {self.time_budget_s:g} s and was stopped; "
                    "shorten the conversation or use another template"
                )

    def hold(self, num_chars: int) -> None:
        """Count a string that comes to life; raise TemplateError if it, or all of them, are too long."""
        if num_chars > self.max_chars:
            self.refuse_text(num_chars)
        self._live += num_chars + _STRING_OVERHEAD
        if self._live > _LIVE_FACTOR * self.max_chars:
            raise TemplateError(f"the chat template holds more than {_LIVE_FACTOR * self.max_chars} characters at once")
        self.tick(1 + (num_chars >> 8))

    def release(self, num_chars: int) -> None:
        """Count a string that is gone."""
        self._live -= num_chars + _STRING_OVERHEAD

    def check_chars(self, num_chars: int) -> None:
        """Raise TemplateError if a text about to be made would be longer than allowed."""
        if num_chars > self.max_chars:
            self.refuse_text(num_chars)

    def refuse_text(self, num_chars: int) -> None:
        """Raise the TemplateError of a text that is too long."""
        raise TemplateError(
            f"the chat template builds a text of {num_chars} characters; at most {self.max_chars} are allowed"
        )

    def check_int_bits(self, num_bits: float) -> None:
        """Raise TemplateError if an integer about to be made would be larger than allowed."""
        if num_bits > _MAX_INT_BITS:
            raise TemplateError(f"the chat template computes an integer of more than {_MAX_INT_BITS} bits")

    def check_nodes(self, num_nodes: int) -> None:
        """Count container entries about to be made; raise TemplateError if there are too many."""
        self._nodes += num_nodes
        if self._nodes > _MAX_NODES:
            raise TemplateError(f"the chat template builds lists of more than {_MAX_NODES} entries in all")
        self.tick(1 + (num_nodes >> 4))

    def enter_call(self) -> None:
        """Count a call that begins; raise TemplateError if calls are nested too deeply."""
        self._depth += 1
        if self._depth > _MAX_CALL_DEPTH:
            raise TemplateError(f"the chat template nests calls more than {_MAX_CALL_DEPTH} deep")
        self.tick(4)

    def leave_call(self) -> None:
        """Count a call that has ended."""
        self._depth -= 1

    def weigh(self, value: object) -> tuple[int, int]:
        """Return (weight in chars, depth in levels) of a value written out; raise TemplateError if it is too much."""
        if isinstance(value, str):
            return len(value) + _NODE_WEIGHT, 0
        if not isinstance(value, CONTAINERS):
            return _NODE_WEIGHT, 0
        known = self._weights.get(id(value))
        if known is not None:
            return known[1], known[2]
        weight, depth = _NODE_WEIGHT, 0
        self.check_nodes(len(value))
        for item in _entries(value):
            item_weight, item_depth = self.weigh(item)
            weight += item_weight
            depth = max(depth, item_depth)
        depth += 1
        if weight > _WEIGHT_FACTOR * self.max_chars:
            raise TemplateError(
                f"the chat template builds a value of more than {_WEIGHT_FACTOR * self.max_chars} characters"
            )
        if depth > _MAX_VALUE_DEPTH:
            raise TemplateError(f"the chat template nests lists more than {_MAX_VALUE_DEPTH} deep")
        self._weights[id(value)] = (value, weight, depth)
        return weight, depth


def _entries(value: Collection[object]) -> Iterator[object]:
    """Yield the direct entries of a container, keys included."""
    if isinstance(value, dict):
        return chain(value.keys(), value.values())
    return iter(value)
