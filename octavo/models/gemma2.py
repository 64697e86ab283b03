"""Gemma 2: norms on both sides of each part, soft caps, every other layer windowed.   Source: arXiv:2408.00118."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.models import llama
from octavo.models.base import GGUFMap, To, WeightMap
from octavo.models.decoder import Decoder, DecoderConfig, activation_of, hf_weights, plus_one, whole
from octavo.models.gguf_keys import TensorReader, gguf_config, gguf_weights

__all__ = ["GGUF", "WEIGHTS", "Model", "common", "config_from_hf", "layer_kinds"]

Model = Decoder

LAYERS_27B = 46  # the one size whose queries are scaled by hidden size per head instead of the head dimension


def layer_kinds(hf: Mapping[str, Any], num_layers: int, pattern: int) -> tuple[bool, ...]:
    """Return for each layer whether it is windowed: layer_types where given, else all but every pattern-th."""
    types = hf.get("layer_types")
    if types is not None:
        return tuple(kind == "sliding_attention" for kind in types)
    return tuple((index + 1) % pattern != 0 for index in range(num_layers))


def common(hf: Mapping[str, Any], defaults: Mapping[str, Any]) -> DecoderConfig:
    """Read what Gemma 2 and 3 share; windows and ropes are still those of a plain decoder."""
    hf = {**defaults, **hf}
    config = llama.config_from_hf({**hf, "sliding_window": None})
    return replace(
        config,
        activation=activation_of(hf, "hidden_activation"),
        sandwich_norms=True,
        embedding_scale=config.hidden_size**0.5,
        attention_scale=float(hf.get("query_pre_attn_scalar") or config.head_dim) ** -0.5,
        attention_softcap=hf.get("attn_logit_softcapping"),
        logit_softcap=hf.get("final_logit_softcapping"),
    )


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """Read a config.json (errors as in llama.config_from_hf)."""
    defaults = {
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 256,
        "tie_word_embeddings": True,
    }
    config = common(hf, defaults)
    kinds = layer_kinds(hf, config.num_layers, 2)
    window = whole(hf, "sliding_window", default=4096)
    return replace(config, windows=tuple(window if windowed else None for windowed in kinds))


def _hf_config(metadata: Mapping[str, Any], read: TensorReader) -> dict[str, Any]:
    config = gguf_config(metadata, "gemma2", read)
    scalar = config["head_dim"]
    if config["num_hidden_layers"] == LAYERS_27B:
        scalar = config["hidden_size"] // config["num_attention_heads"]
    return config | {
        "query_pre_attn_scalar": scalar,
        "attn_logit_softcapping": metadata.get("gemma2.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.get("gemma2.final_logit_softcapping", 30.0),
    }


WEIGHTS = WeightMap(targets=hf_weights(norm=To("", transform=plus_one), sandwich=True), ignored=llama.IGNORED)
GGUF = GGUFMap(architecture="gemma2", hf_config=_hf_config, weights=WeightMap(targets=gguf_weights(sandwich=True)))
