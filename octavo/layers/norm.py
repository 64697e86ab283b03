"""Normalisation layers."""

from __future__ import annotations

from octavo.layers.parameter import ParameterStore
from octavo.ops.op import Ops, Tensor

__all__ = ["HeadRMSNorm", "RMSNorm"]


class RMSNorm:
    """Root mean square norm over rows.   x: [T, D] -> [T, D]."""

    def __init__(self, ops: Ops, store: ParameterStore, name: str, dim: int, eps: float) -> None:
        self.ops = ops
        self.eps = eps
        self.weight = store.new(f"{name}.weight", (dim,))

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise.   x: [T, D]."""
        return self.ops.rms_norm(x, self.weight.tensor, self.eps)


class HeadRMSNorm(RMSNorm):
    """Root mean square norm over each head of a row.   x: [T, N * H] -> [T, N * H]; dim is H."""

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise each head.   x: [T, N * H]."""
        return self.ops.head_rms_norm(x, self.weight.tensor, self.eps)
