"""Linear layers: one matrix, or several merged into one."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.layers.parameter import ParameterStore
from octavo.ops.op import Ops, Tensor

__all__ = ["Linear"]


class Linear:
    """y = x @ weight.T + bias.   x: [T, K] -> [T, N].

    shards: rows of each merged projection, by name ({"q": .., "k": .., "v": ..}); their outputs lie side by side.
    """

    def __init__(
        self,
        ops: Ops,
        store: ParameterStore,
        name: str,
        in_features: int,
        shards: Mapping[str, int],
        *,
        bias: bool = False,
    ) -> None:
        rows = sum(shards.values())
        self.ops = ops
        self.sizes = tuple(shards.values())
        self.weight = store.new(f"{name}.weight", (rows, in_features), shards=shards)
        self.bias = store.new(f"{name}.bias", (rows,), shards=shards) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply.   x: [T, K] -> [T, N]."""
        return self.ops.linear(x, self.weight.tensor, None if self.bias is None else self.bias.tensor)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Multiply and return each shard's columns.   x: [T, K] -> [T, rows] each."""
        return self.ops.split(self(x), self.sizes)
