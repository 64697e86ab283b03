"""Build SentencePiece tokenizers from pieces and scores."""

from __future__ import annotations

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from octavo.errors import CheckpointError

__all__ = ["build_bpe", "build_unigram"]

_SPACE = "\u2581"


def build_bpe(
    vocab: dict[str, int],
    scores: np.ndarray,
    *,
    is_mergeable: np.ndarray,
    has_bytes: bool,
    unknown: int | None,
    add_prefix: bool,
) -> tokenizers.Tokenizer:
    """Build SentencePiece BPE.

    scores: [V] float, a higher score merges first.   is_mergeable: [V] bool, False for control and like tokens.
    has_bytes: characters without a token become the tokens of their bytes, otherwise `unknown`.
    add_prefix: a space is added before text.
    """
    merges = _merges(vocab, scores, is_mergeable)
    texts = {token_id: text for text, token_id in vocab.items()}
    core = tokenizers.Tokenizer(
        models.BPE(
            vocab,
            merges,
            unk_token=None if unknown is None else texts[unknown],
            fuse_unk=True,
            byte_fallback=has_bytes,
        )
    )
    steps = [normalizers.Replace(" ", _SPACE)]
    core.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), *steps] if add_prefix else steps)
    strip = [decoders.Strip(" ", 1, 0)] if add_prefix else []
    core.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return core


def _merges(vocab: dict[str, int], scores: np.ndarray, is_mergeable: np.ndarray) -> list[tuple[str, str]]:
    """Return every pair of mergeable tokens that makes a mergeable token, best score of the result first."""
    order = np.argsort(-scores, kind="stable")
    texts = list(vocab)
    flags = is_mergeable.tolist()
    known = {text for text, flag in zip(texts, flags, strict=True) if flag}
    merges = []
    for token_id in order.tolist():
        if flags[token_id]:
            text = texts[token_id]
            merges += [
                (text[:cut], text[cut:]) for cut in range(1, len(text)) if text[:cut] in known and text[cut:] in known
            ]
    return merges


def build_unigram(
    tokens: list[str],
    scores: np.ndarray,
    *,
    unknown: int | None,
    has_bytes: bool,
    charsmap: bytes,
    add_prefix: bool,
    is_space_squeezed: bool,
) -> tokenizers.Tokenizer:
    """Build SentencePiece unigram.

    scores: [V] float, log probabilities.   charsmap: compiled normalization rules, may be empty.
    add_prefix: a space is added before text.   is_space_squeezed: runs of spaces count as one.
    """
    if unknown is None:
        raise CheckpointError("tokenizer.ggml.unknown_token_id is missing; a unigram tokenizer needs it")
    pieces = list(zip(tokens, scores.astype(float).tolist(), strict=True))
    core = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=has_bytes))
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(charsmap)] if charsmap else []
    if is_space_squeezed:
        steps += [normalizers.Strip(left=True, right=True), normalizers.Replace(Regex(" {2,}"), " ")]
    if steps:
        core.normalizer = normalizers.Sequence(steps)
    scheme = "always" if add_prefix else "never"
    core.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    core.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    return core
