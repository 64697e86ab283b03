"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and windows on its upper layers.   Source: arXiv:2407.10671."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.models import llama
from octavo.models.base import GGUFMap, WeightMap
from octavo.models.decoder import Decoder, DecoderConfig, hf_weights, whole
from octavo.models.gguf_keys import TensorReader, gguf_config, gguf_weights

__all__ = ["GGUF", "WEIGHTS", "Model", "config_from_hf", "layer_windows"]

Model = Decoder


def layer_windows(hf: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
    """Return each layer's window: layer_types where given, else the layers from max_window_layers on, when enabled."""
    window = hf.get("sliding_window") if hf.get("use_sliding_window") else None
    if window is None:
        return (None,) * num_layers
    size, types = whole(hf, "sliding_window"), hf.get("layer_types")
    if types is not None:
        return tuple(size if kind == "sliding_attention" else None for kind in types)
    first = int(hf.get("max_window_layers") or 0)
    return tuple(size if index >= first else None for index in range(num_layers))


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """Read a config.json (errors as in llama.config_from_hf)."""
    config = llama.config_from_hf({**hf, "sliding_window": None})
    return replace(config, qkv_bias=True, o_bias=False, windows=layer_windows(hf, config.num_layers))


def _hf_config(metadata: Mapping[str, Any], read: TensorReader) -> dict[str, Any]:
    return gguf_config(metadata, "qwen2", read)


WEIGHTS = WeightMap(targets=hf_weights(), ignored=llama.IGNORED)
GGUF = GGUFMap(architecture="qwen2", hf_config=_hf_config, weights=WeightMap(targets=gguf_weights()))
