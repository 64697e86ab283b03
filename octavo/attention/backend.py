"""AttentionBackend: how attention over a paged cache is computed, and what each way can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from octavo.kvcache.spec import KVCacheSpec
from octavo.ops.op import Tensor

__all__ = ["AttentionBackend", "AttentionNeeds", "Capabilities", "KVTensors"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What a backend can do; None is "any"."""

    devices: frozenset[str]
    kv_dtypes: frozenset[str]
    kinds: frozenset[str]
    head_dims: frozenset[int] | None = None
    softcap: bool = False
    deterministic: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionNeeds:
    """What a model's layers need of a backend."""

    device: str
    spec: KVCacheSpec
    softcap: bool


@dataclass(frozen=True, slots=True)
class KVTensors:
    """One layer's cache: keys and values, [num_blocks, block_size, K, H] each."""

    k: Tensor
    v: Tensor


class AttentionBackend(Protocol):
    """One way to compute paged attention."""

    def allocate(self, spec: KVCacheSpec, num_blocks: int) -> KVTensors:
        """Allocate one layer's cache, lazily committed."""
        ...

    def plan(self, query_start: np.ndarray, seq_lens: np.ndarray, block_table: np.ndarray, spec: KVCacheSpec) -> Any:
        """Prepare a batch once for all layers of a group (arguments as in ops.plan_attention)."""
        ...

    def forward(self, q: Tensor, kv: KVTensors, plan: Any, *, scale: float, softcap: float | None) -> Tensor:
        """Attend; K/V of this step is already written.   q: [T, N * H] -> [T, N * H]."""
        ...
