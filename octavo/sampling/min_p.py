"""min_p: drop tokens that are much less likely than the likeliest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.ops.op import Tensor
from octavo.sampling.processor import Setting, Stage, select
from octavo.scheduler.plan import NewRow, RowError
from octavo.types import SamplingParams

__all__ = ["Processor"]


class Processor:
    """Masks tokens below min_p times the greatest probability."""

    stage = Stage.NARROW

    def __init__(self, setting: Setting) -> None:
        self.ops = setting.ops
        self._min_p: dict[int, float] = {}

    def wants(self, params: SamplingParams) -> bool:
        """Say whether there is a threshold."""
        return params.min_p > 0

    def add(self, row: int, request: NewRow) -> None:
        """Keep the row's threshold."""
        self._min_p[row] = request.params.min_p

    def remove(self, row: int) -> None:
        """Forget the row."""
        del self._min_p[row]

    def apply(self, logits: Tensor, rows: Sequence[int]) -> list[RowError]:
        """Mask.   logits: [L, V] f32, divided by the temperature."""
        found = select(self._min_p, rows)
        if found:
            indices = np.array([index for index, _, _ in found], np.int64)
            self.ops.mask_min_p(logits, indices, np.array([value for _, _, value in found], np.float32))
        return []
