"""Matrix products with weights, and embedding look-up."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from octavo.ops.op import Case, Tensor, op

__all__ = ["embed", "linear"]


@op
def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x @ weight.T + bias.   x: [T, K].   weight: [N, K].   bias: [N] or None.   Returns [T, N] in x's dtype."""


@op
def embed(ids: Tensor, weight: Tensor) -> Tensor:
    """Return weight[ids].   ids: [T] int64 in [0, V).   weight: [V, D] -> [T, D]."""


@linear.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    for rows, n, k in ((1, 40, 64), (6, 17, 96), (33, 64, 128)):
        args = {
            "x": rng.standard_normal((rows, k), dtype=np.float32),
            "weight": rng.standard_normal((n, k), dtype=np.float32),
        }
        # float32 sums of k terms: the error grows like sqrt(k) * 2^-24 of the summed magnitudes.
        yield Case(f"{rows}x{n}x{k}", {**args, "bias": None}, rtol=1e-5, atol=1e-4)
        yield Case(
            f"{rows}x{n}x{k} bias", {**args, "bias": rng.standard_normal(n, dtype=np.float32)}, rtol=1e-5, atol=1e-4
        )


@embed.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield Case("with repeats", {"ids": np.array([3, 0, 3]), "weight": rng.standard_normal((5, 16), dtype=np.float32)})
