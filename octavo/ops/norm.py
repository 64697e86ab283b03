"""Normalisation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from octavo.ops.op import Case, Tensor, op

__all__ = ["head_rms_norm", "rms_norm"]


@op
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row of x to unit root mean square, times weight: x / sqrt(mean(x^2) + eps) * weight.

    x: [T, D], last dim contiguous.   weight: [D].   eps: added to the mean square.
    Returns [T, D] in x's dtype; computed in f32.   Source: arXiv:1910.07467, eq. 4.
    """


@op
def head_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Apply rms_norm to each head of x by itself.

    x: [T, N * H].   weight: [H]; H is its length.   Returns [T, N * H] in x's dtype.   Source: arXiv:2010.04245.
    """


@rms_norm.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    for rows, dim in ((1, 64), (5, 96), (3, 577)):
        x = rng.standard_normal((rows, dim), dtype=np.float32) * 3
        yield Case(f"{rows}x{dim}", {"x": x, "weight": rng.standard_normal(dim, dtype=np.float32), "eps": 1e-6})
    yield Case("zero row", {"x": np.zeros((2, 32), np.float32), "weight": np.ones(32, np.float32), "eps": 1e-5})


@head_rms_norm.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    x = rng.standard_normal((3, 4 * 16), dtype=np.float32)
    yield Case("4 heads of 16", {"x": x, "weight": rng.standard_normal(16, dtype=np.float32), "eps": 1e-6})
