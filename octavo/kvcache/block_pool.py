"""BlockPool: every KV block, an intrusive list of the free ones, and the map from hashes to cached blocks.

    free list (least recently freed first)          hash map
    head <-> [blank] <-> [cached] <-> ... <-> tail   key -> block      a cached block may be free: it is reused
                                                                       by a hit, or evicted when taken as a new one
Block 0 is the null block: it stands for expired blocks in a table, and is never free, cached or written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo.kvcache.hashing import BlockKey

__all__ = ["NULL_BLOCK", "Block", "BlockPool"]

NULL_BLOCK = 0


class Block:
    """One block: how many tables hold it, the key and tokens it is cached under, and its place in the free list."""

    __slots__ = ("block_id", "key", "next", "previous", "ref_count", "tokens")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.key: BlockKey | None = None
        self.tokens: tuple[int, ...] = ()
        self.previous: Block | None = None
        self.next: Block | None = None


class BlockPool:
    """Blocks 1 to num_blocks - 1, each free, or held by one or more tables."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 2, f"a pool needs a block beside the null block, not {num_blocks}"
        self.blocks = [Block(i) for i in range(num_blocks)]
        self._cached: dict[BlockKey, Block] = {}
        self._num_free = 0
        self._head, self._tail = Block(-1), Block(-1)
        self._head.next, self._tail.previous = self._tail, self._head
        for block in self.blocks[1:]:
            self._append(block)

    @property
    def num_total(self) -> int:
        """Blocks that can be handed out: all but the null block."""
        return len(self.blocks) - 1

    @property
    def num_free(self) -> int:
        """Blocks that no table holds, cached or not."""
        return self._num_free

    @property
    def num_cached(self) -> int:
        """Blocks that a hit can find."""
        return len(self._cached)

    def _append(self, block: Block) -> None:
        last = self._tail.previous
        assert last is not None
        last.next, block.previous, block.next, self._tail.previous = block, last, self._tail, block
        self._num_free += 1

    def _prepend(self, block: Block) -> None:
        first = self._head.next
        assert first is not None
        first.previous, block.next, block.previous, self._head.next = block, first, self._head, block
        self._num_free += 1

    def _unlink(self, block: Block) -> None:
        before, after = block.previous, block.next
        assert before is not None and after is not None, f"block {block.block_id} is not free"
        before.next, after.previous = after, before
        block.previous = block.next = None
        self._num_free -= 1

    def take(self, count: int) -> list[int]:
        """Hand out `count` blocks, evicting the least recently freed cached ones where none is blank."""
        assert count <= self._num_free, f"{count} blocks are asked for and {self._num_free} are free"
        taken = []
        for _ in range(count):
            block = self._head.next
            assert block is not None
            self._unlink(block)
            self.uncache(block)
            block.ref_count = 1
            taken.append(block.block_id)
        return taken

    def hold(self, block_ids: Iterable[int]) -> None:
        """Add one holder to each of these cached blocks."""
        for block_id in block_ids:
            block = self.blocks[block_id]
            if block.ref_count == 0:
                self._unlink(block)
            block.ref_count += 1

    def num_unheld(self, block_ids: Iterable[int]) -> int:
        """Count those of these blocks that are free: holding them takes them from the free list."""
        return sum(self.blocks[block_id].ref_count == 0 for block_id in block_ids)

    def release(self, block_ids: Sequence[int]) -> None:
        """Drop one holder of each block, in order. Blank blocks are reused first, cached ones in order of release."""
        for block_id in block_ids:
            if block_id == NULL_BLOCK:
                continue
            block = self.blocks[block_id]
            assert block.ref_count > 0, f"block {block_id} is released twice"
            block.ref_count -= 1
            if block.ref_count == 0:
                if block.key is None:
                    self._prepend(block)
                else:
                    self._append(block)

    def find(self, key: BlockKey, tokens: tuple[int, ...]) -> Block | None:
        """Return the cached block of a key, or None. Its tokens are compared: a hash alone is not trusted."""
        block = self._cached.get(key)
        return block if block is not None and block.tokens == tokens else None

    def cache(self, block_id: int, key: BlockKey, tokens: tuple[int, ...]) -> None:
        """Let hits find a full block; the first block of a key stays the one that is found."""
        block = self.blocks[block_id]
        assert block.key is None and block.ref_count > 0, f"block {block_id} cannot be cached"
        if key not in self._cached:
            block.key, block.tokens = key, tokens
            self._cached[key] = block

    def uncache(self, block: Block) -> None:
        """Let no hit find this block any more."""
        if block.key is not None:
            del self._cached[block.key]
            block.key, block.tokens = None, ()

    def reset(self) -> bool:
        """Forget every cached block; refused (False) while any block is held."""
        if self._num_free != self.num_total:
            return False
        for block in self.blocks:
            self.uncache(block)
        return True
