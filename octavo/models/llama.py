"""Llama 2 and 3, and the many checkpoints that share the architecture.   Source: arXiv:2302.13971, arXiv:2407.21783."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.layers.rotary import rope_from_hf
from octavo.models.base import GGUFMap, WeightMap
from octavo.models.decoder import Decoder, DecoderConfig, activation_of, hf_weights, whole
from octavo.models.gguf_keys import TensorReader, gguf_config, gguf_weights

__all__ = ["GGUF", "WEIGHTS", "Model", "config_from_hf"]

Model = Decoder

# Buffers that old checkpoints carry: they are computed here.
IGNORED = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)
STRETCHED = ("linear", "dynamic")  # the configured length is the one before scaling


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """Read a config.json.

    Raises CheckpointError or UnsupportedModelError for values that cannot be.
    """
    hidden, heads, layers = whole(hf, "hidden_size"), whole(hf, "num_attention_heads"), whole(hf, "num_hidden_layers")
    head_dim = whole(hf, "head_dim", default=hidden // heads)
    rope = rope_from_hf(hf, head_dim)
    if hf.get("rope_factors"):
        rope = replace(rope, factors=tuple(hf["rope_factors"]))
    position = whole(hf, "max_position_embeddings", default=2048)
    if rope.kind in STRETCHED:
        position = int(position * float(rope.params.get("factor") or 1))
    window = hf.get("sliding_window")
    return DecoderConfig(
        vocab_size=whole(hf, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=whole(hf, "intermediate_size"),
        num_layers=layers,
        num_q_heads=heads,
        num_kv_heads=whole(hf, "num_key_value_heads", default=heads),
        head_dim=head_dim,
        max_position=position,
        default_position=rope.original_length if rope.kind == "longrope" else position,
        norm_eps=float(hf.get("rms_norm_eps") or 1e-6),
        windows=(whole(hf, "sliding_window") if window is not None else None,) * layers,
        ropes=(rope,) * layers,
        attention_scale=head_dim**-0.5,
        activation=activation_of(hf),
        qkv_bias=bool(hf.get("attention_bias", False)),
        o_bias=bool(hf.get("attention_bias", False)),
        mlp_bias=bool(hf.get("mlp_bias", False)),
        is_tied=bool(hf.get("tie_word_embeddings", False)),
    )


def _hf_config(metadata: Mapping[str, Any], read: TensorReader) -> dict[str, Any]:
    config = gguf_config(metadata, "llama", read)
    return config | {
        "attention_bias": read("blk.0.attn_q.bias") is not None,
        "mlp_bias": read("blk.0.ffn_up.bias") is not None,
    }


WEIGHTS = WeightMap(targets=hf_weights(), ignored=IGNORED)
GGUF = GGUFMap(
    architecture="llama",
    hf_config=_hf_config,
    weights=WeightMap(targets=gguf_weights(permuted=True), ignored=(r"rope_freqs\.weight",)),
)
