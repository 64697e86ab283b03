"""Synthetic workloads: token prompts of given lengths, the same for every engine."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["Workload", "mixed", "single"]


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts as token ids, and how many tokens each request generates (end of sequence is ignored)."""

    name: str
    prompts: tuple[tuple[int, ...], ...]
    output_lens: tuple[int, ...]

    @property
    def output_tokens(self) -> int:
        """Tokens generated over all requests."""
        return sum(self.output_lens)


def single(vocab_size: int, prompt_len: int = 128, output_len: int = 64) -> Workload:
    """One request: latency at batch 1."""
    rng = random.Random(1)
    return Workload("batch 1", (tuple(rng.randrange(10, vocab_size) for _ in range(prompt_len)),), (output_len,))


def mixed(vocab_size: int, count: int = 32) -> Workload:
    """Requests of mixed length: prompts of 16 to 256 tokens, outputs of 16 to 128."""
    rng = random.Random(2)
    prompts = tuple(tuple(rng.randrange(10, vocab_size) for _ in range(rng.randint(16, 256))) for _ in range(count))
    return Workload(f"{count} mixed", prompts, tuple(rng.randint(16, 128) for _ in range(count)))
