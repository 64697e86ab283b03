"""Parameter: a named place that checkpoint weights fill, possibly in several shards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from octavo.errors import CheckpointError
from octavo.ops.op import Ops, Tensor

__all__ = ["Parameter", "ParameterStore"]


class Parameter:
    """One tensor of the model: a float32 host buffer while loading, a tensor afterwards.

    shards: name -> rows of each part, in order along the first dimension; a plain parameter has one shard "".
    """

    def __init__(self, name: str, shape: tuple[int, ...], shards: Mapping[str, int] | None = None) -> None:
        self.name = name
        self.shape = shape
        self.shards: dict[str, tuple[int, int]] = {}
        start = 0
        for shard, rows in (shards or {"": shape[0]}).items():
            self.shards[shard] = (start, start + rows)
            start += rows
        assert start == shape[0], f"{name}: shards {shards} of {shape}"
        self.tensor: Tensor = None
        self._buffer: np.ndarray | None = None

    @property
    def num_elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    def destination(self, shard: str, shape: tuple[int, ...], source: str) -> np.ndarray:
        """Return the part of the buffer that a weight fills, allocating it on first use.

        Raises CheckpointError when the weight's shape is another.
        """
        start, stop = self.shards[shard]
        expected = (stop - start, *self.shape[1:])
        if shape != expected:
            raise CheckpointError(f"{source} has shape {shape}, but this model's configuration asks for {expected}")
        if self._buffer is None:
            self._buffer = np.empty(self.shape, np.float32)
        return self._buffer[start:stop]

    def finalize(self, ops: Ops, dtype: str) -> None:
        """Turn the filled buffer into a tensor of a dtype, and let the buffer go."""
        assert self._buffer is not None, f"{self.name} was never filled"
        self.tensor = ops.from_host(self._buffer, None if dtype == "f32" else dtype)
        self._buffer = None


class ParameterStore:
    """Every parameter of a model, by name, in the order the layers declared them."""

    def __init__(self) -> None:
        self._parameters: dict[str, Parameter] = {}

    def new(self, name: str, shape: tuple[int, ...], *, shards: Mapping[str, int] | None = None) -> Parameter:
        """Declare a parameter."""
        assert name not in self._parameters, f"parameter {name} is declared twice"
        parameter = self._parameters[name] = Parameter(name, shape, shards)
        return parameter

    def get(self, name: str) -> Parameter | None:
        """Return the parameter of a name, or None."""
        return self._parameters.get(name)

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._parameters.values())

    @property
    def num_elements(self) -> int:
        """How many numbers the model has."""
        return sum(parameter.num_elements for parameter in self)
