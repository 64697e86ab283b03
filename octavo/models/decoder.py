"""The plain pre-norm decoder as data: most models only configure it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from octavo.attention.batch import ForwardBatch
from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.layers.attention import Attention
from octavo.layers.linear import Linear
from octavo.layers.norm import HeadRMSNorm, RMSNorm
from octavo.layers.parameter import ParameterStore
from octavo.layers.rotary import RopeConfig, RopeTables
from octavo.models.base import To
from octavo.ops.op import Ops, Tensor

__all__ = ["Decoder", "DecoderConfig", "activation_of", "hf_weights", "plus_one", "whole"]


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Everything that tells one plain decoder from another.

    windows, ropes: one entry per layer.   max_position: longest context, in tokens.   default_position: what is used
    unless more is asked for.   sandwich_norms: norms after attention and MLP too.   attention_scale: times the scores.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    default_position: int
    norm_eps: float
    windows: tuple[int | None, ...]
    ropes: tuple[RopeConfig, ...]
    attention_scale: float
    activation: Literal["silu", "gelu", "gelu_tanh"] = "silu"
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sandwich_norms: bool = False
    embedding_scale: float | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    is_tied: bool = False

    def __post_init__(self) -> None:
        sizes = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_q_heads",
            "num_kv_heads",
            "head_dim",
        )
        values = {name: value for name, value in zip(sizes, _sizes(self), strict=True) if not 0 < value < 1 << 31}
        if values or self.max_position <= 0:
            raise CheckpointError(
                f"sizes of this model's configuration are not positive: {values or self.max_position}"
            )
        if self.num_q_heads % self.num_kv_heads:
            raise CheckpointError(f"{self.num_q_heads} query heads do not divide among {self.num_kv_heads} kv heads")
        if len(self.windows) != self.num_layers or len(self.ropes) != self.num_layers:
            raise CheckpointError(f"{self.num_layers} layers, but {len(self.windows)} layer types are given")


def _sizes(config: DecoderConfig) -> tuple[int, ...]:
    c = config
    heads = (c.num_q_heads, c.num_kv_heads, c.head_dim)
    return (c.vocab_size, c.hidden_size, c.intermediate_size, c.num_layers, *heads)


def whole(hf: Mapping[str, Any], key: str, *, default: int | None = None) -> int:
    """Return a positive whole number of a configuration.

    Raises CheckpointError when it is missing or something else.
    """
    value = hf.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
        raise CheckpointError(f"the configuration's {key} must be a positive whole number, not {value!r}")
    return value


def activation_of(hf: Mapping[str, Any], key: str = "hidden_act") -> Literal["silu", "gelu", "gelu_tanh"]:
    """Return the activation a configuration names.

    Raises UnsupportedModelError for one that is not known here.
    """
    names: dict[str, Literal["silu", "gelu", "gelu_tanh"]] = {
        "silu": "silu",
        "swish": "silu",
        "gelu": "gelu",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu_new": "gelu_tanh",
    }
    name = hf.get(key) or "silu"
    if name not in names:
        raise UnsupportedModelError(f"activation {name!r} is not supported; supported: {', '.join(names)}")
    return names[name]


def plus_one(weight: np.ndarray, config: DecoderConfig) -> np.ndarray:
    """Fold the 1 of a norm that multiplies by (1 + weight).   weight: [D]."""
    return weight + 1


def hf_weights(
    *, norm: To | None = None, sandwich: bool = False, qk_norm: bool = False
) -> dict[str, To | tuple[To, ...]]:
    """Return the tensor names that Hugging Face's decoders share.   norm: carries the transform of every norm."""
    transform = None if norm is None else norm.transform
    layer, ours = "model.layers.{i}.", "layers.{i}."
    names: dict[str, To | tuple[To, ...]] = {
        "model.embed_tokens.weight": To("embed.weight"),
        "model.norm.weight": To("norm.weight", transform=transform),
        "lm_head.weight": To("lm_head.weight"),
        f"{layer}self_attn.o_proj.weight": To(f"{ours}o.weight"),
        f"{layer}self_attn.o_proj.bias": To(f"{ours}o.bias"),
        f"{layer}mlp.down_proj.weight": To(f"{ours}down.weight"),
        f"{layer}mlp.down_proj.bias": To(f"{ours}down.bias"),
    }
    for kind in ("weight", "bias"):
        names |= {f"{layer}self_attn.{s}_proj.{kind}": To(f"{ours}qkv.{kind}", s) for s in ("q", "k", "v")}
        names |= {f"{layer}mlp.{s}_proj.{kind}": To(f"{ours}gate_up.{kind}", s) for s in ("gate", "up")}
    norms = {"input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm"}
    if sandwich:
        norms = {
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "post_attn_norm",
            "pre_feedforward_layernorm": "mlp_norm",
            "post_feedforward_layernorm": "post_mlp_norm",
        }
    if qk_norm:
        norms |= {"self_attn.q_norm": "q_norm", "self_attn.k_norm": "k_norm"}
    names |= {
        f"{layer}{theirs}.weight": To(f"{ours}{name}.weight", transform=transform) for theirs, name in norms.items()
    }
    return names


class Block:
    """One decoder layer."""

    def __init__(
        self, config: DecoderConfig, index: int, *, ops: Ops, store: ParameterStore, tables: RopeTables
    ) -> None:
        c, name = config, f"layers.{index}"
        q_size, kv_size = c.num_q_heads * c.head_dim, c.num_kv_heads * c.head_dim
        self.ops = ops
        self.attn_norm = RMSNorm(ops, store, f"{name}.attn_norm", c.hidden_size, c.norm_eps)
        qkv = {"q": q_size, "k": kv_size, "v": kv_size}
        self.qkv = Linear(ops, store, f"{name}.qkv", c.hidden_size, qkv, bias=c.qkv_bias)
        self.q_norm = HeadRMSNorm(ops, store, f"{name}.q_norm", c.head_dim, c.norm_eps) if c.qk_norm else None
        self.k_norm = HeadRMSNorm(ops, store, f"{name}.k_norm", c.head_dim, c.norm_eps) if c.qk_norm else None
        self.attention = Attention(
            ops,
            num_kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            rope=tables.index(c.ropes[index]),
            scale=c.attention_scale,
            window=c.windows[index],
            softcap=c.attention_softcap,
        )
        self.o = Linear(ops, store, f"{name}.o", q_size, {"": c.hidden_size}, bias=c.o_bias)
        sandwich = c.sandwich_norms
        self.post_attn_norm = (
            RMSNorm(ops, store, f"{name}.post_attn_norm", c.hidden_size, c.norm_eps) if sandwich else None
        )
        self.mlp_norm = RMSNorm(ops, store, f"{name}.mlp_norm", c.hidden_size, c.norm_eps)
        gate_up = {"gate": c.intermediate_size, "up": c.intermediate_size}
        self.gate_up = Linear(ops, store, f"{name}.gate_up", c.hidden_size, gate_up, bias=c.mlp_bias)
        self.act = {"silu": ops.silu_and_mul, "gelu": ops.gelu_and_mul, "gelu_tanh": ops.gelu_tanh_and_mul}[
            c.activation
        ]
        self.down = Linear(ops, store, f"{name}.down", c.intermediate_size, {"": c.hidden_size}, bias=c.mlp_bias)
        self.post_mlp_norm = (
            RMSNorm(ops, store, f"{name}.post_mlp_norm", c.hidden_size, c.norm_eps) if sandwich else None
        )

    def __call__(self, x: Tensor, batch: ForwardBatch, angles: Sequence[Tensor]) -> Tensor:
        """Run the layer.   x: [T, D] -> [T, D]; its KV cache is mutated.   angles: of each rotary embedding."""
        q, k, v = self.qkv.split(self.attn_norm(x))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        attended = self.o(self.attention(q, k, v, batch, angles))
        if self.post_attn_norm is not None:
            attended = self.post_attn_norm(attended)
        x = self.ops.add(x, attended)
        made = self.down(self.act(self.gate_up(self.mlp_norm(x))))
        if self.post_mlp_norm is not None:
            made = self.post_mlp_norm(made)
        return self.ops.add(x, made)


class Decoder:
    """A causal language model of equal blocks.

    ops: what it computes with.   max_length: longest sequence it will see, in tokens; rope factors are fixed by it.
    """

    def __init__(self, config: DecoderConfig, *, ops: Ops, max_length: int) -> None:
        self.config = config
        self.ops = ops
        self.parameters = store = ParameterStore()
        self.ropes = RopeTables(ops, max_length)
        self.embed = store.new("embed.weight", (config.vocab_size, config.hidden_size))
        self.blocks = [Block(config, i, ops=ops, store=store, tables=self.ropes) for i in range(config.num_layers)]
        self.norm = RMSNorm(ops, store, "norm", config.hidden_size, config.norm_eps)
        self.head = self.embed if config.is_tied else store.new("lm_head.weight", self.embed.shape)
        self.attention_layers = tuple(block.attention for block in self.blocks)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states after the final norm, [T, D]; the KV cache is mutated."""
        x = self.ops.embed(batch.input_ids, self.embed.tensor)
        if self.config.embedding_scale is not None:
            x = self.ops.scale(x, self.config.embedding_scale)
        angles = self.ropes.angles(batch.positions)
        for block in self.blocks:
            x = block(x, batch, angles)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits of hidden rows: [L, D] -> [L, V]."""
        logits = self.ops.linear(hidden, self.head.tensor, None)
        return logits if self.config.logit_softcap is None else self.ops.softcap(logits, self.config.logit_softcap)
