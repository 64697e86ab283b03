"""trace_decode_token_ids: the output is given beforehand, for replaying recorded traffic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.ops.op import Tensor
from octavo.sampling.processor import Setting, Stage, select
from octavo.scheduler.plan import NewRow, RowError
from octavo.types import SamplingParams

__all__ = ["Processor"]


class Processor:
    """Leaves only the next token of the trace; after its end the request samples freely."""

    stage = Stage.FORCE

    def __init__(self, setting: Setting) -> None:
        self.ops = setting.ops
        self.table = setting.table
        self._trace: dict[int, tuple[int, ...]] = {}

    def wants(self, params: SamplingParams) -> bool:
        """Say whether there is a trace."""
        return params.trace_decode_token_ids is not None

    def add(self, row: int, request: NewRow) -> None:
        """Keep the row's trace."""
        self._trace[row] = request.params.trace_decode_token_ids or ()

    def remove(self, row: int) -> None:
        """Forget the row."""
        del self._trace[row]

    def apply(self, logits: Tensor, rows: Sequence[int]) -> list[RowError]:
        """Mask all but the token, even where that one was masked before.   logits: [L, V] f32."""
        forced = []
        for index, row, trace in select(self._trace, rows):
            position = len(self.table.output(row))
            if position < len(trace):
                forced.append((index, trace[position]))
        if forced:
            where = np.array(forced, np.int64).T
            self.ops.fill_at(logits, *where, 0.0)
            self.ops.keep_only(logits, *where)
        return []
