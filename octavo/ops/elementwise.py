"""Moving tensors in and out, and the elementwise operations models use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from octavo.ops.op import Case, Tensor, op

__all__ = ["add", "from_host", "scale", "softcap", "split", "take_rows", "to_host"]


@op
def from_host(array: np.ndarray, dtype: str | None = None) -> Tensor:
    """Make a tensor of a host array.

    array: any shape, C-contiguous.   dtype: "f32" "bf16" "f16" to convert to, or None for the array's own.
    Shares memory where the device is the host and no conversion is asked for.
    """


@op
def to_host(x: Tensor) -> np.ndarray:
    """Return a tensor of any shape as a host array, sharing memory where it can; bf16 comes as float32."""


@op
def add(x: Tensor, y: Tensor) -> Tensor:
    """Return x + y.   x, y: [T, D], same dtype."""


@op
def scale(x: Tensor, factor: float) -> Tensor:
    """Return x * factor, the factor rounded to x's dtype first (as checkpoints were trained).   x: [T, D]."""


@op
def softcap(x: Tensor, cap: float) -> Tensor:
    """Return cap * tanh(x / cap).   x: [T, D].   Source: arXiv:2408.00118, section 2."""


@op
def split(x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Return views of x's column ranges.   x: [T, sum(sizes)] -> [T, sizes[i]] each."""


@op
def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Return x[index].   x: [T, D].   index: [L] int64 -> [L, D]."""


@add.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    for rows in (1, 7):
        shape = (rows, 33)
        yield Case(f"{rows} rows", {"x": _normal(rng, shape), "y": _normal(rng, shape)})


@scale.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield Case("root of 640", {"x": _normal(rng, (3, 40)), "factor": 640**0.5})


@softcap.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield Case("cap 30", {"x": 50 * _normal(rng, (3, 40)), "cap": 30.0})


@take_rows.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield Case("repeated rows", {"x": _normal(rng, (5, 8)), "index": np.array([4, 0, 4])})


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)
