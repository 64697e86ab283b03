"""KVCacheManager: match, allocate, commit and free the blocks of one request over all KV groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.kvcache.block_pool import NULL_BLOCK, BlockPool
from octavo.kvcache.hashing import BlockHash, BlockHasher
from octavo.kvcache.kind import make_kind
from octavo.kvcache.spec import KVGroup

__all__ = ["KVCacheManager", "RequestBlocks"]


@dataclass(slots=True)
class RequestBlocks:
    """The blocks of one request.

    tables: block ids per group, append-only but for expiry.   hashes: of its full blocks of tokens.
    num_committed: leading blocks whose KV is computed and offered to hits.   num_expired: per group.
    capacity: tokens that the tables have a place for.
    """

    root: BlockHash
    tables: list[list[int]]
    num_expired: list[int]
    hashes: list[BlockHash] = field(default_factory=list)
    num_committed: int = 0
    capacity: int = 0


class KVCacheManager:
    """Owns the pool. Every group has the same block size; block 0 is the null block."""

    def __init__(
        self, groups: Sequence[KVGroup], num_blocks: int, *, enable_prefix_caching: bool, hash_secret: bytes
    ) -> None:
        sizes = {group.spec.block_size for group in groups}
        assert len(sizes) == 1, f"groups of block sizes {sorted(sizes)}"
        self.block_size = sizes.pop()
        self.pool = BlockPool(num_blocks)
        self.kinds = [make_kind(group.spec) for group in groups]
        self.is_caching = enable_prefix_caching
        self._expiring = [(group, kind) for group, kind in enumerate(self.kinds) if kind.expires]
        self.nothing_new: list[list[int]] = [[] for _ in self.kinds]  # shared: nobody changes what allocate returns
        self.hasher = BlockHasher(hash_secret, self.block_size)

    def open(self, extra: tuple[str, ...]) -> RequestBlocks:
        """Return the empty state of a request.   extra: what its KV depends on beside its tokens."""
        count = len(self.kinds)
        return RequestBlocks(self.hasher.root(extra), [[] for _ in range(count)], [0] * count)

    def match(self, blocks: RequestBlocks, tokens: Sequence[int]) -> list[list[int]]:
        """Find the longest cached prefix, in whole blocks, that leaves at least one token to compute.

        Returns block ids per group, all of one length; nothing is held yet.
        """
        if not self.is_caching:
            return [[] for _ in self.kinds]
        self.hasher.extend(blocks.hashes, blocks.root, tokens)
        size = self.block_size
        length = min(len(blocks.hashes), (len(tokens) - 1) // size)
        hits: list[list[int]] = []
        while True:
            hits = []
            for group, kind in enumerate(self.kinds):

                def find(index: int, group: int = group) -> int | None:
                    key = (blocks.hashes[index], group)
                    block = self.pool.find(key, tuple(tokens[index * size : (index + 1) * size]))
                    return None if block is None else block.block_id

                hits.append(kind.longest_hit(length, find))
            shortest = min(len(hit) for hit in hits)
            if shortest == length:
                return hits
            length = shortest

    def adopt(self, blocks: RequestBlocks, hits: Sequence[Sequence[int]]) -> None:
        """Begin the tables of an empty request with matched blocks, and hold them."""
        for group, hit in enumerate(hits):
            assert not blocks.tables[group], "only an empty request adopts a prefix"
            self.pool.hold(block_id for block_id in hit if block_id != NULL_BLOCK)
            blocks.tables[group] = list(hit)
            blocks.num_expired[group] = next((i for i, b in enumerate(hit) if b != NULL_BLOCK), len(hit))
        blocks.num_committed = len(hits[0])
        blocks.capacity = blocks.num_committed * self.block_size

    def num_missing(self, blocks: RequestBlocks, num_tokens: int) -> int:
        """Count the free blocks it takes until `num_tokens` tokens have a place."""
        return sum(
            max(0, kind.blocks_for(num_tokens) - len(table))
            for kind, table in zip(self.kinds, blocks.tables, strict=True)
        )

    def num_admission(self, num_tokens: int, hits: Sequence[Sequence[int]], chunk: int) -> int:
        """Count the free blocks that a request of num_tokens takes in all, computed `chunk` tokens at a time.

        hits: the cached blocks it begins with; those that nobody holds are taken from the free ones too.
        """
        need = 0
        for kind, hit in zip(self.kinds, hits, strict=True):
            held = [block_id for block_id in hit if block_id != NULL_BLOCK]
            fresh = kind.blocks_for(num_tokens) - len(hit)
            need += min(fresh, kind.peak_blocks(num_tokens, chunk)) + self.pool.num_unheld(held)
        return need

    def peak_blocks(self, num_tokens: int, chunk: int) -> int:
        """Return the most blocks that a request of num_tokens ever holds."""
        return sum(kind.peak_blocks(num_tokens, min(chunk, num_tokens)) for kind in self.kinds)

    def allocate(self, blocks: RequestBlocks, num_tokens: int) -> list[list[int]] | None:
        """Extend the tables to `num_tokens` tokens. Returns the new ids per group, or None when too few are free."""
        if num_tokens <= blocks.capacity:
            return self.nothing_new
        if self.num_missing(blocks, num_tokens) > self.pool.num_free:
            return None
        added = []
        for group, kind in enumerate(self.kinds):
            table = blocks.tables[group]
            new = self.pool.take(max(0, kind.blocks_for(num_tokens) - len(table)))
            table.extend(new)
            added.append(new)
        blocks.capacity = min(map(len, blocks.tables)) * self.block_size
        return added

    def commit(self, blocks: RequestBlocks, tokens: Sequence[int], num_computed: int) -> None:
        """Note that the first `num_computed` tokens have their KV: offer full blocks to hits, free expired ones."""
        size = self.block_size
        full = num_computed // size
        if self.is_caching and full > blocks.num_committed:
            self.hasher.extend(blocks.hashes, blocks.root, tokens)
            for index in range(blocks.num_committed, full):
                piece = tuple(tokens[index * size : (index + 1) * size])
                for group, table in enumerate(blocks.tables):
                    if table[index] != NULL_BLOCK:
                        self.pool.cache(table[index], (blocks.hashes[index], group), piece)
        blocks.num_committed = max(full, blocks.num_committed)
        for group, kind in self._expiring:
            expired = min(kind.num_expired(num_computed), len(blocks.tables[group]))
            if expired > blocks.num_expired[group]:
                table, first = blocks.tables[group], blocks.num_expired[group]
                self.pool.release(table[first:expired])
                table[first:expired] = [NULL_BLOCK] * (expired - first)
                blocks.num_expired[group] = expired

    def num_recompute(self, blocks: RequestBlocks, num_computed: int) -> int:
        """Return the tokens that must be computed again if this request gives its blocks up and is back at once.

        Its cached blocks come last to be evicted; where tight memory takes them all the same, all is computed again.
        """
        return num_computed - (blocks.num_committed * self.block_size if self.is_caching else 0)

    def taint(self, blocks: RequestBlocks) -> None:
        """Let no hit find what only this request holds: it failed, and what it wrote may be wrong."""
        for table in blocks.tables:
            for block_id in table:
                block = self.pool.blocks[block_id]
                if block_id != NULL_BLOCK and block.ref_count == 1:
                    self.pool.uncache(block)

    def free(self, blocks: RequestBlocks) -> None:
        """Give all blocks up, the last first, so that a prefix outlives its tail."""
        for group, table in enumerate(blocks.tables):
            self.pool.release(table[::-1])
            blocks.tables[group] = []
            blocks.num_expired[group] = 0
        blocks.num_committed = blocks.capacity = 0
