"""bad_words: sequences of tokens that must not be completed.

The front end encodes each word with and without a leading space; here they are id sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.ops.op import Tensor
from octavo.sampling.processor import Setting, Stage, TokenTable, pairs, select
from octavo.scheduler.plan import NewRow, RowError
from octavo.types import SamplingParams

__all__ = ["Processor"]


class Processor:
    """Masks the last token of each sequence whose other tokens are the latest of prompt and output."""

    stage = Stage.RESTRICT

    def __init__(self, setting: Setting) -> None:
        self.ops = setting.ops
        self.table = setting.table
        self._words: dict[int, list[list[int]]] = {}

    def wants(self, params: SamplingParams) -> bool:
        """Say whether there are bad words."""
        return bool(params.bad_words)

    def add(self, row: int, request: NewRow) -> None:
        """Keep the row's sequences."""
        self._words[row] = [word for word in request.bad_words if word]

    def remove(self, row: int) -> None:
        """Forget the row."""
        del self._words[row]

    def apply(self, logits: Tensor, rows: Sequence[int]) -> list[RowError]:
        """Mask the tokens that would complete a word.   logits: [L, V] f32."""
        found = []
        for index, row, words in select(self._words, rows):
            longest = max((len(word) for word in words), default=1)
            recent = _latest(self.table, row, longest - 1)
            banned = {word[-1] for word in words if len(word) == 1 or recent[-(len(word) - 1) :] == word[:-1]}
            if banned:
                found.append((index, np.array(sorted(banned), np.int64)))
        if found:
            self.ops.fill_at(logits, *pairs(found), -np.inf)
        return []


def _latest(table: TokenTable, row: int, count: int) -> list[int]:
    """Return the last `count` ids of prompt and output, fewer where there are fewer."""
    if count == 0:
        return []
    output: list[int] = table.output(row)[-count:].tolist()
    missing = count - len(output)
    return [*table.prompt(row)[-missing:].tolist(), *output] if missing else output
