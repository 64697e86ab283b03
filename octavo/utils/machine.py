"""What Linux says of this machine: processors, cgroup limits, memory. Reads text files below a root that tests may set.

Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1, sysfs cpu topology, /proc/meminfo.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Machine", "MemoryInfo", "ThreadChoice"]

_UNLIMITED_BYTES = 1 << 60  # cgroup v1 writes "no limit" as a number near 2**63


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """How many compute threads to use, and why."""

    count: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryInfo:
    """Memory in bytes: what this process may still take, and the most it may ever hold; and which limit decides."""

    free_bytes: int
    total_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Machine:
    """The files of one machine.

    root: "/" or a test's folder.   allowed: logical processors this process may run on; None asks the kernel.
    """

    root: Path = Path("/")
    allowed: frozenset[int] | None = None

    def allowed_processors(self) -> frozenset[int]:
        """Return the logical processors of the affinity mask."""
        if self.allowed is not None:
            return self.allowed
        try:
            return frozenset(os.sched_getaffinity(0))
        except AttributeError:  # not on Linux
            return frozenset(range(os.cpu_count() or 1))

    def physical_cores(self) -> int:
        """Return how many physical cores the allowed processors lie on: SMT siblings count once."""
        folder = self.root / "sys/devices/system/cpu"
        cores = set()
        for processor in self.allowed_processors():
            topology = folder / f"cpu{processor}/topology"
            siblings = _read(topology / "core_cpus_list") or _read(topology / "thread_siblings_list")
            cores.add(siblings or f"cpu{processor}")
        return max(1, len(cores))

    def cpu_quota(self) -> float | None:
        """Return the cgroup CPU limit in processors, the tightest of all levels, or None without a limit."""
        quotas = [quota for folder in self._cgroups("cpu") if (quota := _quota(folder)) is not None]
        return min(quotas, default=None)

    def threads(self) -> ThreadChoice:
        """Choose the number of compute threads: one per physical core, within affinity and quota, at least one."""
        logical, cores, quota = len(self.allowed_processors()), self.physical_cores(), self.cpu_quota()
        parts = [f"{logical} logical processor{'s' * (logical != 1)} allowed", f"{cores} physical"]
        count = min(logical, cores)
        if quota is not None:
            parts.append(f"cgroup quota {quota:g}")
            count = min(count, max(1, int(quota)))
        return ThreadChoice(max(1, count), ", ".join(parts))

    def memory(self) -> MemoryInfo:
        """Measure memory: the system's, and each cgroup's limit with its reclaimable file cache counted as free."""
        info = self._meminfo()
        total = info.get("MemTotal", 0) or _sysconf_bytes("SC_PHYS_PAGES")
        free = info.get("MemAvailable", 0) or info.get("MemFree", 0) or _sysconf_bytes("SC_AVPHYS_PAGES")
        reason = "what the system has available"
        for folder in self._cgroups("memory"):
            limit, used = _memory_limit(folder)
            if limit is None:
                continue
            total = min(total, limit)
            left = max(0, limit - used)
            if left < free:
                free, reason = left, f"the cgroup limit of {limit / 2**30:.1f} GiB"
        return MemoryInfo(free_bytes=free, total_bytes=total, reason=reason)

    def cpu_model(self) -> str:
        """Return the processor's name, or "unknown"."""
        for key, value in self._cpuinfo():
            if key in ("model name", "Model", "cpu model"):
                return value
        return "unknown"

    def cpu_flags(self) -> frozenset[str]:
        """Return the instruction set flags as the kernel names them."""
        for key, value in self._cpuinfo():
            if key in ("flags", "Features"):
                return frozenset(value.split())
        return frozenset()

    def huge_pages(self) -> str:
        """Return the transparent huge page mode: always, madvise, never, or unknown."""
        text = _read(self.root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
        return text.partition("[")[2].partition("]")[0] or "unknown"

    def _cpuinfo(self) -> Iterator[tuple[str, str]]:
        """Yield key and value of each line of /proc/cpuinfo."""
        for line in (_read(self.root / "proc/cpuinfo") or "").splitlines():
            key, colon, value = line.partition(":")
            if colon:
                yield key.strip(), value.strip()

    def _meminfo(self) -> dict[str, int]:
        """Return /proc/meminfo in bytes."""
        sizes = {}
        for line in (_read(self.root / "proc/meminfo") or "").splitlines():
            key, _, value = line.partition(":")
            parts = value.split()
            if len(parts) == 2 and parts[0].isdigit() and parts[1] == "kB":
                sizes[key] = int(parts[0]) * 1024
        return sizes

    def _cgroups(self, controller: str) -> Iterator[Path]:
        """Yield the cgroup folders whose limits bind this process, inner first: v2, and v1 of one controller.

        Inside a container the path may be the host's, which is not mounted: then only the mount's root is found.
        """
        mount = self.root / "sys/fs/cgroup"
        for line in (_read(self.root / "proc/self/cgroup") or "").splitlines():
            _, _, rest = line.partition(":")
            names, _, path = rest.partition(":")
            if not names:
                mounts = [mount, mount / "unified"]
            elif controller in names.split(","):
                mounts = [mount / names, mount / controller]
            else:
                continue
            for base in mounts:
                folder = base / path.lstrip("/")
                while folder != base and base in folder.parents:
                    yield folder
                    folder = folder.parent
                yield base


def _read(path: Path) -> str | None:
    """Read a small text file, or return None if it cannot be read: a kernel may lack any of them."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20).strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    """Read a file with one whole number; None for "max", for nonsense and for no file."""
    text = _read(path)
    return int(text) if text and text.lstrip("-").isdigit() else None


def _quota(folder: Path) -> float | None:
    """Read a CPU limit in processors: cpu.max (v2) or cpu.cfs_quota_us over cpu.cfs_period_us (v1)."""
    parts = (_read(folder / "cpu.max") or "").split()
    if len(parts) == 2 and all(part.isdigit() and int(part) > 0 for part in parts):
        return int(parts[0]) / int(parts[1])
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    if quota is None or period is None or quota <= 0 or period <= 0:
        return None
    return quota / period


def _memory_limit(folder: Path) -> tuple[int | None, int]:
    """Read a memory limit and what is used of it, in bytes: v2 names, then v1 names. No limit: (None, 0)."""
    limits = [_number(folder / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes")]
    known = [limit for limit in limits if limit is not None and 0 < limit < _UNLIMITED_BYTES]
    if not known:
        return None, 0
    used = _number(folder / "memory.current")
    if used is None:
        used = _number(folder / "memory.usage_in_bytes") or 0
    for line in (_read(folder / "memory.stat") or "").splitlines():
        key, _, value = line.partition(" ")
        if key in ("inactive_file", "total_inactive_file") and value.isdigit():
            return min(known), max(0, used - int(value))
    return min(known), used


def _sysconf_bytes(name: str) -> int:
    """Return a page count of sysconf in bytes, or 0 where it has no such name."""
    try:
        return max(0, os.sysconf(name)) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0
