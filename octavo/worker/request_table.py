"""RequestTable: what the worker knows of each row, in arrays indexed by row.

The scheduler hands a row out at admission; request ids never come here. Tables grow as rows and lengths need.
"""

from __future__ import annotations

import numpy as np

from octavo.scheduler.plan import NewRow, SchedulerOutput

__all__ = ["RequestTable"]


class RequestTable:
    """Tokens, lengths and block tables of every row.

    tokens: [R, max_model_len + 1] int32, committed page by page.   lengths: [R] known ids of a row.
    prompt_lengths: [R].   computed: [R] leading tokens whose KV is in the row's blocks.
    blocks: per KV group [R, W] int32 block ids; num_blocks: per group [R].
    """

    def __init__(self, max_rows: int, max_model_len: int, block_sizes: tuple[int, ...]) -> None:
        self.tokens = np.zeros((max_rows, max_model_len + 1), np.int32)
        self.lengths = np.zeros(max_rows, np.int64)
        self.prompt_lengths = np.zeros(max_rows, np.int64)
        self.computed = np.zeros(max_rows, np.int64)
        widths = [-(-(max_model_len + 1) // size) for size in block_sizes]
        self.blocks = [np.zeros((max_rows, width), np.int32) for width in widths]
        self.num_blocks = [np.zeros(max_rows, np.int64) for _ in widths]

    def apply(self, plan: SchedulerOutput) -> None:
        """Take a step's new rows and new blocks in."""
        for new in plan.new:
            self._enter(new)
        for row, by_group in zip(plan.rows, plan.new_blocks, strict=True):
            for table, counts, ids in zip(self.blocks, self.num_blocks, by_group, strict=True):
                if ids:
                    start = int(counts[row])
                    table[row, start : start + len(ids)] = ids
                    counts[row] = start + len(ids)

    def _enter(self, new: NewRow) -> None:
        row = new.row
        self.tokens[row, : len(new.tokens)] = new.tokens
        self.lengths[row] = len(new.tokens)
        self.prompt_lengths[row] = new.num_prompt_tokens
        self.computed[row] = new.num_computed_tokens
        for counts in self.num_blocks:
            counts[row] = 0

    def append(self, row: int, token: int) -> None:
        """Add a sampled token to a row."""
        self.tokens[row, self.lengths[row]] = token
        self.lengths[row] += 1

    def prompt(self, row: int) -> np.ndarray:
        """Return the row's prompt ids, a view."""
        return self.tokens[row, : self.prompt_lengths[row]]

    def output(self, row: int) -> np.ndarray:
        """Return the row's output ids so far, a view."""
        return self.tokens[row, self.prompt_lengths[row] : self.lengths[row]]

    def num_tokens(self, row: int) -> int:
        """Return how many ids of the row are known: the position of the next one."""
        return int(self.lengths[row])
