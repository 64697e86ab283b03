"""Tiny random checkpoints of every family, as safetensors by transformers and as GGUF by its converter's rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

__all__ = ["FAMILIES", "Family", "make", "write_gguf"]

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 200,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WINDOW = 9  # smaller than every sequence the tests use


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_theta": 10_000.0, "rope_type": kind, **parameters}


@dataclass(frozen=True)
class Family:
    """A configuration to test.   max_length: what the model is opened for, where the rope depends on it.

    gguf: general.architecture of its GGUF form, or None where there is none.
    """

    config: Callable[..., transformers.PretrainedConfig]
    fields: Mapping[str, Any]
    gguf: str | None = None
    max_length: int = 128


_LONG = {"short_factor": [1.0 + 0.1 * i for i in range(6)], "long_factor": [2.0 + 0.3 * i for i in range(6)]}
_PHI3_LONG = {
    "original_max_position_embeddings": 32,
    "rope_parameters": _rope("longrope", **_LONG, partial_rotary_factor=0.75),
}
_LLAMA3 = _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
_GEMMA = {"head_dim": 24, "sliding_window": WINDOW, "query_pre_attn_scalar": 24}
_LLAMA, _QWEN2 = transformers.LlamaConfig, transformers.Qwen2Config

FAMILIES: dict[str, Family] = {
    "llama": Family(_LLAMA, {"head_dim": 24}, "llama"),
    "llama, biases, tied": Family(
        _LLAMA, {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}, "llama"
    ),
    "llama, linear rope": Family(_LLAMA, {"rope_parameters": _rope("linear", factor=4.0)}, "llama"),
    "llama, dynamic rope": Family(
        _LLAMA, {"max_position_embeddings": 32, "rope_parameters": _rope("dynamic", factor=4.0)}, max_length=48
    ),
    "llama, llama3 rope": Family(_LLAMA, {"rope_parameters": _LLAMA3}, "llama"),
    "llama, yarn rope": Family(
        _LLAMA, {"rope_parameters": _rope("yarn", factor=4.0, original_max_position_embeddings=32)}, "llama"
    ),
    "mistral": Family(transformers.MistralConfig, {"head_dim": 24, "sliding_window": WINDOW}, "llama"),
    "qwen2": Family(_QWEN2, {}, "qwen2"),
    "qwen2, windows": Family(_QWEN2, {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}),
    "qwen3": Family(transformers.Qwen3Config, {"head_dim": 24}, "qwen3"),
    "gemma2": Family(transformers.Gemma2Config, _GEMMA, "gemma2"),
    "gemma3": Family(transformers.Gemma3TextConfig, {**_GEMMA, "num_hidden_layers": 7}, "gemma3"),
    "gemma3, linear rope on full layers": Family(
        transformers.Gemma3TextConfig,
        {
            **_GEMMA,
            "num_hidden_layers": 7,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        "gemma3",
    ),
    "phi3": Family(transformers.Phi3Config, {"sliding_window": WINDOW}, "phi3"),
    "phi3, long rope, long": Family(transformers.Phi3Config, _PHI3_LONG, "phi3", max_length=48),
    "phi3, long rope, short": Family(transformers.Phi3Config, _PHI3_LONG, "phi3", max_length=32),
}


def make(family: Family, folder: Path) -> transformers.PreTrainedModel:
    """Create a random model, save it to folder as safetensors, and return it."""
    torch.manual_seed(0)
    config = family.config(**{**SIZES, **family.fields})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif "bias" in name:
                parameter.normal_(0, 0.3)
            else:
                parameter.mul_(5)  # scores wide enough that attention matters
    model.save_pretrained(folder)
    return model


_GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str, sandwich: bool) -> str:
    if name in _GGUF_NAMES:
        return _GGUF_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    norms = {"post_attention_layernorm": "post_attention_norm" if sandwich else "ffn_norm"}
    norms |= {"pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}
    return f"blk.{layer}.{norms.get(stem) or _GGUF_NAMES[stem]}.{kind}"


def _permute(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows (half, i) of each head -> (i, half), as the converter does for this architecture."""
    return array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def write_gguf(
    model: transformers.PreTrainedModel,
    architecture: str,
    path: Path,
    quantised: gguf.GGMLQuantizationType | None = None,
) -> None:
    """Write the model as GGUF; matrices whose rows are whole blocks are quantised when asked for."""
    config, writer = model.config, gguf.GGUFWriter(path, architecture)
    _write_metadata(writer, config, architecture)
    _write_rope(writer, config)
    gemma = architecture.startswith("gemma")
    state = {k: v for k, v in model.state_dict().items() if not (k == "lm_head.weight" and config.tie_word_embeddings)}
    for name, tensor in state.items():
        array = tensor.numpy().copy()
        if architecture == "llama" and ".q_proj." in name:
            array = _permute(array, config.num_attention_heads)
        if architecture == "llama" and ".k_proj." in name:
            array = _permute(array, config.num_key_value_heads)
        if gemma and "norm" in name:
            array += 1
        target = _gguf_name(name, gemma)
        if quantised is not None and array.ndim == 2 and array.shape[1] % 32 == 0:
            writer.add_tensor(target, gguf.quants.quantize(array, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(target, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_metadata(writer: gguf.GGUFWriter, config: transformers.PretrainedConfig, architecture: str) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    fields = config.to_dict()
    head_dim = fields.get("head_dim") or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    partial = (fields["rope_parameters"] or {}).get("partial_rotary_factor", 1.0)
    writer.add_rope_dimension_count(int(head_dim * partial))
    if fields.get("sliding_window") is not None:
        writer.add_sliding_window(fields["sliding_window"])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(fields["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(fields["final_logit_softcapping"])


def _write_rope(writer: gguf.GGUFWriter, config: transformers.PretrainedConfig) -> None:
    rope = config.to_dict()["rope_parameters"]
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
        if kind == "yarn":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "llama3":
        inverse, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
        plain = rope["rope_theta"] ** -(torch.arange(0, 2 * len(inverse), 2) / (2 * len(inverse)))
        writer.add_tensor("rope_freqs.weight", (plain / inverse).numpy().astype(np.float32))
    if kind == "longrope":
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
        writer.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], np.float32))
