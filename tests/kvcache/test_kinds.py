"""Each KV kind keeps what later tokens see, and finds the longest hit that serves them."""

from __future__ import annotations

import random

import pytest

from octavo.kvcache.kind import KVKind, make_kind
from octavo.kvcache.spec import KVCacheSpec

SIZE = 4


def _kind(window: int | None) -> KVKind:
    kind = "sliding_window" if window else "full"
    return make_kind(KVCacheSpec(kind=kind, block_size=SIZE, num_kv_heads=1, head_dim=1, dtype="f32", window=window))


def _needed(window: int | None, num_computed: int) -> set[int]:
    """Blocks that hold a position which token number num_computed or a later one sees, among those before it."""
    first = 0 if window is None else max(0, num_computed + 1 - window)
    return {position // SIZE for position in range(first, num_computed)}


@pytest.mark.parametrize("window", [None, 1, 3, 4, 5, 8, 17])
def test_a_block_expires_when_no_later_token_sees_it(window: int | None) -> None:
    kind = _kind(window)
    for num_computed in range(60):
        expired = set(range(kind.num_expired(num_computed)))
        needed = _needed(window, num_computed)
        assert not expired & needed
        if needed:
            assert expired == set(range(min(needed)))


@pytest.mark.parametrize("window", [None, 1, 3, 4, 5, 8, 17])
def test_hit_is_the_longest_prefix_whose_needed_blocks_are_cached(window: int | None) -> None:
    kind, rng = _kind(window), random.Random(2)
    for _ in range(300):
        limit = rng.randint(0, 9)
        cached = {index: index + 100 for index in range(limit) if rng.random() < 0.7}
        hit = kind.longest_hit(limit, cached.get)
        longest = max(n for n in range(limit + 1) if _needed(window, n * SIZE) <= set(cached))
        assert len(hit) == longest
        needed = _needed(window, longest * SIZE)
        assert all(block == (cached[i] if i in needed else block) for i, block in enumerate(hit))
        assert all(block in (0, cached.get(i)) for i, block in enumerate(hit))


@pytest.mark.parametrize("window", [None, 1, 3, 4, 5, 8, 17])
@pytest.mark.parametrize("chunk", [1, 3, 8, 100])
def test_peak_is_never_exceeded(window: int | None, chunk: int) -> None:
    kind = _kind(window)
    for start in range(min(chunk, SIZE)):  # a first chunk of any length, then whole ones
        computed, total = 0, 70
        while computed < total:
            count = min(chunk - start if computed == 0 else chunk, total - computed)
            held = kind.blocks_for(computed + count) - kind.num_expired(computed)
            assert held <= kind.peak_blocks(total, chunk)
            computed += count
