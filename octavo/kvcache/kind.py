"""KVKind: what is particular to one kind of KV cache. A kind is a file: full.py, sliding_window.py."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol

from octavo.kvcache.spec import KVCacheSpec

__all__ = ["Finder", "KVKind", "make_kind"]

Finder = Callable[[int], int | None]  # block index -> id of a cached block of this group, or None


class KVKind(Protocol):
    """Block policy of one KV group. Counts and indices are in blocks, lengths in tokens."""

    expires: bool  # whether num_expired is ever above 0

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many table entries `num_tokens` tokens need."""
        ...

    def num_expired(self, num_computed: int) -> int:
        """Return how many leading entries the token after `num_computed` and all later ones no longer see."""
        ...

    def longest_hit(self, max_blocks: int, find: Finder) -> list[int]:
        """Return the block ids of the longest usable prefix of at most max_blocks, 0 where a block is not needed."""
        ...

    def peak_blocks(self, num_tokens: int, chunk: int) -> int:
        """Return the most blocks a request of num_tokens ever holds, computed at most `chunk` tokens at a time."""
        ...


def make_kind(spec: KVCacheSpec) -> KVKind:
    """Return the policy of a spec's kind, found by file name."""
    kind: KVKind = importlib.import_module(f"octavo.kvcache.{spec.kind}").Kind(spec)
    return kind
