"""BatchBuilder: a plan and the request table become a ForwardBatch. No Python work per token."""

from __future__ import annotations

import numpy as np

from octavo.attention.backend import AttentionBackend
from octavo.attention.batch import AttentionMeta, ForwardBatch
from octavo.kvcache.spec import KVGroup
from octavo.ops.op import Ops
from octavo.worker.request_table import RequestTable

__all__ = ["BatchBuilder"]


class BatchBuilder:
    """Builds the batch of a step from rows and token counts."""

    def __init__(self, ops: Ops, backend: AttentionBackend, groups: tuple[KVGroup, ...]) -> None:
        self.ops = ops
        self.backend = backend
        self.groups = groups

    def build(self, table: RequestTable, rows: np.ndarray, num_tokens: np.ndarray, samples: np.ndarray) -> ForwardBatch:
        """Flatten the next num_tokens[i] tokens of each row.

        rows, num_tokens: [B] int64.   samples: [B] bool, rows whose last token needs logits.
        """
        computed = table.computed[rows]
        query_start = np.concatenate([[0], np.cumsum(num_tokens)])
        total = int(query_start[-1])
        row_of = np.repeat(rows, num_tokens)
        positions = np.arange(total) + np.repeat(computed - query_start[:-1], num_tokens)
        seq_lens = computed + num_tokens
        attn = []
        for group, blocks in zip(self.groups, table.blocks, strict=True):
            size = group.spec.block_size
            slots = blocks[row_of, positions // size].astype(np.int64) * size + positions % size
            width = -(-int(seq_lens.max()) // size)
            plan = self.backend.plan(query_start, seq_lens, blocks[rows, :width], group.spec)
            attn.append(AttentionMeta(self.ops.from_host(slots), plan))
        return ForwardBatch(
            num_tokens=total,
            num_reqs=len(rows),
            max_query_len=int(num_tokens.max()),
            max_seq_len=int(seq_lens.max()),
            input_ids=self.ops.from_host(table.tokens[row_of, positions].astype(np.int64)),
            positions=self.ops.from_host(positions),
            attn=tuple(attn),
            logits_index=self.ops.from_host(query_start[1:][samples] - 1),
        )
