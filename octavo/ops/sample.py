"""Choosing tokens from logits: reductions, sparse edits, masks and the counter-based draw.

Legend: L logits rows, V vocabulary, N entries of a sparse list, M ids per row. Logits are float32 here; ops that
"edit" change their first argument in place and return it. A masked token has the logit -inf. Parameters that come
from requests are host arrays (numpy); `rows` holds row numbers of the logits, from 0 to L - 1.
Each row is computed for itself: nothing depends on the other rows or on their order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from octavo.ops.op import Case, Tensor, op

__all__ = [
    "add_at",
    "fill_at",
    "gumbel_argmax",
    "keep_only",
    "mask_min_p",
    "mask_top_k_top_p",
    "penalize",
    "put_row",
    "row_argmax",
    "row_gather",
    "row_logsumexp",
    "row_rank",
    "row_top_k",
    "scale_rows",
    "to_f32",
]


@op
def to_f32(x: Tensor) -> Tensor:
    """Return x as float32; x itself where it is that already.   x: any shape, bf16/f16/f32."""


@op
def row_argmax(x: Tensor) -> tuple[Tensor, Tensor]:
    """Find the greatest value of each row.

    x: [L, V] bf16/f16/f32.   Returns values [L] in x's dtype and ids [L] int64; of equal values the lowest id.
    A row that holds a NaN has the value NaN.
    """


@op
def row_logsumexp(x: Tensor) -> Tensor:
    """Return log(sum(exp(x))) of each row.   x: [L, V] f32 -> [L] f32."""


@op
def row_top_k(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k greatest values of each row, by falling value, equal values by rising id.

    x: [L, V] f32 without NaN.   k: 1 to V.   Returns values [L, k] f32 and ids [L, k] int64.
    """


@op
def row_gather(x: Tensor, ids: np.ndarray) -> Tensor:
    """Return x[i, ids[i, j]].   x: [L, V] f32.   ids: [L, M] int64 in 0..V-1 -> [L, M] f32."""


@op
def row_rank(x: Tensor, values: Tensor) -> Tensor:
    """Return 1 + the number of entries of row i that are strictly greater than values[i, j].

    x: [L, V] f32.   values: [L, M] f32 -> [L, M] int64.
    """


@op
def add_at(x: Tensor, rows: np.ndarray, ids: np.ndarray, values: np.ndarray) -> Tensor:
    """Edit x: x[rows[i], ids[i]] += values[i].

    x: [L, V] f32.   rows, ids: [N] int64, no pair twice.   values: [N] float32.
    """


@op
def fill_at(x: Tensor, rows: np.ndarray, ids: np.ndarray, value: float) -> Tensor:
    """Edit x: x[rows[i], ids[i]] = value.   x: [L, V] f32.   rows, ids: [N] int64."""


@op
def keep_only(x: Tensor, rows: np.ndarray, ids: np.ndarray) -> Tensor:
    """Edit x: in each row that `rows` names, mask every token that is not paired with it.

    x: [L, V] f32.   rows, ids: [N] int64.   Rows not named stay as they are.
    """


@op
def put_row(x: Tensor, row: int, values: np.ndarray) -> Tensor:
    """Edit x: x[row] = values.   x: [L, V] f32.   values: [V] float32, may share memory with x."""


@op
def penalize(
    x: Tensor,
    rows: np.ndarray,
    ids: np.ndarray,
    counts: np.ndarray,
    repetition: np.ndarray,
    frequency: np.ndarray,
    presence: np.ndarray,
) -> Tensor:
    """Edit x at the tokens a row has seen.

    For entry i with r = rows[i], v = x[r, ids[i]]:
        v = v / repetition[r] if v > 0 else v * repetition[r]
        v = v - frequency[r] * counts[i] - presence[r] * (counts[i] > 0)

    x: [L, V] f32.   rows, ids: [N] int64, no pair twice: the tokens of prompt and output.
    counts: [N] int64, occurrences in the output alone.   repetition, frequency, presence: [L] float32.
    Source: arXiv:1909.05858, section 4.1 (repetition).
    """


@op
def scale_rows(x: Tensor, factors: np.ndarray) -> Tensor:
    """Edit x: x[i] *= factors[i].   x: [L, V] f32.   factors: [L] float32, not 0."""


@op
def mask_min_p(x: Tensor, rows: np.ndarray, min_p: np.ndarray) -> Tensor:
    """Edit x: mask tokens less likely than min_p times the likeliest, x[r, v] < max(x[r]) + log(min_p[i]).

    x: [L, V] f32.   rows: [N] int64, r = rows[i].   min_p: [N] float32 in (0, 1].   Source: arXiv:2407.01082.
    """


@op
def mask_top_k_top_p(x: Tensor, rows: np.ndarray, top_k: np.ndarray, top_p: np.ndarray) -> Tensor:
    """Edit x: keep the top_k[i] greatest logits of row rows[i], then of these the nucleus of mass top_p[i].

    top-k: tokens below the k-th greatest logit are masked; ties with it are all kept.
    top-p: with the remaining tokens ordered by falling logit, then rising id, and probabilities exp(x - max) summed
    in float64, a token is kept while the sum before it is below top_p times the total; the first is always kept.

    x: [L, V] f32.   rows: [N] int64.   top_k: [N] int64, 0 is off.   top_p: [N] float64 in (0, 1], 1 is off.
    Source: arXiv:1904.09751 (nucleus).
    """


@op
def gumbel_argmax(x: Tensor, keys: np.ndarray) -> Tensor:
    """Draw one token of each row with probability softmax(x), as a pure function of the row and its key.

    x: [L, V] f32; masked tokens are never drawn; a row needs one that is not.   keys: [L] uint64.  -> [L] int64.

    The draw is the argmax over tokens v of x[v] + g(v), a Gumbel race, lowest id first among equals, where
        h(v) = mix64(key + (v + 1) * 0x9E3779B97F4A7C15) >> 32              all in uint64, wrapping
        w(v) = (h(v) + 0.5) * 2**-32                                       exact in float64, in (0, 1)
        g(v) = -log(-log1p(-w(v)))                                         float64, from -3.14 to 22.88
        x[v] + g(v)                                                        float64
        mix64(z): z ^= z >> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >> 27; z *= 0x94D049BB133111EB; z ^= z >> 31
    so h(v) is output number v of the SplitMix64 generator started at `key`. Two implementations whose logarithms
    differ in the last bit disagree on a draw with probability near 1e-14.
    Source: SplitMix64: doi:10.1145/2660193.2660195; Gumbel race: arXiv:1411.0030.
    """


def _logits(rng: np.random.Generator, rows: int, vocab: int) -> np.ndarray:
    """Make logits with ties and masked entries: [rows, vocab] float32."""
    x = (rng.standard_normal((rows, vocab)) * 3).astype(np.float32)
    x[:, ::5] = np.round(x[:, ::5])
    x[:, 3] = -np.inf
    return x


def _pairs(rng: np.random.Generator, rows: int, vocab: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    flat = np.sort(rng.choice(rows * vocab, count, replace=False))
    return flat // vocab, flat % vocab


@row_argmax.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield Case("ties", {"x": np.array([[1, 3, 3], [2, 2, -np.inf]], np.float32)})
    yield Case("long rows", {"x": _logits(rng, 3, 5003)})


@row_logsumexp.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield Case("small", {"x": _logits(rng, 3, 7)})
    yield Case("long rows, large values", {"x": _logits(rng, 2, 5003) + 300})


@row_top_k.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    for k in (1, 5, 31, 64):
        yield Case(f"k {k} of 64", {"x": _logits(rng, 4, 64), "k": k})
    yield Case("all equal", {"x": np.zeros((2, 9), np.float32), "k": 4})


@row_gather.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield Case("two per row", {"x": _logits(rng, 3, 11), "ids": np.array([[0, 10], [3, 3], [5, 1]])})


@row_rank.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    x = _logits(rng, 3, 40)
    yield Case("values of the row", {"x": x, "values": x[:, [0, 5, 3]]})


@add_at.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    rows, ids = _pairs(rng, 3, 20, 12)
    values = rng.standard_normal(12).astype(np.float32)
    yield Case("12 of 60", {"x": _logits(rng, 3, 20), "rows": rows, "ids": ids, "values": values})


@fill_at.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    rows, ids = _pairs(rng, 3, 20, 12)
    yield Case("masks", {"x": _logits(rng, 3, 20), "rows": rows, "ids": ids, "value": -np.inf})


@keep_only.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield Case("rows 0 and 2", {"x": _logits(rng, 3, 9), "rows": np.array([0, 0, 2]), "ids": np.array([8, 1, 4])})


@put_row.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield Case("row 1", {"x": _logits(rng, 3, 9), "row": 1, "values": np.arange(9, dtype=np.float32)})


@penalize.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    rows, ids = _pairs(rng, 2, 30, 25)
    yield Case(
        "two rows",
        {
            "x": _logits(rng, 2, 30),
            "rows": rows,
            "ids": ids,
            "counts": rng.integers(0, 4, 25),
            "repetition": np.array([1.3, 0.7], np.float32),
            "frequency": np.array([0.25, -0.5], np.float32),
            "presence": np.array([-1, 0.5], np.float32),
        },
    )


@scale_rows.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield Case("one per row", {"x": _logits(rng, 3, 9), "factors": np.array([1, 0.5, 3], np.float32)})


@mask_min_p.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    yield Case(
        "rows 0 and 2",
        {"x": _logits(rng, 3, 50), "rows": np.array([0, 2]), "min_p": np.array([0.1, 1], np.float32)},
    )


@mask_top_k_top_p.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    for name, k, p in (("top-k", 5, 1.0), ("top-p", 0, 0.7), ("both", 20, 0.5), ("neither", 0, 1.0), ("one", 1, 1e-6)):
        args = {"x": _logits(rng, 3, 60), "rows": np.array([0, 2]), "top_k": np.array([k] * 2)}
        yield Case(name, args | {"top_p": np.array([p] * 2)})
    wide = {"x": _logits(rng, 1, 20011), "rows": np.array([0]), "top_k": np.array([0])}
    yield Case("a wide nucleus", wide | {"top_p": np.array([0.95])})


@gumbel_argmax.cases
def _(rng: np.random.Generator) -> Iterator[Case]:
    keys = rng.integers(0, 1 << 64, 64, np.uint64)
    yield Case("64 keys", {"x": _logits(rng, 64, 37), "keys": keys})
    yield Case("long rows", {"x": _logits(rng, 8, 20011), "keys": keys[:8]})
