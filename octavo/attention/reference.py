"""Attention through the ops contract: right everywhere, fast where the bound ops are."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.attention.backend import Capabilities, KVTensors
from octavo.kvcache.spec import KVCacheSpec
from octavo.ops.op import Ops, Tensor

__all__ = ["CAPABILITIES", "Backend"]

CAPABILITIES = Capabilities(
    devices=frozenset({"cpu", "cuda"}),
    kv_dtypes=frozenset({"f32", "bf16", "f16"}),
    kinds=frozenset({"full", "sliding_window"}),
    softcap=True,
)


class Backend:
    """Attention by ops.plan_attention and ops.paged_attention."""

    def __init__(self, ops: Ops) -> None:
        self.ops = ops

    def allocate(self, spec: KVCacheSpec, num_blocks: int) -> KVTensors:
        """Allocate one layer's keys and values."""
        shape = (num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim)
        return KVTensors(self.ops.new_kv_cache(*shape, spec.dtype), self.ops.new_kv_cache(*shape, spec.dtype))

    def plan(self, query_start: np.ndarray, seq_lens: np.ndarray, block_table: np.ndarray, spec: KVCacheSpec) -> Any:
        """Prepare a batch once for all layers of a group; shapes as in ops.plan_attention."""
        return self.ops.plan_attention(query_start, seq_lens, block_table, spec.block_size, spec.window)

    def forward(self, q: Tensor, kv: KVTensors, plan: Any, *, scale: float, softcap: float | None) -> Tensor:
        """Attend from q: [T, N * H] to the cached keys."""
        return self.ops.paged_attention(q, kv.k, kv.v, plan, scale, softcap)
