"""Report what octavo sees of this machine, what it chooses and why, with advice."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from octavo.errors import ModelNotFoundError
from octavo.hf.hub import hub_cache, resolve_model
from octavo.utils.machine import Machine, MemoryInfo, ThreadChoice
from octavo.version import __version__

__all__ = ["Report", "add_arguments", "advise", "examine", "render", "run"]

# The flags that kernels look for, by the kernel's names.
ISA_FLAGS = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve", "sve2"),
)
NEEDED = ("numpy", "tokenizers", "jinja2", "msgspec", "tqdm", "torch")
OPTIONAL = {"huggingface_hub": "downloads models by name: pip install 'octavo[hub]'"}
# Variables that other libraries read and that change how fast octavo is or where it looks.
WATCHED = (
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "MKL_NUM_THREADS",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "HF_HOME",
    "HF_HUB_OFFLINE",
)
LOW_MEMORY_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What was found. Sizes are bytes."""

    version: str
    python: str
    system: str
    cpu: str
    isa: tuple[str, ...]
    logical_processors: int
    physical_cores: int
    cpu_quota: float | None
    threads: ThreadChoice
    memory: MemoryInfo
    huge_pages: str
    packages: dict[str, str | None]
    native_library: str
    demo_model: str | None
    demo_model_advice: str
    hub_cache: str
    cached_models: int
    environment: dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `octavo doctor`."""
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the report and advice. Returns 0; advice is no failure."""
    report = examine(Machine(), os.environ)
    advice = list(advise(report))
    if args.json:
        print(json.dumps({**asdict(report), "advice": advice}, indent=2))
    else:
        print(render(report, advice))
    return 0


def examine(machine: Machine, environ: Mapping[str, str]) -> Report:
    """Look at the machine, the installed packages and the models. Imports none of those packages."""
    flags = machine.cpu_flags()
    demo, demo_advice = _demo_model()
    cache = hub_cache()
    return Report(
        version=__version__,
        python=f"{platform.python_version()} ({sys.executable})",
        system=platform.platform(),
        cpu=machine.cpu_model(),
        isa=tuple(name for name in ISA_FLAGS if name in flags),
        logical_processors=len(machine.allowed_processors()),
        physical_cores=machine.physical_cores(),
        cpu_quota=machine.cpu_quota(),
        threads=machine.threads(),
        memory=machine.memory(),
        huge_pages=machine.huge_pages(),
        packages={name: _installed(name) for name in (*NEEDED, *OPTIONAL)},
        native_library="not built yet: this version computes with torch",
        demo_model=demo,
        demo_model_advice=demo_advice,
        hub_cache=str(cache),
        cached_models=len(list(cache.glob("models--*"))),
        environment={name: environ[name] for name in WATCHED if name in environ},
    )


def _installed(package: str) -> str | None:
    """Return a package's version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _demo_model() -> tuple[str | None, str]:
    """Return the demo model's path, or None and what to do."""
    try:
        return str(resolve_model(None)), ""
    except ModelNotFoundError as error:
        return None, str(error)


def advise(report: Report) -> Iterator[str]:
    """Yield what could be better, with what to do."""
    for name in NEEDED:
        if report.packages[name] is None:
            yield f"{name} is not installed and is needed: pip install {name}"
    for name, use in OPTIONAL.items():
        if report.packages[name] is None:
            yield f"{name} is not installed; it {use}"
    if report.demo_model is None:
        yield report.demo_model_advice
    if report.cpu_quota is not None and report.cpu_quota != int(report.cpu_quota):
        yield (
            f"the cgroup quota of {report.cpu_quota:g} processors is not whole, so {report.threads.count} "
            "thread(s) are used; a whole quota wastes nothing"
        )
    threads = report.environment.get("OMP_NUM_THREADS")
    if threads is not None and threads != str(report.threads.count):
        yield f"OMP_NUM_THREADS={threads}, but octavo uses {report.threads.count} thread(s); set --threads instead"
    if report.memory.free_bytes < LOW_MEMORY_BYTES:
        yield f"only {_gib(report.memory.free_bytes)} of memory is free; a small model and --max-model-len help"
    if report.huge_pages == "never":
        yield "transparent huge pages are off; with madvise or always, large models read memory faster"
    if "sse4_2" in report.isa and "avx2" not in report.isa:
        yield "this processor, or the virtual machine's setting, lacks AVX2; computing will be slow"


def _gib(size: int) -> str:
    """Write bytes in GiB."""
    return f"{size / 2**30:.1f} GiB"


def render(report: Report, advice: list[str]) -> str:
    """Return the report as text."""
    memory = report.memory
    quota = "none" if report.cpu_quota is None else f"{report.cpu_quota:g} processors"
    packages = ", ".join(f"{name} {version or '(missing)'}" for name, version in report.packages.items())
    rows = {
        "octavo": report.version,
        "python": report.python,
        "system": report.system,
        "processor": report.cpu,
        "instructions": " ".join(report.isa) or "unknown",
        "threads": f"{report.threads.count} ({report.threads.reason})",
        "cgroup quota": quota,
        "memory": f"{_gib(memory.free_bytes)} free of {_gib(memory.total_bytes)} ({memory.reason})",
        "huge pages": report.huge_pages,
        "packages": packages,
        "native library": report.native_library,
        "demo model": report.demo_model or "not installed",
        "hub cache": f"{report.hub_cache} ({report.cached_models} models)",
        "environment": " ".join(f"{name}={value}" for name, value in report.environment.items()) or "nothing of note",
    }
    width = max(map(len, rows))
    lines = [f"{name:<{width}}  {value}" for name, value in rows.items()]
    lines += ["", "advice:", *(f"- {line}" for line in advice)] if advice else ["", "advice: none, all is well"]
    return "\n".join(lines)
