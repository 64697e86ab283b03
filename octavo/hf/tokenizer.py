"""Text to token ids and back, exactly as the model's own tokenizer does it, but for text that nobody trusts.

Control tokens (end of turn, start of a role) are for the chat template to write. `encode_pieces` knows of each
character whether the template wrote it, and never lets a message form a control token.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any

from octavo.errors import InvalidRequestError
from octavo.hf.gguf_tokenizer import read_gguf_tokenizer
from octavo.hf.tokenizer_folder import read_folder
from octavo.hf.tokenizer_guard import ControlGuard
from octavo.hf.tokenizer_pieces import PieceRules, read_rules
from octavo.hf.tokenizer_source import LibraryErrors, TokenizerSource

__all__ = ["Tokenizer"]

_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_GUARDS = 8  # one per set of control texts; a model has one chat template, or a few


class Tokenizer:
    """A model's tokenizer. It does not change after construction and serves several threads at once.

    bos_token_id, pad_token_id, unk_token_id: ids, or None if the model has no such token.
    eos_token_ids: all tokens that end a text or a turn.   adds_bos: whether encoding adds the BOS token by itself.
    special_ids: tokens left out of decoded text.   added_tokens: text -> id of tokens found before all others.
    """

    def __init__(self, source: TokenizerSource) -> None:
        self._core = source.core
        added = self._core.get_added_tokens_decoder()
        self.vocab_size: int = self._core.get_vocab_size()
        self.bos_token_id = source.bos_token_id
        self.eos_token_ids = source.eos_token_ids
        self.pad_token_id = source.pad_token_id
        self.unk_token_id = source.unk_token_id
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.special_ids |= source.special_ids
        self.added_tokens: Mapping[str, int] = MappingProxyType(
            {token.content: token_id for token_id, token in added.items()}
        )
        self._added_ids = frozenset(added)
        with LibraryErrors("the tokenizer"):
            self.adds_bos = self.bos_token_id is not None and self._core.encode("").ids[:1] == [self.bos_token_id]
        self.rules: PieceRules = read_rules(self._core)
        self._pieces: dict[int, bytes] = {}
        self._guards: dict[frozenset[str], ControlGuard] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_folder(cls, path: Path) -> Tokenizer:
        """Read the tokenizer of a model folder: tokenizer.json, tokenizer_config.json, special_tokens_map.json.

        Raises CheckpointError, UnsupportedModelError or ModelNotFoundError.
        """
        return cls(read_folder(path))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Read the tokenizer in the metadata of a GGUF file. Raises CheckpointError or UnsupportedModelError."""
        return cls(read_gguf_tokenizer(metadata))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Encode a raw prompt; the text of control tokens in it becomes these tokens.

        A BOS token that the text begins with is not added again. Raises InvalidRequestError for lone surrogates.
        """
        _check(text)
        with LibraryErrors("the model's tokenizer cannot encode the text"):
            ids = self._core.encode(text, add_special_tokens=add_special_tokens).ids
        return self._once(ids, add_special_tokens)

    def encode_pieces(
        self,
        pieces: Sequence[tuple[str, bool]],
        *,
        add_special_tokens: bool = False,
        control_texts: Collection[str] = (),
    ) -> list[int]:
        """Encode pieces (text, is_trusted) of a rendered chat template as one text.

        Special tokens and the added tokens in `control_texts` are made of trusted characters only; other text that
        looks like them is encoded as ordinary text. Where no such text is, the ids are those of `encode`.
        Raises InvalidRequestError for lone surrogates.
        """
        text = "".join(piece for piece, _ in pieces)
        _check(text)
        guard = self._guard(frozenset(text for text in control_texts if text in self.added_tokens))
        with LibraryErrors("the model's tokenizer cannot encode the text"):
            encoding = self._core.encode(text, add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        if not guard.control_ids.isdisjoint(ids):
            trusted = bytes(chain.from_iterable(repeat(int(is_trusted), len(piece)) for piece, is_trusted in pieces))
            if guard.find_forged(text, trusted, ids, encoding.offsets):
                ids = guard.encode(text, trusted, add_special_tokens=add_special_tokens)
        return self._once(ids, add_special_tokens)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of tokens; bytes that are no UTF-8 become U+FFFD. Ids without a token are left out.

        As the library decodes, apart from: the word-joining clean-up over token borders is not done, and in a run
        of byte tokens with an error only the bytes at fault are replaced.
        """
        skipped = self.special_ids if skip_special_tokens else frozenset()
        kept = [token_id for token_id in ids if token_id not in skipped]
        data = b"".join(map(self.token_bytes, kept))
        if self.rules.is_first_different and kept:
            first = next((i for i, token_id in enumerate(kept) if self.has_token(token_id)), 0)
            data = self.first_bytes(kept[first]) + b"".join(map(self.token_bytes, kept[first + 1 :]))
        return self.text_of(self.strip_first(data))

    def token_text(self, token_id: int) -> str:
        """Return a token as the vocabulary writes it; "" if there is none with this id."""
        return (self._core.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text that has begun; b"" if there is no token with this id."""
        found = self._pieces.get(token_id)
        if found is None:
            found = self._piece(token_id, is_first=False)
            if len(self._pieces) <= self.vocab_size:
                self._pieces[token_id] = found
        return found

    def first_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token that begins a text, before `strip_first`."""
        return self._piece(token_id, is_first=True)

    def strip_first(self, data: bytes) -> bytes:
        """Return the bytes of a text without the leading spaces that this tokenizer adds."""
        spaces = min(self.rules.num_strip, len(data) - len(data.lstrip(b" ")))
        return data[spaces:]

    def has_token(self, token_id: int) -> bool:
        """Tell whether there is a token with this id."""
        return 0 <= token_id < 1 << 32 and self._core.id_to_token(token_id) is not None

    def text_of(self, data: bytes) -> str:
        """Return bytes as text, with U+FFFD for what is no UTF-8: as this tokenizer's library does."""
        if self.rules.byte_fallback:  # one for each byte
            return _SURROGATE.sub("\ufffd", data.decode(errors="surrogateescape"))
        return data.decode(errors="replace")

    def _piece(self, token_id: int, *, is_first: bool) -> bytes:
        """Compute the bytes of a token."""
        text = self._core.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None
        if text is None:
            return b""
        return self.rules.piece(text, is_added=token_id in self._added_ids, is_first=is_first)

    def _once(self, ids: list[int], added: bool) -> list[int]:
        """Take away a BOS token that was added before another."""
        return ids[1:] if added and self.adds_bos and ids[1:2] == [self.bos_token_id] else ids

    def _guard(self, texts: frozenset[str]) -> ControlGuard:
        """Return the guard of a set of added tokens."""
        found = self._guards.get(texts)
        if found is None:
            with self._lock:
                if len(self._guards) >= _MAX_GUARDS:
                    self._guards.clear()
                found = self._guards.setdefault(texts, ControlGuard(self._core, texts))
        return found


def _check(text: str) -> None:
    """Refuse text that has no UTF-8 form."""
    if not text.isascii() and (match := _SURROGATE.search(text)):
        raise InvalidRequestError(
            f"the text has a lone surrogate {match.group()!r} at character {match.start()}, which is no Unicode text; "
            "send characters beyond U+FFFF whole",
            "prompt",
        )
