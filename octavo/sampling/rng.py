"""The key of a draw: which random numbers belong to one token of one sample of one seed.

Keys depend on nothing else, so a request draws the same tokens alone or in any batch, chunked, preempted or resumed.
"""

from __future__ import annotations

__all__ = ["draw_key"]

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def draw_key(seed: int, sample_index: int, position: int) -> int:
    """Return the uint64 key that gumbel_argmax takes.

    seed: 64 bits, negative numbers as two's complement.   sample_index: which of a request's n samples.
    position: index of the token to be sampled in prompt and output, from 0.

        key = 0; then for value in seed, sample_index, position: key = mix64((key ^ value) + 0x9E3779B97F4A7C15)

    all in uint64, wrapping; mix64 as in ops/sample.py:gumbel_argmax.
    """
    key = 0
    for value in (seed, sample_index, position):
        key = _mix64(((key ^ value) + _GOLDEN) & _MASK)
    return key


def _mix64(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
