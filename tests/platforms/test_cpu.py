"""The CPU platform: threads and memory from files below a root that the test writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from octavo.errors import ConfigError
from octavo.platforms.base import Platform
from octavo.platforms.cpu import CpuPlatform, parse_op_overrides
from octavo.utils.machine import Machine

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> None:
    """Write files below a root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")


def machine(root: Path, processors: int, files: dict[str, str] | None = None, *, smt: int = 1) -> Machine:
    """Make a machine of so many logical processors, `smt` to a core; siblings are half the numbers apart, as on x86."""
    cores = processors // smt
    for index in range(processors):
        siblings = sorted({index % cores + cores * way for way in range(smt)})
        write(root, {f"sys/devices/system/cpu/cpu{index}/topology/core_cpus_list": ",".join(map(str, siblings))})
    write(root, files or {})
    return Machine(root, frozenset(range(processors)))


def test_threads_are_the_allowed_processors(tmp_path: Path) -> None:
    assert machine(tmp_path, 6).threads().count == 6


def test_smt_siblings_count_once(tmp_path: Path) -> None:
    choice = machine(tmp_path, 8, smt=2).threads()
    assert choice.count == 4
    assert choice.reason == "8 logical processors allowed, 4 physical"


def test_affinity_limits_before_siblings_are_counted(tmp_path: Path) -> None:
    whole = machine(tmp_path, 8, smt=2)
    assert Machine(whole.root, frozenset({0, 4})).threads().count == 1, "both ways of one core"
    assert Machine(whole.root, frozenset({0, 1})).threads().count == 2
    assert Machine(whole.root, frozenset({3, 7, 2})).threads().count == 2


@pytest.mark.parametrize(
    ("quota", "count"), [("200000 100000", 2), ("150000 100000", 1), ("50000 100000", 1), ("max 100000", 8), ("", 8)]
)
def test_a_v2_quota_limits_threads(tmp_path: Path, quota: str, count: int) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": quota + "\n"}
    assert machine(tmp_path, 8, files).threads().count == count


def test_the_tightest_level_of_a_v2_tree_decides(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/kube/pod/me\n",
        "sys/fs/cgroup/kube/pod/me/cpu.max": "max 100000\n",
        "sys/fs/cgroup/kube/pod/cpu.max": "300000 100000\n",
        "sys/fs/cgroup/kube/cpu.max": "600000 100000\n",
    }
    assert machine(tmp_path, 8, files).cpu_quota() == 3.0


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_a_v1_quota_limits_threads(tmp_path: Path, mount: str) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/docker/abc\n0::/\n",
        f"sys/fs/cgroup/{mount}/docker/abc/cpu.cfs_quota_us": "250000\n",
        f"sys/fs/cgroup/{mount}/docker/abc/cpu.cfs_period_us": "100000\n",
        f"sys/fs/cgroup/{mount}/cpu.cfs_quota_us": "-1\n",
        f"sys/fs/cgroup/{mount}/cpu.cfs_period_us": "100000\n",
    }
    assert machine(tmp_path, 8, files).cpu_quota() == 2.5
    assert machine(tmp_path, 8, files).threads().count == 2


def test_a_path_of_the_host_falls_back_to_the_mount(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/../../host/scope\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"}
    assert machine(tmp_path, 8, files).cpu_quota() == 1.0


@pytest.mark.parametrize("text", ["0 100000", "100000 0", "x y", "-5 100000", "1"])
def test_a_senseless_quota_is_no_quota(tmp_path: Path, text: str) -> None:
    assert machine(tmp_path, 4, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": text}).cpu_quota() is None


def test_a_machine_without_these_files_still_has_a_thread(tmp_path: Path) -> None:
    empty = Machine(tmp_path, frozenset({0}))
    assert empty.threads().count == 1
    assert (empty.cpu_model(), empty.cpu_flags(), empty.huge_pages()) == ("unknown", frozenset(), "unknown")


MEMINFO = f"MemTotal: {16 * GIB // 1024} kB\nMemFree: {1 * GIB // 1024} kB\nMemAvailable: {10 * GIB // 1024} kB\n"


def test_free_memory_is_what_is_available_not_what_is_unused(tmp_path: Path) -> None:
    memory = machine(tmp_path, 1, {"proc/meminfo": MEMINFO}).memory()
    assert (memory.free_bytes, memory.total_bytes) == (10 * GIB, 16 * GIB)


def test_a_v2_limit_bounds_memory_and_file_cache_is_free(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/me\n",
        "sys/fs/cgroup/me/memory.max": str(4 * GIB),
        "sys/fs/cgroup/me/memory.current": str(3 * GIB),
        "sys/fs/cgroup/me/memory.stat": f"anon {1 * GIB}\ninactive_file {2 * GIB}\nactive_file 0\n",
    }
    memory = machine(tmp_path, 1, files).memory()
    assert (memory.free_bytes, memory.total_bytes) == (3 * GIB, 4 * GIB)
    assert "cgroup limit of 4.0 GiB" in memory.reason


def test_a_limit_that_is_looser_than_the_system_does_not_count(tmp_path: Path) -> None:
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": str(64 * GIB)}
    memory = machine(tmp_path, 1, files).memory()
    assert (memory.free_bytes, memory.total_bytes) == (10 * GIB, 16 * GIB)


def test_a_v1_limit_bounds_memory_and_its_infinity_does_not(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "4:memory:/docker/abc\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": str(2 * GIB),
        "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": str(GIB),
        "sys/fs/cgroup/memory/docker/abc/memory.stat": "total_inactive_file 0\n",
    }
    memory = machine(tmp_path, 1, files).memory()
    assert (memory.free_bytes, memory.total_bytes) == (1 * GIB, 2 * GIB)


def test_a_cgroup_over_its_limit_has_nothing_free(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.high": str(GIB),
        "sys/fs/cgroup/memory.current": str(2 * GIB),
    }
    assert machine(tmp_path, 1, files).memory().free_bytes == 0


def test_this_machine_agrees_with_psutil() -> None:
    here, memory = Machine(), psutil.virtual_memory()
    assert len(here.allowed_processors()) == len(psutil.Process().cpu_affinity())
    assert 1 <= here.threads().count <= len(here.allowed_processors())
    assert here.memory().total_bytes <= memory.total
    # Other processes take and free memory between the two readings.
    assert here.memory().free_bytes <= memory.available + GIB // 2


def test_flags_and_huge_pages_are_read(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 fma\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    }
    found = machine(tmp_path, 1, files)
    assert found.cpu_model() == "Some CPU"
    assert found.cpu_flags() == {"fpu", "avx2", "fma"}
    assert found.huge_pages() == "madvise"


def test_the_cpu_binds_every_op_with_a_reason() -> None:
    platform: Platform = CpuPlatform()
    ops = platform.bind_ops({"rms_norm": "torch"})
    assert {binding.backend for binding in ops.bindings} == {"torch"}
    assert all(binding.reason for binding in ops.bindings)


def test_importing_and_asking_the_platform_loads_no_torch() -> None:
    program = (
        "import sys; from octavo.platforms.cpu import CpuPlatform; p = CpuPlatform(); p.threads(); p.memory(); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize("overrides", [{"no_such_op": "torch"}, {"rms_norm": "no_such_backend"}])
def test_an_override_of_nothing_is_refused(overrides: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="no_such"):
        CpuPlatform().bind_ops(overrides)


def test_overrides_are_read_from_name_and_backend() -> None:
    assert parse_op_overrides(("rms_norm = torch", "silu=torch")) == {"rms_norm": "torch", "silu": "torch"}
    for wrong in (("rms_norm",), ("=torch",), ("rms_norm=",), ("a=x", "a=y")):
        with pytest.raises(ConfigError):
            parse_op_overrides(wrong)
