"""octavo: an LLM inference and serving engine, fast on the machine you have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.config.engine import EngineConfig
    from octavo.engine.async_engine import AsyncEngine
    from octavo.engine.outputs import CompletionOutput, RequestOutput
    from octavo.errors import OctavoError
    from octavo.llm import LLM
    from octavo.types import BeamSearchParams, FinishReason, Logprob, OutputKind, RepetitionDetection, SamplingParams
    from octavo.version import __version__

__all__ = [
    "LLM",
    "AsyncEngine",
    "BeamSearchParams",
    "CompletionOutput",
    "EngineConfig",
    "FinishReason",
    "Logprob",
    "OctavoError",
    "OutputKind",
    "RepetitionDetection",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]

_HOMES = {
    "LLM": "llm",
    "AsyncEngine": "engine.async_engine",
    "CompletionOutput": "engine.outputs",
    "EngineConfig": "config.engine",
    "OctavoError": "errors",
    "RequestOutput": "engine.outputs",
    "__version__": "version",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import octavo` costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"octavo.{_HOMES.get(name, 'types')}"), name)
