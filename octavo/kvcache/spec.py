"""What a layer keeps per token, and how layers share block tables."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DTYPE_BYTES", "KVCacheSpec", "KVGroup"]

DTYPE_BYTES = {"f32": 4, "bf16": 2, "f16": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class KVCacheSpec:
    """The KV cache of one layer: its kind, shape and dtype. `block_size` and `window` are in tokens."""

    kind: str  # "full" | "sliding_window"
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: str  # a key of DTYPE_BYTES
    window: int | None = None

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of one layer, keys and values."""
        return 2 * self.block_size * self.num_kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share one block table: same spec, ids into the model's attention layers."""

    spec: KVCacheSpec
    layers: tuple[int, ...]
