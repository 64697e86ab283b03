"""Choose an attention backend and say why the others lost."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from octavo.attention.backend import AttentionBackend, AttentionNeeds, Capabilities
from octavo.errors import ConfigError
from octavo.ops.op import Ops

__all__ = ["refusal", "select_backend"]

_NOT_BACKENDS = {"backend", "batch", "select"}
_LAST = "reference"  # tried when nothing faster fits


def refusal(capabilities: Capabilities, needs: AttentionNeeds) -> str | None:
    """Return why a backend cannot serve, or None when it can."""
    spec = needs.spec
    if needs.device not in capabilities.devices:
        return f"runs on {', '.join(sorted(capabilities.devices))}, not on {needs.device}"
    if spec.kind not in capabilities.kinds:
        return f"has no {spec.kind} attention"
    if spec.dtype not in capabilities.kv_dtypes:
        return f"stores {', '.join(sorted(capabilities.kv_dtypes))}, not {spec.dtype}"
    if capabilities.head_dims is not None and spec.head_dim not in capabilities.head_dims:
        return f"has no head dimension {spec.head_dim}"
    if needs.softcap and not capabilities.softcap:
        return "has no softcap"
    return None


def select_backend(ops: Ops, needs: list[AttentionNeeds]) -> tuple[AttentionBackend, str]:
    """Return the first backend (a file of this folder) that meets every need, and the reason.

    Raises ConfigError, with each candidate's refusal, when none does.
    """
    names = sorted({info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)])} - _NOT_BACKENDS)
    names.sort(key=lambda name: name == _LAST)
    refusals = []
    for name in names:
        module = importlib.import_module(f"octavo.attention.{name}")
        why = next((why for need in needs if (why := refusal(module.CAPABILITIES, need))), None)
        if why is None:
            return module.Backend(ops), f"{name}" + (f" ({'; '.join(refusals)})" if refusals else "")
        refusals.append(f"{name} {why}")
    raise ConfigError(f"no attention backend serves this model: {'; '.join(refusals)}")
