"""logit_bias: numbers added to the logits of single tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.ops.op import Tensor
from octavo.sampling.processor import Setting, Stage, pairs, select
from octavo.scheduler.plan import NewRow, RowError
from octavo.types import SamplingParams

__all__ = ["Processor"]


class Processor:
    """Adds a request's biases."""

    stage = Stage.EDIT

    def __init__(self, setting: Setting) -> None:
        self.ops = setting.ops
        self._bias: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def wants(self, params: SamplingParams) -> bool:
        """Say whether there are biases."""
        return bool(params.logit_bias)

    def add(self, row: int, request: NewRow) -> None:
        """Keep the row's ids and values."""
        bias = request.params.logit_bias or {}
        self._bias[row] = np.array(list(bias), np.int64), np.array(list(bias.values()), np.float32)

    def remove(self, row: int) -> None:
        """Forget the row."""
        del self._bias[row]

    def apply(self, logits: Tensor, rows: Sequence[int]) -> list[RowError]:
        """Add.   logits: [L, V] f32."""
        found = select(self._bias, rows)
        if found:
            values = np.concatenate([values for _, _, (_, values) in found])
            self.ops.add_at(logits, *pairs([(index, ids) for index, _, (ids, _) in found]), values)
        return []
