"""The bytes of single tokens: what the library's decoders do to a whole text, done to one token at a time.

Every decoder in use gives each token bytes of its own, apart from the first token of a text, which may lose a
leading space. So a text can be decoded in constant time per token.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers

from octavo.errors import CheckpointError, UnsupportedModelError

__all__ = ["PieceRules", "byte_alphabet", "read_rules"]

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_CLEAN_UP = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m")),
    *((" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)
_SUPPORTED = "ByteLevel, Metaspace, WordPiece, Replace, ByteFallback, Fuse, Strip and sequences of them"


def byte_alphabet() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for.

    Printable bytes stand for themselves, the other 68 take the characters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
    assert alphabet.keys() == set(pre_tokenizers.ByteLevel.alphabet())
    return alphabet


@dataclass(frozen=True, kw_only=True, slots=True)
class PieceRules:
    """How the text of a token in the vocabulary becomes bytes.

    alphabet: for byte-level vocabularies.   byte_fallback: <0xNN> is that byte.   replaces: (old, new) in order.
    word_prefix: marks a token that continues a word, others begin with a space.   separator: written between tokens.
    num_strip: leading spaces that a text loses.   first_drops: the character that the first token loses everywhere.
    """

    alphabet: dict[str, int] | None = None
    byte_fallback: bool = False
    replaces: tuple[tuple[str, str], ...] = ()
    word_prefix: str | None = None
    clean_up: bool = False
    separator: str = ""
    num_strip: int = 0
    first_drops: str = ""

    @property
    def is_first_different(self) -> bool:
        """Return whether the first token of a text has bytes of its own."""
        return bool(self.num_strip or self.first_drops or self.separator or self.word_prefix is not None)

    def piece(self, text: str, *, is_added: bool, is_first: bool) -> bytes:
        """Return the bytes of one token; leading spaces that the text loses are still there."""
        if self.alphabet is not None:
            if not is_added and all(char in self.alphabet for char in text):
                return bytes(self.alphabet[char] for char in text)
            return text.encode()
        if is_first and self.first_drops:
            text = text.replace(self.first_drops, "")
        for old, new in self.replaces:
            text = text.replace(old, new)
        if self.byte_fallback and _BYTE_TOKEN.fullmatch(text):
            return bytes((int(text[3:5], 16),))
        if self.word_prefix is not None:
            if not is_first:
                is_inside = text.startswith(self.word_prefix)
                text = text.replace(self.word_prefix, "", 1) if is_inside else f" {text}"
            for old, new in _CLEAN_UP if self.clean_up else ():
                text = text.replace(old, new)
        elif self.separator and not is_first:
            text = self.separator + text
        return text.encode()


def read_rules(core: tokenizers.Tokenizer) -> PieceRules:
    """Read the rules from the decoder of a tokenizer. Raises UnsupportedModelError for decoders not listed there."""
    if core.decoder is None:
        return PieceRules(separator=" ")
    state = json.loads(core.decoder.__getstate__())
    steps = state.get("decoders") if state.get("type") == "Sequence" else [state]
    if not isinstance(steps, list):
        raise CheckpointError(f"the tokenizer's decoder is not understood: {str(state)[:200]}")
    rules = PieceRules()
    is_fused = False
    for step in steps:
        kind = step.get("type")
        is_fused = is_fused or kind == "Fuse"
        changed = _apply(rules, kind, step, is_fused=is_fused)
        if changed is None:
            raise UnsupportedModelError(
                f"the tokenizer's decoder has the step {str(step)[:200]} in the place {steps.index(step) + 1} of "
                f"{len(steps)}; supported are {_SUPPORTED}"
            )
        rules = changed
    return rules


def _apply(rules: PieceRules, kind: object, step: dict[str, Any], *, is_fused: bool) -> PieceRules | None:
    """Add one decoder step to the rules; None means that the step, or its place, is not supported."""
    if kind == "Fuse":
        return rules
    if kind == "Strip":
        is_plain = is_fused and step.get("content") == " " and step.get("stop") == 0 and step.get("start", -1) >= 0
        return replace(rules, num_strip=rules.num_strip + step["start"]) if is_plain else None
    if is_fused:
        return None
    if kind == "ByteLevel":
        return replace(rules, alphabet=byte_alphabet())
    if kind == "ByteFallback":
        return replace(rules, byte_fallback=True)
    if kind == "Metaspace":
        mark = step.get("replacement", "\u2581")
        drops = "" if step.get("prepend_scheme") == "never" else mark
        return replace(rules, replaces=(*rules.replaces, (mark, " ")), first_drops=drops)
    if kind == "WordPiece":
        return replace(rules, word_prefix=step.get("prefix", "##"), clean_up=step.get("cleanup", True))
    if kind == "Replace" and not rules.byte_fallback:
        old = step.get("pattern", {}).get("String")
        return replace(rules, replaces=(*rules.replaces, (old, step.get("content", "")))) if old else None
    return None
