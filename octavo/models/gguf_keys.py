"""GGUF metadata and tensor names that decoders share. Names: the GGUF specification and ggml's naming conventions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from octavo.errors import CheckpointError
from octavo.models.base import To
from octavo.models.decoder import DecoderConfig

__all__ = ["TensorReader", "gguf_config", "gguf_weights", "unpermute_k", "unpermute_q"]

TensorReader = Callable[[str], np.ndarray | None]


def gguf_config(metadata: Mapping[str, Any], architecture: str, read: TensorReader) -> dict[str, Any]:
    """Return the config.json keys that a GGUF's metadata stands for.

    read: decodes a small tensor by name, or returns None when the file has none.
    Raises CheckpointError when a required key is missing.
    """

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"{architecture}.{key}", default)

    def need(key: str) -> Any:
        value = get(key)
        if value is None:
            raise CheckpointError(f"the file has no metadata key {architecture}.{key}")
        return value

    heads, hidden = need("attention.head_count"), need("embedding_length")
    head_dim = get("attention.key_length", hidden // heads if isinstance(heads, int) and heads else None)
    tokens = metadata.get("tokenizer.ggml.tokens")
    config = {
        "vocab_size": get("vocab_size", len(tokens) if tokens is not None else None),
        "hidden_size": hidden,
        "intermediate_size": need("feed_forward_length"),
        "num_hidden_layers": need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": need("context_length"),
        "rms_norm_eps": need("attention.layer_norm_rms_epsilon"),
        "rope_theta": get("rope.freq_base", 10_000.0),
        "sliding_window": get("attention.sliding_window"),
        "tie_word_embeddings": read("output.weight") is None,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
    }
    rotary = get("rope.dimension_count")
    if rotary is not None and head_dim:
        config["partial_rotary_factor"] = rotary / head_dim
    kind = get("rope.scaling.type")
    if kind not in (None, "none"):
        scaling = {"rope_type": kind, "factor": get("rope.scaling.factor")}
        original = get("rope.scaling.original_context_length")
        if original is not None:
            scaling["original_max_position_embeddings"] = original
        if kind == "yarn" and get("rope.scaling.attn_factor") is not None:
            scaling["attention_factor"] = get("rope.scaling.attn_factor")
        config["rope_scaling"] = scaling
    factors = read("rope_freqs.weight")
    if factors is not None:
        config["rope_factors"] = tuple(factors.tolist())
    return config


def unpermute_q(weight: np.ndarray, config: DecoderConfig) -> np.ndarray:
    """Undo the pairing (2i, 2i+1) of rotary dimensions that files of this architecture use.   weight: [N * H, ..]."""
    return _unpermute(weight, config.num_q_heads)


def unpermute_k(weight: np.ndarray, config: DecoderConfig) -> np.ndarray:
    """Undo the pairing (2i, 2i+1) of rotary dimensions that files of this architecture use.   weight: [K * H, ..]."""
    return _unpermute(weight, config.num_kv_heads)


def _unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """[N * H, ...] with rows (i, half) of each head -> rows (half, i)."""
    if weight.shape[0] % (2 * num_heads):
        raise CheckpointError(f"a weight of {weight.shape[0]} rows does not divide among {num_heads} heads")
    return weight.reshape(num_heads, -1, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def gguf_weights(
    *, permuted: bool = False, sandwich: bool = False, qk_norm: bool = False
) -> dict[str, To | tuple[To, ...]]:
    """Return the tensor names that GGUF decoders share.   permuted: whether Q and K rows are paired (2i, 2i+1)."""
    layer, ours = "blk.{i}.", "layers.{i}."
    transforms = {"q": unpermute_q, "k": unpermute_k} if permuted else {}
    names: dict[str, To | tuple[To, ...]] = {
        "token_embd.weight": To("embed.weight"),
        "output_norm.weight": To("norm.weight"),
        "output.weight": To("lm_head.weight"),
        f"{layer}attn_norm.weight": To(f"{ours}attn_norm.weight"),
        f"{layer}ffn_norm.weight": To(f"{ours}mlp_norm.weight"),
    }
    for kind in ("weight", "bias"):
        names |= {f"{layer}attn_{s}.{kind}": To(f"{ours}qkv.{kind}", s, transforms.get(s)) for s in ("q", "k", "v")}
        names |= {f"{layer}ffn_{s}.{kind}": To(f"{ours}gate_up.{kind}", s) for s in ("gate", "up")}
        names |= {
            f"{layer}attn_output.{kind}": To(f"{ours}o.{kind}"),
            f"{layer}ffn_down.{kind}": To(f"{ours}down.{kind}"),
        }
    if sandwich:
        names |= {
            f"{layer}post_attention_norm.weight": To(f"{ours}post_attn_norm.weight"),
            f"{layer}post_ffw_norm.weight": To(f"{ours}post_mlp_norm.weight"),
        }
    if qk_norm:
        names |= {f"{layer}attn_{s}_norm.weight": To(f"{ours}{s}_norm.weight") for s in ("q", "k")}
    return names
