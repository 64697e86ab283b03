"""Phi-3 and Phi-4-mini: fused projections, long rope, partly rotated heads.   Source: arXiv:2404.14219."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.models import llama
from octavo.models.base import GGUFMap, To, WeightMap
from octavo.models.decoder import Decoder, hf_weights
from octavo.models.gguf_keys import TensorReader, gguf_config, gguf_weights
from octavo.models.llama import config_from_hf

__all__ = ["GGUF", "WEIGHTS", "Model", "config_from_hf"]

Model = Decoder


def _fused(qkv: str, gate_up: str) -> dict[str, To | tuple[To, ...]]:
    """Return the two fused tensors, cut along their rows."""
    return {
        qkv: tuple(To("layers.{i}.qkv.weight", shard) for shard in ("q", "k", "v")),
        gate_up: tuple(To("layers.{i}.gate_up.weight", shard) for shard in ("gate", "up")),
    }


def _hf_config(metadata: Mapping[str, Any], read: TensorReader) -> dict[str, Any]:
    config = gguf_config(metadata, "phi3", read)
    long, short = read("rope_factors_long.weight"), read("rope_factors_short.weight")
    if long is not None and short is not None:
        config["rope_scaling"] = {
            "rope_type": "longrope",
            "long_factor": long.tolist(),
            "short_factor": short.tolist(),
            "original_max_position_embeddings": metadata.get("phi3.rope.scaling.original_context_length"),
            "attention_factor": metadata.get("phi3.rope.scaling.attn_factor"),
        }
    return config


WEIGHTS = WeightMap(
    targets=hf_weights()
    | _fused("model.layers.{i}.self_attn.qkv_proj.weight", "model.layers.{i}.mlp.gate_up_proj.weight"),
    ignored=llama.IGNORED,
)
GGUF = GGUFMap(
    architecture="phi3",
    hf_config=_hf_config,
    weights=WeightMap(
        targets=gguf_weights() | _fused("blk.{i}.attn_qkv.weight", "blk.{i}.ffn_up.weight"),
        ignored=(r"rope_factors_(long|short)\.weight",),
    ),
)
