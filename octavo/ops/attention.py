"""The paged KV cache: allocation, writing, and attention over it."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.ops.op import Tensor, op

__all__ = ["new_kv_cache", "paged_attention", "plan_attention", "write_kv"]


@op
def new_kv_cache(num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: str) -> Tensor:
    """Allocate one layer's keys or values: [num_blocks, block_size, K, H], zero, committed as it is written.

    dtype: "f32" "bf16" "f16".
    """


@op
def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Write each token's key and value into its slot, in the cache's dtype.

    k, v: [T, K * H].   k_cache, v_cache: [num_blocks, block_size, K, H], mutated.
    slots: [T] int64, block id * block_size + offset.
    """


@op
def plan_attention(
    query_start: np.ndarray, seq_lens: np.ndarray, block_table: np.ndarray, block_size: int, window: int | None
) -> Any:
    """Prepare what paged_attention needs of a batch, once for all layers of a KV group.

    query_start: [B + 1] int, first token of each request in the batch; the last is T.
    seq_lens: [B] int, tokens of each request with this step's included; its queries are the last ones.
    block_table: [B, W] int, block ids; entries beyond a request's blocks, or wholly before its window, are not read.
    window: attention span in tokens, the query's own included, or None.
    """


@op
def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: Any, scale: float, softcap: float | None
) -> Tensor:
    """Attend causally from each query to its request's cached keys; K/V of this step is already written.

    q: [T, N * H].   k_cache, v_cache: [num_blocks, block_size, K, H]; N is a multiple of K.   plan: of plan_attention.
    scale: multiplies the scores.   softcap: cap * tanh(score / cap) before the mask, or None.
    Lanes outside a request never take part: stale values there, NaN included, cannot reach the result.
    Returns [T, N * H] in q's dtype; softmax in f32.   Source: arXiv:1706.03762, eq. 1; arXiv:2309.06180, section 4.1.
    """
