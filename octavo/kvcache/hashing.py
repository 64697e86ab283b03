"""Chained block hashes: a block's key stands for all tokens up to its end, and for whatever else its KV depends on."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import TypeAlias

__all__ = ["BlockHash", "BlockHasher", "BlockKey"]

BlockHash: TypeAlias = bytes
BlockKey: TypeAlias = tuple[bytes, int]  # hash, KV group index

DIGEST_BYTES = 16


class BlockHasher:
    """Hashes blocks with a secret of this process, so that nobody outside can aim at a collision."""

    def __init__(self, secret: bytes, block_size: int) -> None:
        self._secret = secret[:64]  # blake2b's longest key
        self.block_size = block_size

    def root(self, extra: tuple[str, ...]) -> BlockHash:
        """Return the parent of a first block: it separates what must not share (cache salts)."""
        digest = hashlib.blake2b(key=self._secret, digest_size=DIGEST_BYTES)
        for part in extra:
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.digest()

    def extend(self, hashes: list[BlockHash], root: BlockHash, tokens: Sequence[int]) -> None:
        """Append the hash of every full block of `tokens` that `hashes` does not have yet."""
        size = self.block_size
        for start in range(len(hashes) * size, len(tokens) - size + 1, size):
            parent = hashes[-1] if hashes else root
            block = array("q", tokens[start : start + size]).tobytes()
            hashes.append(hashlib.blake2b(parent + block, key=self._secret, digest_size=DIGEST_BYTES).digest())
