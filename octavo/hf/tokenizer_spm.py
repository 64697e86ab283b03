"""Build SentencePiece tokenizers from pieces and scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from octavo.errors import CheckpointError

__all__ = ["SpmRules", "build_bpe", "build_unigram"]

_SPACE = "\u2581"


@dataclass(frozen=True, kw_only=True, slots=True)
class SpmRules:
    """What a SentencePiece tokenizer does beside its pieces.

    unknown: the token of characters without a token.   has_bytes: they become the tokens of their bytes instead.
    charsmap: compiled normalization rules, may be empty; the library applies them to whole user-perceived characters,
    which differs from sentencepiece for CR LF and long combining sequences.   add_prefix: a space is added before text.
    is_squeezed: runs of spaces count as one, and those around text not at all.
    """

    unknown: int | None
    has_bytes: bool
    charsmap: bytes
    add_prefix: bool
    is_squeezed: bool

    def normalizer(self) -> normalizers.Normalizer:
        """Return the steps from text to pieces, which write spaces as a visible character."""
        steps: list[normalizers.Normalizer] = [normalizers.Precompiled(self.charsmap)] if self.charsmap else []
        if self.is_squeezed:
            steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
        if self.add_prefix:
            steps.append(normalizers.Prepend(_SPACE))
        return normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])

    def decoder(self) -> decoders.Decoder:
        """Return the steps from pieces to text."""
        strip = [decoders.Strip(" ", 1, 0)] if self.add_prefix else []
        return decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])


def build_bpe(
    vocab: dict[str, int], scores: np.ndarray, rules: SpmRules, *, is_mergeable: np.ndarray
) -> tokenizers.Tokenizer:
    """Build SentencePiece BPE.

    vocab: in the order of ids.   scores: [V] float, a higher score merges first.
    is_mergeable: [V] bool, False for control and like tokens.
    """
    unknown = None if rules.unknown is None else list(vocab)[rules.unknown]
    core = tokenizers.Tokenizer(
        models.BPE(
            vocab,
            _merges(vocab, scores, is_mergeable),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=rules.has_bytes,
        )
    )
    core.normalizer = rules.normalizer()
    core.decoder = rules.decoder()
    return core


def build_unigram(tokens: list[str], scores: np.ndarray, rules: SpmRules) -> tokenizers.Tokenizer:
    """Build SentencePiece unigram.

    tokens: by id.   scores: [V] float, log probabilities.
    """
    if rules.unknown is None:
        raise CheckpointError("tokenizer.ggml.unknown_token_id is missing; a unigram tokenizer needs it")
    pieces = list(zip(tokens, scores.astype(float).tolist(), strict=True))
    core = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=rules.unknown, byte_fallback=rules.has_bytes))
    core.normalizer = rules.normalizer()
    core.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="never")
    core.decoder = rules.decoder()
    return core


def _merges(vocab: dict[str, int], scores: np.ndarray, is_mergeable: np.ndarray) -> list[tuple[str, str]]:
    """Return every pair of mergeable tokens that makes a mergeable token, best score of the result first.

    All beginnings and ends of all tokens are looked up by hash at once, which is several times faster than as text.
    """
    texts = np.array(list(vocab), dtype=object)
    ids = np.flatnonzero(is_mergeable)
    ids = ids[np.argsort(-scores[ids], kind="stable")]
    if ids.size == 0:
        return []
    ordered = texts[ids].tolist()
    lengths = np.fromiter(map(len, ordered), np.int64, len(ordered))
    starts = np.cumsum(lengths) - lengths
    ends = starts + lengths
    hashes = _Hashes("".join(ordered))
    table = _Table(hashes.of(starts, ends))
    # every place inside a token is a place to cut it
    token = np.repeat(np.arange(ids.size), lengths - 1)
    first_of_token = np.cumsum(lengths - 1) - (lengths - 1)
    cut = starts[token] + 1 + np.arange(token.size) - first_of_token[token]
    left = table.find(hashes.of(starts[token], cut))
    kept = np.flatnonzero(left >= 0)
    token, cut, left = token[kept], cut[kept], left[kept]
    right = table.find(hashes.of(cut, ends[token]))
    kept = np.flatnonzero(right >= 0)
    # texts of equal hashes can only be made on purpose; then a merge is wrong, and the library refuses it
    text = ordered.__getitem__
    return list(zip(map(text, left[kept].tolist()), map(text, right[kept].tolist()), strict=True))


class _Table:
    """Where each of many hashes is, looked up for a million at once."""

    FACTOR = 0xD6E8FEB86659FD93  # odd; mixes all bits into the upper ones
    MAX_LEVELS = 6  # each holds what collides in those before: a sixteenth

    def __init__(self, hashes: np.ndarray) -> None:
        """Index hashes, [N] u64."""
        self._hashes = hashes
        self._levels: list[tuple[np.ndarray, np.uint64]] = []
        rest = np.arange(hashes.size)
        while rest.size and len(self._levels) < self.MAX_LEVELS:
            bits = max(4, int(rest.size).bit_length() + 3)
            level, shift = np.zeros(1 << bits, np.int32), np.uint64(64 - bits)
            slots = self._slots(hashes[rest], len(self._levels), shift)
            level[slots] = rest
            self._levels.append((level, shift))
            rest = rest[level[slots] != rest]

    def find(self, wanted: np.ndarray) -> np.ndarray:
        """Return the index of each wanted hash, [M] u64, or -1: [M] i64."""
        found = np.full(wanted.size, -1)
        open_ = np.arange(wanted.size)
        for number, (level, shift) in enumerate(self._levels):
            index = level[self._slots(wanted[open_], number, shift)]
            is_hit = self._hashes[index] == wanted[open_]
            found[open_[is_hit]] = index[is_hit]
            open_ = open_[~is_hit]
        return found

    @classmethod
    def _slots(cls, hashes: np.ndarray, number: int, shift: np.uint64) -> np.ndarray:
        """Return the slots of hashes in the level of a number, [N] i64."""
        factor = np.uint64(pow(cls.FACTOR, number + 1, 1 << 64))
        return (((hashes ^ (hashes >> np.uint64(29))) * factor) >> shift).astype(np.int64)


class _Hashes:
    """Hashes of all parts of a text: the sum of character times FACTOR ** place, modulo 2 ** 64."""

    FACTOR = 0x9E3779B97F4A7C15  # odd, so it has an inverse

    def __init__(self, text: str) -> None:
        characters = np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.uint64)
        powers = self._powers(self.FACTOR, characters.size)
        self._inverse = self._powers(pow(self.FACTOR, -1, 1 << 64), characters.size + 1)
        self._sums = np.zeros(characters.size + 1, np.uint64)
        np.cumsum((characters + np.uint64(1)) * powers, out=self._sums[1:])

    def of(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return the hashes [N] u64 of the parts from `starts` to `ends`, both [N] i64."""
        return (self._sums[ends] - self._sums[starts]) * self._inverse[starts]

    @staticmethod
    def _powers(factor: int, count: int) -> np.ndarray:
        """Return the first `count` powers of a factor, [count] u64."""
        powers = np.full(count, factor, np.uint64)
        powers[:1] = 1
        return np.cumprod(powers, dtype=np.uint64)
