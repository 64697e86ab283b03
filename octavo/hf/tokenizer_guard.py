"""Keep text that nobody trusts from forming control tokens.

Each control token of the template is replaced by a stand-in: an added token of the same kind whose text nobody can
know. A second tokenizer, in which the control tokens themselves are never found in text, encodes the result, and
the stand-ins become the control tokens again. So all rules of the tokenizer about what is before, after and between
added tokens hold, and the text of messages is encoded as ordinary text.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Sequence
from itertools import compress

import tokenizers
from tokenizers import AddedToken, models

__all__ = ["ControlGuard"]

_BREAK = (False, False, True)  # lstrip, rstrip, normalized of the stand-in for nothing


class ControlGuard:
    """The control tokens of a tokenizer: its special tokens and the added tokens in `texts`."""

    def __init__(self, core: tokenizers.Tokenizer, texts: frozenset[str]) -> None:
        self._core = core
        self._added = sorted(core.get_added_tokens_decoder().items())
        self._tokens = {
            token.content: (token_id, token)
            for token_id, token in self._added
            if (token.special or token.content in texts) and token.content
        }
        self.control_ids = frozenset(token_id for token_id, _ in self._tokens.values())
        self._unknown_id = _unknown_id(core) if self._tokens else None
        longest_first = sorted(self._tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._secret = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._second: tokenizers.Tokenizer | None = None

    def find_forged(
        self, text: str, trusted: bytes, ids: Sequence[int], offsets: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Return where in `text` control tokens are made of characters that are not trusted.

        trusted: one byte for each character, 1 or 0.   offsets: the span in `text` of each id.
        White space that a token takes from beside it counts too; `encode` then finds the same token again.
        """
        forged = []
        for place in compress(range(len(ids)), map(self.control_ids.__contains__, ids)):
            start, end = offsets[place]
            if ids[place] == self._unknown_id and not self._pattern.search(text, start, end):
                continue  # characters that the vocabulary lacks
            if 0 in trusted[start:end]:
                forged.append((start, end))
        return forged

    def encode(self, text: str, trusted: bytes, *, add_special_tokens: bool) -> list[int]:
        """Encode text in which some characters are not trusted; `trusted` has one byte for each, 1 or 0."""
        second = self._build_second()
        cuts: set[int] = set()
        while True:
            masked, new_trusted, found = self._mask(text, trusted, cuts)
            encoding = second.encode(masked, add_special_tokens=add_special_tokens)
            stand_ins = self._stand_ins(second)
            ids = encoding.ids
            # a vocabulary may hold control tokens as ordinary entries; such text is cut in two
            rest = [(-1 if i in stand_ins else i) for i in ids]
            forged = self.find_forged(masked, new_trusted, rest, encoding.offsets)
            more = self._unmask([start + 1 for start, end in forged if end - start > 1], found) - cuts
            if not more:
                return self._restore(ids, stand_ins, found)
            cuts |= more

    def _mask(self, text: str, trusted: bytes, cuts: set[int]) -> tuple[str, bytes, list[tuple[int, int, int | None]]]:
        """Replace the trusted control tokens, and put a stand-in for nothing at each cut.

        Returns the new text and trust, and in order (start, characters replaced, id or None) of each stand-in.
        """
        found: list[tuple[int, int, int | None]] = [(cut, 0, None) for cut in cuts]
        for run in re.finditer(b"\x01+", trusted):
            for match in self._pattern.finditer(text, run.start(), run.end()):
                token_id, token = self._tokens[match.group()]
                if token.single_word and _is_inside_word(text, match.start(), match.end()):
                    continue
                found.append((match.start(), len(match.group()), token_id))
        found.sort()
        parts: list[str] = []
        trust: list[bytes] = []
        done = 0
        for start, length, token_id in found:
            name = self._name(_BREAK if token_id is None else _kind(self._tokens[text[start : start + length]][1]))
            parts += [text[done:start], name]
            trust += [trusted[done:start], b"\x01" * len(name)]
            done = start + length
        return "".join([*parts, text[done:]]), b"".join([*trust, trusted[done:]]), found

    def _unmask(self, places: list[int], found: list[tuple[int, int, int | None]]) -> set[int]:
        """Return the places in the original text of places in the masked text, which are in order."""
        name_length = len(self._name(_BREAK))
        unmasked: set[int] = set()
        shift, done = 0, 0  # original place less masked place, behind the first stand-ins
        for place in places:
            while done < len(found) and place + shift > found[done][0]:
                shift += found[done][1] - name_length
                done += 1
            unmasked.add(place + shift)
        return unmasked

    def _restore(
        self, ids: list[int], stand_ins: dict[int, bool], found: list[tuple[int, int, int | None]]
    ) -> list[int]:
        """Put the control tokens in the place of their stand-ins, and drop those for nothing."""
        real = iter(token_id for _, _, token_id in found)
        restored = [next(real) if token_id in stand_ins else token_id for token_id in ids]
        assert next(real, -1) == -1, "a stand-in was lost"
        return [token_id for token_id in restored if token_id is not None]

    def _name(self, kind: tuple[bool, bool, bool]) -> str:
        """Return the text of a stand-in; all are of one length."""
        return f"\U0010fff0{self._secret}{sum(flag << i for i, flag in enumerate(kind))}\U0010fff0"

    def _stand_ins(self, second: tokenizers.Tokenizer) -> dict[int, bool]:
        """Return the ids of all stand-ins."""
        found = (second.token_to_id(self._name(kind)) for kind in _KINDS)
        return {token_id: True for token_id in found if token_id is not None}

    def _build_second(self) -> tokenizers.Tokenizer:
        """Return the tokenizer that never finds a control token in text; it shares the vocabulary with the first."""
        with self._lock:
            if self._second is not None:
                return self._second
            second = tokenizers.Tokenizer(self._core.model)
            for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
                if getattr(self._core, name) is not None:
                    setattr(second, name, getattr(self._core, name))
            tokens = [_copy(token, special=token.content in self._tokens) for _, token in self._added]
            second.add_tokens(tokens)
            second.add_tokens([_stand_in(self._name(kind), kind) for kind in _KINDS])
            second.encode_special_tokens = True
            assert all(second.token_to_id(token.content) == token_id for token_id, token in self._added)
            self._second = second
            return second


_KINDS = [(lstrip, rstrip, norm) for lstrip in (False, True) for rstrip in (False, True) for norm in (False, True)]


def _unknown_id(core: tokenizers.Tokenizer) -> int | None:
    """Return the token that stands for what the vocabulary lacks; None if there is none."""
    if isinstance(core.model, models.Unigram):
        return json.loads(core.model.__getstate__()).get("unk_id")
    text = core.model.unk_token
    return None if text is None else core.token_to_id(text)


def _kind(token: AddedToken) -> tuple[bool, bool, bool]:
    """Return lstrip, rstrip and normalized of a token."""
    return (token.lstrip, token.rstrip, token.normalized)


def _copy(token: AddedToken, *, special: bool) -> AddedToken:
    """Return a token with another `special`."""
    lstrip, rstrip, normalized = _kind(token)
    return AddedToken(
        token.content,
        lstrip=lstrip,
        rstrip=rstrip,
        normalized=normalized,
        single_word=token.single_word,
        special=special,
    )


def _stand_in(text: str, kind: tuple[bool, bool, bool]) -> AddedToken:
    """Return a stand-in: an added token that is found in text."""
    return _copy(AddedToken(text, lstrip=kind[0], rstrip=kind[1], normalized=kind[2]), special=False)


def _is_inside_word(text: str, start: int, end: int) -> bool:
    """Tell whether a word goes on before or after a span."""
    return bool(re.match(r"\w", text[max(0, start - 1) : start]) or re.match(r"\w", text[end : end + 1]))
