"""From layers to groups that share a block table, and from memory to a number of blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.errors import ConfigError
from octavo.kvcache.kind import make_kind
from octavo.kvcache.spec import KVCacheSpec, KVGroup

__all__ = ["MemoryFacts", "MemoryPlan", "plan_blocks", "plan_groups"]

MAX_BLOCKS = 1 << 18  # tables and lists in Python stay small; more cache than this has no use on one machine
MIB = 1 << 20


def plan_groups(specs: Sequence[KVCacheSpec]) -> list[KVGroup]:
    """Divide layers (one spec each, in order) into groups of equal count whose layers have one spec.

    The count is the largest that divides every kind's number of layers (15 windowed + 3 full -> six groups of three).
    Raises ConfigError when layers keep blocks of different sizes: they could not share one pool.
    """
    kinds: dict[KVCacheSpec, list[int]] = {}
    for layer, spec in enumerate(specs):
        kinds.setdefault(spec, []).append(layer)
    if len({spec.block_bytes for spec in kinds}) != 1:
        sizes = ", ".join(f"{spec.kind} {spec.block_bytes}" for spec in kinds)
        raise ConfigError(f"layers whose KV blocks differ in bytes cannot share a pool: {sizes}")
    count = math.gcd(*(len(layers) for layers in kinds.values()))
    return [
        KVGroup(spec, tuple(layers[start : start + count]))
        for spec, layers in kinds.items()
        for start in range(0, len(layers), count)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """The memory equation with its numbers. Sizes in bytes, lengths in tokens.

    block_bytes: of one block over the layers that share a tensor pair.   num_blocks: the null block included.
    tokens: what the cache holds of one long text.   concurrency: requests of max_model_len at once.
    """

    free_bytes: int
    weight_bytes: int
    activation_bytes: int
    memory_fraction: float
    is_fixed: bool
    kv_bytes: int
    block_size: int
    block_bytes: int
    num_blocks: int
    blocks_per_request: int
    max_model_len: int
    tokens: int
    concurrency: float

    @property
    def full_length_bytes(self) -> int:
        """Bytes that one request of max_model_len holds at most."""
        return self.blocks_per_request * self.block_bytes

    def explain(self) -> str:
        """Return the equation line by line."""
        share = "as configured" if self.is_fixed else f"{self.memory_fraction:.0%} of the rest"
        rest = max(0, self.free_bytes - self.weight_bytes - self.activation_bytes)
        rows = [
            ("free memory", self.free_bytes, ""),
            ("- weights", self.weight_bytes, ""),
            ("- activations of the largest step", self.activation_bytes, ""),
            ("= rest", rest, ""),
            ("KV cache, at most", self.kv_bytes, f"  ({share}; committed as it fills)"),
        ]
        lines = [f"{name:<36}{value / MIB:>10,.1f} MiB{note}" for name, value, note in rows]
        lines.append(
            f"{self.num_blocks - 1:,} blocks of {self.block_size} tokens ({self.block_bytes / 1024:,.1f} KiB each) = "
            f"{self.tokens:,} tokens"
        )
        lines.append(
            f"a request of max_model_len={self.max_model_len:,} tokens holds {self.blocks_per_request:,} blocks "
            f"({self.full_length_bytes / MIB:,.1f} MiB): {self.concurrency:,.1f} at once"
        )
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryFacts:
    """What the KV cache has to share, and how. Sizes in bytes.   kv_bytes: fixed by the user, or None."""

    free_bytes: int
    weight_bytes: int
    activation_bytes: int
    memory_fraction: float
    kv_bytes: int | None = None


def plan_blocks(
    groups: Sequence[KVGroup],
    facts: MemoryFacts,
    *,
    max_model_len: int,
    is_length_fixed: bool,
    max_num_seqs: int,
    chunk: int,
) -> MemoryPlan:
    """Turn memory into blocks. Lengths in tokens; chunk: most tokens computed in one step.

    is_length_fixed: whether max_model_len must be met; else it is lowered to what fits.
    Raises ConfigError when not even one request of max_model_len fits.
    """
    spec = groups[0].spec
    block_bytes = spec.block_bytes * max(len(group.layers) for group in groups)
    kinds = [make_kind(group.spec) for group in groups]

    def blocks_of(length: int) -> int:
        return sum(kind.peak_blocks(length, min(chunk, length)) for kind in kinds)

    is_fixed = facts.kv_bytes is not None
    rest = facts.free_bytes - facts.weight_bytes - facts.activation_bytes
    allowed = facts.kv_bytes if facts.kv_bytes is not None else int(max(0, rest) * facts.memory_fraction)
    useful = min(MAX_BLOCKS, 2 * max_num_seqs * blocks_of(max_model_len) + 1)
    num_blocks = min(allowed // block_bytes, useful)
    if blocks_of(max_model_len) > num_blocks - 1 and not is_length_fixed:
        low, high = 0, max_model_len  # blocks_of grows with length
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if blocks_of(middle) <= num_blocks - 1 else (low, middle - 1)
        max_model_len = low
    need = blocks_of(max_model_len)
    if need > num_blocks - 1 or max_model_len < 2:
        raise ConfigError(
            f"the KV cache may take {allowed / MIB:,.1f} MiB ({num_blocks} blocks of {block_bytes / 1024:,.1f} KiB), "
            f"but one request of max_model_len={max_model_len} tokens needs {max(need, 1) + 1}; "
            "lower max_model_len, raise kv_cache_bytes or memory_fraction, or choose a smaller kv_cache_dtype",
            field="kv_cache_bytes" if is_fixed else "memory_fraction",
        )
    concurrency = (num_blocks - 1) / need
    return MemoryPlan(
        free_bytes=facts.free_bytes,
        weight_bytes=facts.weight_bytes,
        activation_bytes=facts.activation_bytes,
        memory_fraction=facts.memory_fraction,
        is_fixed=is_fixed,
        kv_bytes=num_blocks * block_bytes,
        block_size=spec.block_size,
        block_bytes=block_bytes,
        num_blocks=num_blocks,
        blocks_per_request=need,
        max_model_len=max_model_len,
        tokens=int(concurrency * max_model_len),
        concurrency=concurrency,
    )
