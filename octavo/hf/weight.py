"""Weight: one tensor of a checkpoint, still in its file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Weight"]


@dataclass(frozen=True, slots=True)
class Weight:
    """A named tensor of a checkpoint: memory-mapped bytes in its stored format.

    shape: row-major, as numpy has it (a GGUF's ne is reversed): a linear weight is (out, in).
    format: "F32" "F16" "BF16" or a ggml block type such as "Q4_0"; blocks run along the last dimension.
    data: 1-D uint8 view of exactly the tensor's bytes, read-only.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    data: np.ndarray
