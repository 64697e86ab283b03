"""ForwardBatch: what a model's forward sees of a step.

Legend: T tokens, B requests, G KV groups, L logits rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.ops.op import Tensor

__all__ = ["AttentionMeta", "ForwardBatch"]


@dataclass(slots=True)
class AttentionMeta:
    """One KV group's view of the batch: where keys are written, and the backend's own plan."""

    slots: Tensor  # [T] int64, block id * block_size + offset
    plan: Any


@dataclass(slots=True)
class ForwardBatch:
    """The tokens of one step, flattened over requests."""

    num_tokens: int
    num_reqs: int
    max_query_len: int
    max_seq_len: int
    input_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    attn: tuple[AttentionMeta, ...]  # G
    logits_index: Tensor  # [L] int64, rows of the hidden states that need logits
