"""The pool hands blocks out once, evicts the least recently freed, and finds what is cached."""

from __future__ import annotations

import random

from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.hashing import BlockHasher
from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.spec import KVCacheSpec, KVGroup


def _key(name: str) -> tuple[bytes, int]:
    return (name.encode(), 0)


def test_blank_blocks_are_reused_first_then_the_least_recently_freed() -> None:
    pool = BlockPool(5)
    a, b, c, d = pool.take(4)
    for block, name in ((a, "a"), (b, "b"), (c, "c")):
        pool.cache(block, _key(name), (1,))
    pool.release([b])
    pool.release([a])
    pool.release([d])  # blank
    pool.release([c])
    assert pool.take(4) == [d, b, a, c]
    assert pool.num_cached == 0


def test_hit_takes_a_free_block_out_of_the_way_of_eviction() -> None:
    pool = BlockPool(3)
    a, b = pool.take(2)
    pool.cache(a, _key("a"), (1, 2))
    pool.release([a, b])
    found = pool.find(_key("a"), (1, 2))
    assert found is not None and found.block_id == a
    pool.hold([a])
    assert pool.take(1) == [b]
    assert pool.num_free == 0


def test_tokens_are_compared_on_a_hit() -> None:
    pool = BlockPool(2)
    (a,) = pool.take(1)
    pool.cache(a, _key("a"), (1, 2))
    assert pool.find(_key("a"), (1, 3)) is None


def test_random_use_keeps_the_books() -> None:
    rng, pool = random.Random(4), BlockPool(20)
    held: list[int] = []
    for turn in range(3000):
        action = rng.random()
        if action < 0.4 and pool.num_free:
            held += pool.take(rng.randint(1, pool.num_free))
        elif action < 0.7 and held:
            pool.release([held.pop(rng.randrange(len(held)))])
        elif action < 0.85 and held:
            block = pool.blocks[rng.choice(held)]
            if block.key is None:
                pool.cache(block.block_id, _key(str(turn % 30)), (turn % 30,))
        else:
            found = pool.find(_key(str(turn % 30)), (turn % 30,))
            if found is not None:
                pool.hold([found.block_id])
                held.append(found.block_id)
        assert pool.num_free + len(set(held)) == pool.num_total
        assert pool.num_cached == sum(block.key is not None for block in pool.blocks)
        assert all(pool.blocks[block].ref_count == held.count(block) for block in set(held))
    assert 0 not in held


def test_hashes_are_chained_keyed_and_separated_by_salt() -> None:
    one, other = BlockHasher(b"secret", 2), BlockHasher(b"another", 2)

    def hashes(hasher: BlockHasher, tokens: list[int], salt: tuple[str, ...] = ()) -> list[bytes]:
        found: list[bytes] = []
        hasher.extend(found, hasher.root(salt), tokens)
        return found

    first = hashes(one, [1, 2, 3, 4, 5])
    assert len(first) == 2  # whole blocks only
    assert hashes(one, [1, 2, 3, 4]) == first
    assert hashes(one, [9, 2, 3, 4])[1] != first[1]  # the second block's hash stands for the first block too
    assert not set(hashes(one, [1, 2, 3, 4], ("tenant",))) & set(first)
    assert not set(hashes(other, [1, 2, 3, 4])) & set(first)
    assert one.root(("a", "b")) != one.root(("ab",))


def test_a_hit_leaves_a_token_to_compute() -> None:
    spec = KVCacheSpec(kind="full", block_size=2, num_kv_heads=1, head_dim=1, dtype="f32")
    cache = KVCacheManager([KVGroup(spec, (0,))], 10, enable_prefix_caching=True, hash_secret=b"x")
    first = cache.open(())
    cache.allocate(first, 4)
    cache.commit(first, [1, 2, 3, 4], 4)
    assert len(cache.match(cache.open(()), [1, 2, 3, 4])[0]) == 1
    assert len(cache.match(cache.open(()), [1, 2, 3, 4, 5])[0]) == 2
    assert cache.match(cache.open(("salt",)), [1, 2, 3, 4, 5]) == [[]]
    cache.taint(first)
    cache.free(first)
    assert cache.match(cache.open(()), [1, 2, 3, 4, 5]) == [[]]
    assert cache.pool.num_free == cache.pool.num_total
