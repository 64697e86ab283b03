"""Paged attention equals a float64 softmax over each query's visible keys, whatever the batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from octavo.ops import op as op_module
from octavo.ops.torch import attention as reference

op_module.load("torch")
OPS = op_module.bind(["torch"])
BLOCK = 4


@dataclass
class Paged:
    """Requests with random keys, scattered over blocks whose unused lanes hold NaN."""

    keys: list[np.ndarray]  # per request [S, K, H]
    values: list[np.ndarray]
    k_cache: object
    v_cache: object
    table: np.ndarray


def _page(
    rng: np.random.Generator, seq_lens: list[int], heads: int, head_dim: int, *, dtype: str, consecutive: bool
) -> Paged:
    widths = [-(-length // BLOCK) for length in seq_lens]
    num_blocks = sum(widths) + 5
    ids = np.arange(1, num_blocks) if consecutive else rng.permutation(np.arange(1, num_blocks))
    table = np.zeros((len(seq_lens), max(widths) + 2), np.int32)
    caches = [OPS.new_kv_cache(num_blocks, BLOCK, heads, head_dim, dtype) for _ in range(2)]
    for cache in caches:
        cache[1:] = float("nan")
    data: list[list[np.ndarray]] = [[], []]
    for b, (length, width) in enumerate(zip(seq_lens, widths)):
        table[b, :width], ids = ids[:width], ids[width:]
        slots = table[b, np.arange(length) // BLOCK].astype(np.int64) * BLOCK + np.arange(length) % BLOCK
        rows = [rng.standard_normal((length, heads * head_dim), dtype=np.float32) for _ in range(2)]
        OPS.write_kv(*(OPS.from_host(x) for x in rows), *caches, OPS.from_host(slots))
        for x, kept, cache in zip(rows, data, caches):
            rounded = OPS.to_host(OPS.from_host(x, dtype).float())
            kept.append(rounded.reshape(length, heads, head_dim).astype(np.float64))
            assert cache.shape == (num_blocks, BLOCK, heads, head_dim)
    return Paged(data[0], data[1], caches[0], caches[1], table)


def _attend(
    q: np.ndarray, paged: Paged, query_lens: list[int], scale: float, softcap: float | None, window: int | None
) -> np.ndarray:
    """Compute attention in float64, one query at a time.   q: [T, N, H]."""
    out, t = np.empty(q.shape), 0
    for keys, values, query_len in zip(paged.keys, paged.values, query_lens):
        for position in range(len(keys) - query_len, len(keys)):
            first = max(0, position + 1 - window) if window else 0
            for head in range(q.shape[1]):
                kv = head // (q.shape[1] // keys.shape[1])
                scores = keys[first : position + 1, kv] @ q[t, head].astype(np.float64) * scale
                if softcap:
                    scores = softcap * np.tanh(scores / softcap)
                weights = np.exp(scores - scores.max())
                out[t, head] = weights @ values[first : position + 1, kv] / weights.sum()
            t += 1
    return out


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("window", [None, 1, 5, 100])
@pytest.mark.parametrize(
    ("seq_lens", "query_lens"),
    [
        ([9], [1]),
        ([9], [9]),
        ([13], [6]),
        ([5, 17, 1, 16, 33], [1, 1, 1, 1, 1]),
        ([5, 17, 12, 16, 3, 8], [1, 17, 4, 1, 3, 1]),
    ],
)
@pytest.mark.parametrize("consecutive", [False, True])
def test_attention_equals_softmax_over_visible_keys(
    seq_lens: list[int], query_lens: list[int], window: int | None, softcap: float | None, dtype: str, consecutive: bool
) -> None:
    rng = np.random.default_rng(3)
    heads, group, head_dim = 2, 3, 8
    paged = _page(rng, seq_lens, heads, head_dim, dtype=dtype, consecutive=consecutive)
    if window:  # expired blocks are the null block in a real table
        for b, (length, query_len) in enumerate(zip(seq_lens, query_lens)):
            paged.table[b, : max(0, length - query_len + 1 - window) // BLOCK] = 0
    start = np.concatenate([[0], np.cumsum(query_lens)])
    q = rng.standard_normal((start[-1], heads * group * head_dim), dtype=np.float32)
    plan = OPS.plan_attention(start, np.array(seq_lens), paged.table, BLOCK, window)
    result = OPS.to_host(OPS.paged_attention(OPS.from_host(q), paged.k_cache, paged.v_cache, plan, 0.3, softcap))
    exact = _attend(q.reshape(len(q), -1, head_dim), paged, query_lens, 0.3, softcap, window)
    # float32 arithmetic over at most 33 keys of unit scale
    np.testing.assert_allclose(result.reshape(exact.shape), exact, rtol=1e-5, atol=1e-5)


def test_long_chunk_is_tiled_and_equals_one_query_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "QUERY_TILE", 7)
    rng = np.random.default_rng(4)
    paged = _page(rng, [40, 31], 1, 8, dtype="f32", consecutive=False)
    for window in (None, 9):
        query_lens = [33, 31]
        q = rng.standard_normal((64, 16), dtype=np.float32)
        plan = OPS.plan_attention(np.array([0, 33, 64]), np.array([40, 31]), paged.table, BLOCK, window)
        assert max(tile.stop - tile.start for chunk in plan.chunks for tile in chunk.tiles) == 7
        result = OPS.to_host(OPS.paged_attention(OPS.from_host(q), paged.k_cache, paged.v_cache, plan, 0.3, None))
        exact = _attend(q.reshape(64, 2, 8), paged, query_lens, 0.3, None, window)
        np.testing.assert_allclose(result.reshape(exact.shape), exact, rtol=1e-5, atol=1e-5)
