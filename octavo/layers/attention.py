"""The attention layer: rope, write keys and values, attend over the paged cache."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.attention.backend import AttentionBackend, KVTensors
from octavo.attention.batch import ForwardBatch
from octavo.kvcache.spec import KVCacheSpec
from octavo.ops.op import Ops, Tensor

__all__ = ["Attention"]


class Attention:
    """Attention of one layer. Its cache and backend are bound after loading.

    rope: index of its rotary embedding among the model's.   scale: multiplies the scores.
    window: span in tokens, or None for full attention.
    """

    def __init__(
        self,
        ops: Ops,
        *,
        num_kv_heads: int,
        head_dim: int,
        rope: int,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> None:
        self.ops = ops
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.rope = rope
        self.scale = scale
        self.window = window
        self.softcap = softcap
        self._group = 0
        self._kv: KVTensors | None = None
        self._backend: AttentionBackend | None = None

    def kv_spec(self, block_size: int, dtype: str) -> KVCacheSpec:
        """Return what this layer keeps per token."""
        return KVCacheSpec(
            kind="sliding_window" if self.window else "full",
            block_size=block_size,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype=dtype,
            window=self.window,
        )

    def bind(self, group: int, kv: KVTensors, backend: AttentionBackend) -> None:
        """Give the layer its KV group, cache tensors and backend."""
        self._group, self._kv, self._backend = group, kv, backend

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch, angles: Sequence[Tensor]) -> Tensor:
        """Attend.   q: [T, N * H].   k, v: [T, K * H].   angles: of each rotary embedding, [T, R].

        Returns [T, N * H]; the cache is mutated.
        """
        assert self._kv is not None and self._backend is not None, "the KV cache is not bound"
        meta = batch.attn[self._group]
        q = self.ops.rope(q, angles[self.rope], self.head_dim)
        k = self.ops.rope(k, angles[self.rope], self.head_dim)
        self.ops.write_kv(k, v, self._kv.k, self._kv.v, meta.slots)
        return self._backend.forward(q, self._kv, meta.plan, scale=self.scale, softcap=self.softcap)
