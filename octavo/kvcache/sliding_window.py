"""Sliding window: a token sees itself and the window - 1 tokens before it; older blocks expire."""

from __future__ import annotations

from octavo.kvcache.block_pool import NULL_BLOCK
from octavo.kvcache.kind import Finder
from octavo.kvcache.spec import KVCacheSpec

__all__ = ["Kind"]


class Kind:
    """Blocks wholly before the window become the null block; a hit needs the last window's blocks only."""

    expires = True

    def __init__(self, spec: KVCacheSpec) -> None:
        assert spec.window is not None and spec.window > 0, f"a sliding window of {spec.window} tokens"
        self.block_size = spec.block_size
        self.window = spec.window

    def blocks_for(self, num_tokens: int) -> int:
        """Return the table entries of num_tokens tokens, expired ones included."""
        return -(-num_tokens // self.block_size)

    def num_expired(self, num_computed: int) -> int:
        """Return the entries before the first token that token number num_computed sees."""
        return max(0, num_computed + 1 - self.window) // self.block_size

    def longest_hit(self, max_blocks: int, find: Finder) -> list[int]:
        """Return the longest prefix whose last window of blocks is cached."""
        end = max_blocks
        while end > 0:
            first = self.num_expired(end * self.block_size)
            found: list[int] = []
            for index in range(end - 1, first - 1, -1):
                block_id = find(index)
                if block_id is None:
                    break
                found.append(block_id)
            if len(found) == end - first:
                return [NULL_BLOCK] * first + found[::-1]
            end -= len(found) + 1  # no prefix that needs the missing block can be
        return []

    def peak_blocks(self, num_tokens: int, chunk: int) -> int:
        """Return the blocks that a window and a chunk touch at most, wherever they begin in a block."""
        span = self.window - 1 + chunk
        return min(self.blocks_for(num_tokens), -(-span // self.block_size) + 1)
