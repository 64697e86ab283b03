"""Platform: what a kind of device tells the engine, and how it binds ops. A platform is a file of this folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from octavo.ops.op import Ops
from octavo.utils.machine import MemoryInfo, ThreadChoice

__all__ = ["Platform"]


class Platform(Protocol):
    """Facts about a device, measured when asked for, and the choice of kernels for it."""

    @property
    def name(self) -> str:
        """Return the platform's name, which is its file's."""
        ...

    @property
    def default_dtype(self) -> Literal["float32", "bfloat16", "float16"]:
        """Return the compute type that "auto" means here: "float32", "bfloat16" or "float16"."""
        ...

    @property
    def backends(self) -> tuple[str, ...]:
        """Return op backends in the order of preference."""
        ...

    def threads(self) -> ThreadChoice:
        """Choose how many compute threads to use."""
        ...

    def memory(self) -> MemoryInfo:
        """Measure the memory that weights and KV cache share."""
        ...

    def bind_ops(self, overrides: Mapping[str, str]) -> Ops:
        """Bind every op once; `overrides` maps an op's name to the backend to use for it.

        Raises ConfigError for an override that names no op or no implementation of it.
        """
        ...
