"""Repetition, frequency and presence penalties, in this order.

Repetition looks at prompt and output, frequency and presence at the output alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.ops.op import Tensor
from octavo.sampling.processor import Setting, Stage, pairs, select
from octavo.scheduler.plan import NewRow, RowError
from octavo.types import SamplingParams

__all__ = ["Processor"]


class _Seen:
    """The distinct tokens of one row and how often each is in its output, kept up to date token by token."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self.num_output = 0
        self.size = 0
        self._slots: dict[int, int] = {}
        self._ids = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.int64)

    @property
    def ids(self) -> np.ndarray:
        """Distinct ids, [S] int64."""
        return self._ids[: self.size]

    @property
    def counts(self) -> np.ndarray:
        """Occurrences of each in the output, [S] int64; 0 for a token of the prompt only."""
        return self._counts[: self.size]

    def add(self, ids: np.ndarray, count: int) -> None:
        """Count each of some ids `count` times more."""
        for token in ids.tolist():
            slot = self._slots.setdefault(token, self.size)
            if slot == self.size:
                self._grow()
                self._ids[slot] = token
            self._counts[slot] += count

    def _grow(self) -> None:
        if self.size == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self.size += 1


class Processor:
    """Lowers (or raises) the logits of tokens that were seen."""

    stage = Stage.PENALIZE

    def __init__(self, setting: Setting) -> None:
        self.ops = setting.ops
        self.table = setting.table
        self._seen: dict[int, _Seen] = {}

    def wants(self, params: SamplingParams) -> bool:
        """Say whether any penalty is not neutral."""
        return params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0

    def add(self, row: int, request: NewRow) -> None:
        """Start counting; the prompt is needed by the repetition penalty only."""
        seen = _Seen(request.params)
        if request.params.repetition_penalty != 1:
            seen.add(np.unique(np.array(request.tokens[: request.num_prompt_tokens], np.int64)), 0)
        self._seen[row] = seen

    def remove(self, row: int) -> None:
        """Forget the row."""
        del self._seen[row]

    def apply(self, logits: Tensor, rows: Sequence[int]) -> list[RowError]:
        """Count what is new in the output, then penalise.   logits: [L, V] f32."""
        found = []
        repetition = np.ones(len(rows), np.float32)
        frequency, presence = np.zeros((2, len(rows)), np.float32)
        for index, row, seen in select(self._seen, rows):
            output = self.table.output(row)
            seen.add(output[seen.num_output :], 1)
            seen.num_output = len(output)
            repetition[index] = seen.params.repetition_penalty
            frequency[index] = seen.params.frequency_penalty
            presence[index] = seen.params.presence_penalty
            if seen.size:
                found.append((index, seen))
        if found:
            where = pairs([(index, seen.ids) for index, seen in found])
            counts = np.concatenate([seen.counts for _, seen in found])
            self.ops.penalize(logits, *where, counts, repetition, frequency, presence)
        return []
