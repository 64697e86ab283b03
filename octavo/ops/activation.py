"""Gated activations: the first half of the columns is the gate, the second is multiplied by it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from octavo.ops.op import Case, Tensor, op

__all__ = ["gelu_and_mul", "gelu_tanh_and_mul", "silu_and_mul"]


@op
def silu_and_mul(x: Tensor) -> Tensor:
    """Return silu(a) * b of x = [a, b].   x: [T, 2F] -> [T, F].   Source: arXiv:2002.05202."""


@op
def gelu_and_mul(x: Tensor) -> Tensor:
    """Return gelu(a) * b of x = [a, b], gelu by erf.   x: [T, 2F] -> [T, F].   Source: arXiv:2002.05202."""


@op
def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """Return gelu(a) * b of x = [a, b], gelu by tanh.   x: [T, 2F] -> [T, F].   Source: arXiv:1606.08415, section 2."""


def _cases(rng: np.random.Generator) -> Iterator[Case]:
    for rows, width in ((1, 32), (5, 70)):
        # 1 + erf(a) and 1 + tanh(a) cancel for negative a: the error is 2^-24 of |a * b|, here up to 16 * 16.
        yield Case(f"{rows}x{width}", {"x": 4 * rng.standard_normal((rows, 2 * width), dtype=np.float32)}, atol=2e-5)


silu_and_mul.cases(_cases)
gelu_and_mul.cases(_cases)
gelu_tanh_and_mul.cases(_cases)
