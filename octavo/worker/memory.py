"""How much memory a model needs besides its KV cache: arithmetic on its configuration, before anything is loaded."""

from __future__ import annotations

from octavo.kvcache.spec import DTYPE_BYTES
from octavo.models.decoder import DecoderConfig

__all__ = ["activation_bytes", "weight_bytes"]

LOGITS_COPIES = 3  # logits, what the sampler makes of them, and its scratch
F32 = 4


def weight_bytes(config: DecoderConfig, dtype: str) -> int:
    """Bytes of the model's parameters in a compute dtype ("f32" "bf16" "f16")."""
    c = config
    q_size, kv_size = c.num_q_heads * c.head_dim, c.num_kv_heads * c.head_dim
    attention = c.hidden_size * (2 * q_size + 2 * kv_size)
    mlp = 3 * c.hidden_size * c.intermediate_size
    norms = (4 if c.sandwich_norms else 2) * c.hidden_size + (2 * c.head_dim if c.qk_norm else 0)
    biases = (q_size + 2 * kv_size if c.qkv_bias else 0) + (c.hidden_size if c.o_bias else 0)
    biases += 2 * c.intermediate_size + c.hidden_size if c.mlp_bias else 0
    tables = c.vocab_size * c.hidden_size * (1 if c.is_tied else 2)
    return (tables + c.hidden_size + c.num_layers * (attention + mlp + norms + biases)) * DTYPE_BYTES[dtype]


def activation_bytes(config: DecoderConfig, dtype: str, max_tokens: int, max_rows: int) -> int:
    """Peak bytes of a step of max_tokens tokens that samples max_rows rows.

    Per token the widest layer holds its input, norm output and residual, the merged projections, and the MLP's pair.
    """
    c = config
    q_size, kv_size = c.num_q_heads * c.head_dim, c.num_kv_heads * c.head_dim
    attention = 3 * q_size + 4 * kv_size
    mlp = 3 * c.intermediate_size
    per_token = 3 * c.hidden_size + max(attention, mlp)
    logits = min(max_rows, max_tokens) * c.vocab_size * F32 * LOGITS_COPIES
    return max_tokens * per_token * DTYPE_BYTES[dtype] + logits
