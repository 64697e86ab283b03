"""top_k, then top_p on what it left: one op, one ordering."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.ops.op import Tensor
from octavo.sampling.processor import Setting, Stage, select
from octavo.scheduler.plan import NewRow, RowError
from octavo.types import SamplingParams

__all__ = ["Processor"]


class Processor:
    """Masks all but the top_k likeliest tokens, then all but the nucleus of mass top_p."""

    stage = Stage.TRUNCATE

    def __init__(self, setting: Setting) -> None:
        self.ops = setting.ops
        self._limits: dict[int, tuple[int, float]] = {}

    def wants(self, params: SamplingParams) -> bool:
        """Say whether either limit is on."""
        return params.top_k > 0 or params.top_p < 1

    def add(self, row: int, request: NewRow) -> None:
        """Keep the row's limits."""
        self._limits[row] = request.params.top_k, request.params.top_p

    def remove(self, row: int) -> None:
        """Forget the row."""
        del self._limits[row]

    def apply(self, logits: Tensor, rows: Sequence[int]) -> list[RowError]:
        """Mask.   logits: [L, V] f32, divided by the temperature."""
        found = select(self._limits, rows)
        if found:
            indices = np.array([index for index, _, _ in found], np.int64)
            top_k = np.array([k for _, _, (k, _) in found], np.int64)
            self.ops.mask_top_k_top_p(logits, indices, top_k, np.array([p for _, _, (_, p) in found], np.float64))
        return []
