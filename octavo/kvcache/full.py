"""Full attention: every token sees all before it."""

from __future__ import annotations

from octavo.kvcache.kind import Finder
from octavo.kvcache.spec import KVCacheSpec

__all__ = ["Kind"]


class Kind:
    """Blocks are kept until the request ends."""

    expires = False

    def __init__(self, spec: KVCacheSpec) -> None:
        self.block_size = spec.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Return the table entries of num_tokens tokens."""
        return -(-num_tokens // self.block_size)

    def num_expired(self, num_computed: int) -> int:
        """Return 0: nothing expires."""
        return 0

    def longest_hit(self, max_blocks: int, find: Finder) -> list[int]:
        """Return cached blocks from the first on, up to the first that is missing."""
        hit: list[int] = []
        while len(hit) < max_blocks:
            block_id = find(len(hit))
            if block_id is None:
                break
            hit.append(block_id)
        return hit

    def peak_blocks(self, num_tokens: int, chunk: int) -> int:
        """Return all of them."""
        return self.blocks_for(num_tokens)
