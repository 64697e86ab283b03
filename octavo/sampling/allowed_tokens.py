"""allowed_token_ids: only these tokens may be generated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.ops.op import Tensor
from octavo.sampling.processor import Setting, Stage, pairs, select
from octavo.scheduler.plan import NewRow, RowError
from octavo.types import SamplingParams

__all__ = ["Processor"]


class Processor:
    """Masks every token outside a request's whitelist."""

    stage = Stage.RESTRICT

    def __init__(self, setting: Setting) -> None:
        self.ops = setting.ops
        self._ids: dict[int, np.ndarray] = {}

    def wants(self, params: SamplingParams) -> bool:
        """Say whether there is a whitelist."""
        return params.allowed_token_ids is not None

    def add(self, row: int, request: NewRow) -> None:
        """Keep the row's ids, each once."""
        self._ids[row] = np.unique(np.array(request.params.allowed_token_ids, np.int64))

    def remove(self, row: int) -> None:
        """Forget the row."""
        del self._ids[row]

    def apply(self, logits: Tensor, rows: Sequence[int]) -> list[RowError]:
        """Mask what is not listed.   logits: [L, V] f32."""
        found = select(self._ids, rows)
        if found:
            self.ops.keep_only(logits, *pairs([(index, ids) for index, _, ids in found]))
        return []
