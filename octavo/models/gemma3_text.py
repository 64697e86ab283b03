"""Gemma 3, text only: five windowed layers to one full one, each kind with its own rope.   Source: arXiv:2503.19786."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.errors import UnsupportedModelError
from octavo.layers.rotary import rope_from_hf
from octavo.models import gemma2, llama
from octavo.models.base import GGUFMap, To, WeightMap
from octavo.models.decoder import Decoder, DecoderConfig, hf_weights, plus_one, whole
from octavo.models.gguf_keys import TensorReader, gguf_config, gguf_weights

__all__ = ["GGUF", "WEIGHTS", "Model", "config_from_hf"]

Model = Decoder

LOCAL_THETA = 10_000.0
PATTERN = 6
LAYERS_27B = 62  # queries scaled by hidden size per head instead of the head dimension


def config_from_hf(hf: Mapping[str, Any]) -> DecoderConfig:
    """Read a config.json (errors as in llama.config_from_hf).

    Raises UnsupportedModelError for the multimodal wrapper: its vision part cannot be served yet.
    """
    if "vision_config" in hf:
        raise UnsupportedModelError(
            "this checkpoint has a vision tower, and only the text models of its family are supported"
        )
    defaults = {
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
    }
    given = {**defaults, **hf}
    full = rope_from_hf(given, whole(given, "head_dim"), layer_type="full_attention")
    local = {**given, "rope_theta": hf.get("rope_local_base_freq") or LOCAL_THETA, "rope_scaling": None}
    sliding = rope_from_hf(local, whole(given, "head_dim"), layer_type="sliding_attention")
    plain = {**hf, "rope_scaling": None, "rope_parameters": None}
    config = gemma2.common(plain, defaults)
    kinds = gemma2.layer_kinds(hf, config.num_layers, int(hf.get("sliding_window_pattern") or PATTERN))
    window = whole(hf, "sliding_window", default=4096)
    return replace(
        config,
        qk_norm=True,
        windows=tuple(window if windowed else None for windowed in kinds),
        ropes=tuple(sliding if windowed else full for windowed in kinds),
    )


def _hf_config(metadata: Mapping[str, Any], read: TensorReader) -> dict[str, Any]:
    config = gguf_config(metadata, "gemma3", read)
    scalar = config["head_dim"]
    if config["num_hidden_layers"] == LAYERS_27B:
        scalar = config["hidden_size"] // config["num_attention_heads"]
    return config | {
        "query_pre_attn_scalar": scalar,
        "rope_local_base_freq": metadata.get("gemma3.rope.freq_base_swa", LOCAL_THETA),
        "final_logit_softcapping": metadata.get("gemma3.final_logit_softcapping"),
    }


WEIGHTS = WeightMap(
    targets=hf_weights(norm=To("", transform=plus_one), sandwich=True, qk_norm=True), ignored=llama.IGNORED
)
GGUF = GGUFMap(
    architecture="gemma3", hf_config=_hf_config, weights=WeightMap(targets=gguf_weights(sandwich=True, qk_norm=True))
)
