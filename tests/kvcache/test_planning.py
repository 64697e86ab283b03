"""Layers become groups of equal count, and memory becomes blocks by an equation that adds up."""

from __future__ import annotations

import pytest

from octavo.errors import ConfigError
from octavo.kvcache.planning import MemoryFacts, MemoryPlan, plan_blocks, plan_groups
from octavo.kvcache.spec import KVCacheSpec

MIB = 1 << 20


def _spec(window: int | None = None, head_dim: int = 64) -> KVCacheSpec:
    kind = "sliding_window" if window else "full"
    return KVCacheSpec(kind=kind, block_size=16, num_kv_heads=2, head_dim=head_dim, dtype="f32", window=window)


def _plan(free: int, *, length: int = 4096, is_fixed: bool = False, kv_bytes: int | None = None) -> MemoryPlan:
    facts = MemoryFacts(
        free_bytes=free, weight_bytes=100 * MIB, activation_bytes=10 * MIB, memory_fraction=0.5, kv_bytes=kv_bytes
    )
    groups = plan_groups([_spec()] * 4)
    return plan_blocks(groups, facts, max_model_len=length, is_length_fixed=is_fixed, max_num_seqs=256, chunk=2048)


def test_fifteen_windowed_and_three_full_layers_are_six_groups_of_three() -> None:
    specs = [_spec() if (layer + 1) % 6 == 0 else _spec(512) for layer in range(18)]
    groups = plan_groups(specs)
    assert [len(group.layers) for group in groups] == [3] * 6
    assert sorted(layer for group in groups for layer in group.layers) == list(range(18))
    assert all(specs[layer] == group.spec for group in groups for layer in group.layers)


def test_layers_with_blocks_of_different_bytes_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot share a pool"):
        plan_groups([_spec(), _spec(512, head_dim=128)])


def test_the_equation_adds_up() -> None:
    plan = _plan(1110 * MIB)
    assert plan.block_bytes == 4 * 2 * 16 * 2 * 64 * 4
    assert plan.kv_bytes == 500 * MIB
    assert plan.num_blocks == 500 * MIB // plan.block_bytes
    assert plan.blocks_per_request == 4096 // 16
    assert plan.concurrency == (plan.num_blocks - 1) / 256
    assert "500.0 MiB" in plan.explain() and f"{plan.tokens:,} tokens" in plan.explain()


def test_a_free_length_is_the_longest_that_fits() -> None:
    plan = _plan(112 * MIB)  # one MiB for the cache
    assert plan.max_model_len == (plan.num_blocks - 1) * 16 < 4096
    assert plan.concurrency >= 1


def test_a_fixed_length_that_does_not_fit_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"max_model_len=4096 tokens needs 257; lower max_model_len"):
        _plan(112 * MIB, is_fixed=True)


def test_given_bytes_are_taken_as_they_are() -> None:
    assert _plan(1 * MIB, length=64, kv_bytes=20 * MIB).kv_bytes == 20 * MIB


def test_a_small_model_does_not_get_more_blocks_than_it_can_use() -> None:
    plan = _plan(1 << 40, length=32)
    assert plan.num_blocks == 2 * 256 * 2 + 1
