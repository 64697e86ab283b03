"""The CPU: threads from cgroup quota, affinity and physical cores; memory as the cgroup sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from octavo.errors import ConfigError
from octavo.ops.op import Ops, bind, load
from octavo.utils.machine import Machine, MemoryInfo, ThreadChoice

__all__ = ["CpuPlatform", "parse_op_overrides"]


class CpuPlatform:
    """This machine's processors and memory. Kernels are imported when ops are bound, not before."""

    name = "cpu"
    default_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    backends = ("torch",)

    def __init__(self, machine: Machine | None = None) -> None:
        self.machine = machine or Machine()

    def threads(self) -> ThreadChoice:
        """Choose one thread per physical core that affinity and cgroup quota allow."""
        return self.machine.threads()

    def memory(self) -> MemoryInfo:
        """Measure free and total memory in bytes, within the cgroup's limit."""
        return self.machine.memory()

    def bind_ops(self, overrides: Mapping[str, str]) -> Ops:
        """Import the backends in use and bind every op.

        Raises ConfigError for an override that names no op or no implementation of it.
        """
        for backend in dict.fromkeys((*self.backends, *overrides.values())):
            load(backend)
        return bind(self.backends, overrides)


def parse_op_overrides(entries: tuple[str, ...]) -> dict[str, str]:
    """Read the configuration field `op`: "name=backend" each.

    Raises ConfigError for another form and for an op named twice with different backends.
    """
    overrides: dict[str, str] = {}
    for entry in entries:
        name, equals, backend = (part.strip() for part in entry.partition("="))
        if not (name and equals and backend):
            raise ConfigError(f"op={entry!r} is not of the form name=backend, as rms_norm=torch", field="op")
        if overrides.setdefault(name, backend) != backend:
            raise ConfigError(f"op {name} is given two backends: {overrides[name]} and {backend}", field="op")
    return overrides
