"""What a model file defines, and how it is found.

octavo/models/<model_type>.py has:
    config_from_hf(hf: dict) -> Config        from a config.json (or a GGUF's metadata turned into one)
    Model(config, *, ops, max_length)         the model, its parameters empty
    WEIGHTS: WeightMap                        checkpoint tensor names -> parameters, for safetensors
    GGUF: GGUFMap | None                      the same for GGUF, with its metadata keys
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from octavo.attention.batch import ForwardBatch
from octavo.errors import UnsupportedModelError
from octavo.layers.attention import Attention
from octavo.layers.parameter import ParameterStore
from octavo.ops.op import Tensor

__all__ = ["CausalLM", "GGUFMap", "ModelConfigLike", "To", "WeightMap", "find_gguf_model", "find_model"]

# transforms run in place of a plain copy: (decoded float32 weight, config) -> array of the parameter's shard shape
Transform = Callable[[np.ndarray, Any], np.ndarray]


class ModelConfigLike(Protocol):
    """What the engine asks of any model's configuration."""

    vocab_size: int
    max_position: int
    num_layers: int


class CausalLM(Protocol):
    """A decoder that the worker can run."""

    config: ModelConfigLike
    parameters: ParameterStore
    attention_layers: tuple[Attention, ...]

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states after the final norm, [T, D]."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits of hidden rows: [L, D] -> [L, V]."""
        ...


@dataclass(frozen=True, slots=True)
class To:
    """Where a checkpoint tensor goes: parameter name (with {i} for the layer), shard, and a transform if needed."""

    parameter: str
    shard: str = ""
    transform: Transform | None = None


@dataclass(frozen=True, kw_only=True)
class WeightMap:
    """Checkpoint tensor names -> parameters. "{i}" stands for a layer number on both sides.

    A tensor of several targets is cut along its rows in the order given.
    ignored: name patterns (full regex match) that hold no weight of ours.
    """

    targets: Mapping[str, To | tuple[To, ...]]
    ignored: tuple[str, ...] = ()

    def find(self, name: str) -> tuple[To, ...] | None:
        """Return the targets of a checkpoint tensor with the layer number filled in, or None."""
        match = re.search(r"\.(\d+)\.", name)
        key = name if match is None else f"{name[: match.start(1)]}{{i}}{name[match.end(1) :]}"
        found = self.targets.get(key)
        if found is None:
            return None
        many = found if isinstance(found, tuple) else (found,)
        layer = "" if match is None else match.group(1)
        return tuple(To(to.parameter.replace("{i}", layer), to.shard, to.transform) for to in many)

    def is_ignored(self, name: str) -> bool:
        """Return whether a checkpoint tensor is known to hold no weight of ours."""
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)


@dataclass(frozen=True, kw_only=True)
class GGUFMap:
    """How a GGUF of this model is read: general.architecture, metadata -> config.json keys, tensor names.

    hf_config: (metadata, tensor reader) -> the dict that config_from_hf takes.
    """

    architecture: str
    hf_config: Callable[[Mapping[str, Any], Callable[[str], np.ndarray | None]], dict[str, Any]]
    weights: WeightMap


_ALIASES: Mapping[str, str] = {"gemma3": "gemma3_text", "ministral": "mistral"}
_NOT_MODELS = {"base", "decoder", "gguf_keys"}


def _names() -> list[str]:
    return sorted({info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)])} - _NOT_MODELS)


def find_model(model_type: str) -> ModuleType:
    """Return the model file of a Hugging Face model_type.

    Raises UnsupportedModelError, with what is supported, when there is none.
    """
    name = _ALIASES.get(model_type, model_type)
    if name not in _names():
        raise UnsupportedModelError(f"model type {model_type!r} is not supported; supported: {', '.join(_names())}")
    return importlib.import_module(f"octavo.models.{name}")


def find_gguf_model(architecture: str) -> ModuleType:
    """Return the model file whose GGUF map has this general.architecture.

    Raises UnsupportedModelError, with what is supported, when there is none.
    """
    known = {}
    for name in _names():
        module = importlib.import_module(f"octavo.models.{name}")
        if module.GGUF is not None:
            known[module.GGUF.architecture] = module
    if architecture not in known:
        raise UnsupportedModelError(
            f"GGUF architecture {architecture!r} is not supported; supported: {', '.join(sorted(known))}"
        )
    return known[architecture]
