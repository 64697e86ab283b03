"""Qwen3: no biases, but norms on each query and key head.   Source: arXiv:2505.09388."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.models import llama, qwen2
from octavo.models.base import GGUFMap, WeightMap
from octavo.models.decoder import Decoder, DecoderConfig, hf_weights
from octavo.models.gguf_keys import TensorReader, gguf_config, gguf_weights

__all__ = ["GGUF", "WEIGHTS", "Model", "config_from_hf"]

Model = Decoder


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """Read a config.json (errors as in llama.config_from_hf)."""
    config = llama.config_from_hf({"head_dim": 128, **hf, "sliding_window": None})
    return replace(config, qk_norm=True, windows=qwen2.layer_windows(hf, config.num_layers))


def _hf_config(metadata: Mapping[str, Any], read: TensorReader) -> dict[str, Any]:
    return gguf_config(metadata, "qwen3", read)


WEIGHTS = WeightMap(targets=hf_weights(qk_norm=True), ignored=llama.IGNORED)
GGUF = GGUFMap(architecture="qwen3", hf_config=_hf_config, weights=WeightMap(targets=gguf_weights(qk_norm=True)))
