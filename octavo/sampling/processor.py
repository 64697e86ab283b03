"""LogitsProcessor: one sampling feature; how features are found and in which order they run.

A feature is a file octavo/sampling/<name>.py with a class named `Processor`. Nothing lists them.
"""

from __future__ import annotations

import enum
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from octavo import sampling
from octavo.ops.op import Ops, Tensor
from octavo.scheduler.plan import NewRow, RowError
from octavo.types import SamplingParams

__all__ = ["LogitsProcessor", "Setting", "Stage", "TokenTable", "discover", "pairs", "select"]

T = TypeVar("T")


class Stage(enum.IntEnum):
    """When a processor runs. Within a stage the order is by file name, and does not matter.

    Stages before TEMPERATURE may change which token is the likeliest, so they run for greedy rows too; the others
    never do, and run for random rows only, on logits that were divided by the temperature.
    """

    RESTRICT = 1  # tokens that are allowed or forbidden
    EDIT = 2  # what else a request says about single tokens
    CUSTOM = 3  # processors of the operator
    PENALIZE = 4  # by what was said already
    FORCE = 5  # the next token is known
    TEMPERATURE = 6  # the sampler's own
    NARROW = 7  # drop unlikely tokens
    TRUNCATE = 8  # last: by rank and by mass


class TokenTable(Protocol):
    """What a processor may ask about a row's tokens; views, valid until the row changes."""

    def prompt(self, row: int) -> np.ndarray:
        """Return the row's prompt ids, [P] int32."""

    def output(self, row: int) -> np.ndarray:
        """Return the row's output ids so far, [O] int32."""

    def num_tokens(self, row: int) -> int:
        """Return P + O, the position of the token to be sampled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What processors are built with."""

    ops: Ops
    table: TokenTable
    vocab_size: int


class LogitsProcessor(Protocol):
    """One feature that edits logits. State is kept by row; remove leaves no trace of a row."""

    stage: Stage

    def wants(self, params: SamplingParams) -> bool:
        """Say whether a request with these parameters uses the feature."""

    def add(self, row: int, request: NewRow) -> None:
        """Take a request in that `wants` said yes to; its row is new here."""

    def remove(self, row: int) -> None:
        """Forget a row that was added."""

    def apply(self, logits: Tensor, rows: Sequence[int]) -> list[RowError]:
        """Edit the logits, in place, of those rows that were added.

        logits: [L, V] f32.   rows: [L] row indices of the logits; any of them may be strangers here.
        Returns the rows that failed; the sampler drops them.
        """


def discover(setting: Setting) -> list[LogitsProcessor]:
    """Build the `Processor` of every module in this package, in the order they run."""
    found: list[LogitsProcessor] = []
    for info in sorted(pkgutil.iter_modules(sampling.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{sampling.__name__}.{info.name}")
        factory = vars(module).get("Processor")
        if factory is not None:
            found.append(factory(setting))
    return sorted(found, key=lambda processor: processor.stage)


def select(state: Mapping[int, T], rows: Sequence[int]) -> list[tuple[int, int, T]]:
    """Return (logits row, row index, state) of the rows that have state."""
    return [(index, row, state[row]) for index, row in enumerate(rows) if row in state]


def pairs(found: Sequence[tuple[int, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Flatten (logits row, ids) lists to the parallel arrays that sparse ops take, both [N] int64."""
    rows = np.repeat(np.array([index for index, _ in found], np.int64), [len(ids) for _, ids in found])
    return rows, np.concatenate([ids for _, ids in found])
