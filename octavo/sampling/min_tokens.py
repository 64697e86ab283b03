"""min_tokens: end-of-sequence and stop tokens are masked until the output is long enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.ops.op import Tensor
from octavo.sampling.processor import Setting, Stage, pairs, select
from octavo.scheduler.plan import NewRow, RowError
from octavo.types import SamplingParams

__all__ = ["Processor"]


@dataclass(frozen=True, slots=True)
class _Minimum:
    num_tokens: int
    stop_ids: np.ndarray


class Processor:
    """Masks stop ids while the output has fewer than min_tokens tokens."""

    stage = Stage.EDIT

    def __init__(self, setting: Setting) -> None:
        self.ops = setting.ops
        self.table = setting.table
        self.vocab_size = setting.vocab_size
        self._minimum: dict[int, _Minimum] = {}

    def wants(self, params: SamplingParams) -> bool:
        """Say whether there is a minimum."""
        return params.min_tokens > 0

    def add(self, row: int, request: NewRow) -> None:
        """Keep the row's minimum and its stop ids; a model may name an end token outside its own vocabulary."""
        ids = np.unique(np.array(request.stop_ids, np.int64))
        self._minimum[row] = _Minimum(request.params.min_tokens, ids[(ids >= 0) & (ids < self.vocab_size)])

    def remove(self, row: int) -> None:
        """Forget the row."""
        del self._minimum[row]

    def apply(self, logits: Tensor, rows: Sequence[int]) -> list[RowError]:
        """Mask stop ids of rows below their minimum.   logits: [L, V] f32."""
        found = [
            (index, minimum.stop_ids)
            for index, row, minimum in select(self._minimum, rows)
            if len(minimum.stop_ids) and len(self.table.output(row)) < minimum.num_tokens
        ]
        if found:
            self.ops.fill_at(logits, *pairs(found), -np.inf)
        return []
