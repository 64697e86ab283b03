"""Rotary position embedding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from octavo.ops.op import Case, Tensor, op

__all__ = ["rope"]


@op
def rope(x: Tensor, angles: Tensor, head_dim: int) -> Tensor:
    """Rotate the first R dimensions of every head by its token's angles; the rest passes through.

    x: [T, N * H].   angles: [T, R] f32, cosines in [:R/2], sines in [R/2:]; R <= H.
    head_dim: H.   Dimension i is paired with i + R/2 (the half-split layout of Hugging Face checkpoints).
    Returns [T, N * H] in x's dtype; computed in f32.   Source: arXiv:2104.09864, eq. 34.
    """


@rope.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    for heads, head_dim, rotary in ((1, 16, 16), (3, 32, 32), (2, 48, 36)):
        angles = rng.uniform(0, 6, (5, rotary // 2))
        table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
        x = rng.standard_normal((5, heads * head_dim), dtype=np.float32)
        yield Case(f"{heads}x{head_dim} rotary {rotary}", {"x": x, "angles": table, "head_dim": head_dim})
