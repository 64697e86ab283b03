"""The naive oracle: full recompute for every token, no cache, no batch, one request after another.

It shares the model definition with the engine, and nothing else: each token is computed by one plain forward over
the whole sequence so far. Keys and values pass through the KV dtype, as the engine's cache does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.attention.batch import AttentionMeta, ForwardBatch
from octavo.attention.reference import Backend
from octavo.models.base import CausalLM
from octavo.ops.op import Ops

__all__ = ["greedy", "logits_of"]


def logits_of(model: CausalLM, ops: Ops, tokens: Sequence[int], kv_dtype: str = "f32") -> np.ndarray:
    """Return the logits of every position of one sequence, [S, V] float32, computed in one forward."""
    backend, block = Backend(ops), 16
    count, metas = len(tokens), []
    num_blocks = -(-count // block)
    for index, layer in enumerate(model.attention_layers):
        spec = layer.kv_spec(block, kv_dtype)
        layer.bind(index, backend.allocate(spec, num_blocks + 1), backend)
        table = np.arange(1, num_blocks + 1, dtype=np.int32)[None]
        slots = np.arange(count, dtype=np.int64) + block
        metas.append(
            AttentionMeta(ops.from_host(slots), backend.plan(np.array([0, count]), np.array([count]), table, spec))
        )
    batch = ForwardBatch(
        num_tokens=count,
        num_reqs=1,
        max_query_len=count,
        max_seq_len=count,
        input_ids=ops.from_host(np.array(tokens, np.int64)),
        positions=ops.from_host(np.arange(count, dtype=np.int64)),
        attn=tuple(metas),
        logits_index=ops.from_host(np.arange(count, dtype=np.int64)),
    )
    return ops.to_host(model.logits(model.forward(batch)))


def greedy(
    model: CausalLM,
    ops: Ops,
    prompt: Sequence[int],
    max_tokens: int,
    stop: frozenset[int] = frozenset(),
    kv_dtype: str = "f32",
) -> list[int]:
    """Generate greedily, recomputing everything for each token; a stop id is kept and ends the sequence."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(int(logits_of(model, ops, tokens, kv_dtype)[-1].argmax()))
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]
