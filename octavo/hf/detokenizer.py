"""Tokens to text as they come: whole characters only, and nothing that may yet become a stop string.

    token bytes -> incremental UTF-8 decoder -> text -> stop strings -> safe text
                   holds a begun character               hold the longest begun stop string

Each token costs the same, however long the text is. What is given out in the end is what decoding all tokens at
once gives.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from itertools import islice

from octavo.errors import InvalidRequestError
from octavo.hf.tokenizer import Tokenizer

__all__ = ["Detokenizer"]

_ESCAPED = re.compile("[\udc80-\udcff]")
_MAX_CHARACTER_BYTES = 4


class Detokenizer:
    """The text of one sequence that is being generated.

    prompt_ids: the text goes on from there: a leading space that the tokenizer adds to a text is taken away only if
    no text is before it, and a character that the prompt ends within is given out whole.
    skip_special_tokens: special tokens have no text.   spaces_between_special_tokens: if False, of two added tokens in
    a row the second has no space before it, where the tokenizer writes one.
    stop: the text ends before the first of these to be complete; of several that end at one place, the longest.
    include_stop_str: it ends after it.   min_tokens: a stop string is ignored if it is complete
    before there are so many tokens.
    Raises InvalidRequestError for an empty stop string.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        stop: Sequence[str] = (),
        include_stop_str: bool = False,
        min_tokens: int = 0,
    ) -> None:
        if not all(stop):
            raise InvalidRequestError("stop has an empty string; give strings of at least one character", "stop")
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._joined = frozenset() if spaces_between_special_tokens else frozenset(tokenizer.added_tokens.values())
        self._is_escaping = tokenizer.rules.byte_fallback
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape" if self._is_escaping else "replace")
        self._stops = [_Stop(text) for text in dict.fromkeys(stop)]
        self._include_stop_str = include_stop_str
        self._min_tokens = min_tokens
        self._parts: list[str] = []  # decoded text
        self._num_chars = 0  # in `_parts`
        self._num_held = 0  # of them, at the end
        self._num_taken = 0  # of them, at the beginning
        self._num_tokens = 0
        self._end: int | None = None  # characters before the stop string
        self._is_after_added = False
        self._begin(prompt_ids)

    def push(self, token_ids: Iterable[int]) -> str | None:
        """Add tokens; return the stop string that ends the text, or None. Tokens after the end have no effect."""
        for token_id in token_ids:
            if self._end is not None:
                return None
            self._num_tokens += 1
            text = self._decode(self._bytes(token_id), final=False)
            if text:
                self._parts.append(text)
                self._num_chars += len(text)
            if self._stops:
                found = self._find_stop(text)
                if found is not None:
                    return found
        return None

    def take(self, *, finished: bool) -> str:
        """Return the text that became safe since the last call; if finished, also all that was held back."""
        if finished and self._end is None:
            rest = self._decode(b"", final=True)
            if rest:
                self._parts.append(rest)
                self._num_chars += len(rest)
            self._num_held = 0
        start, self._num_taken = self._num_taken, max(self._num_taken, self._num_safe)
        if start == self._num_taken:
            return ""
        # only the last parts are new
        length, first = 0, len(self._parts)
        while length < self._num_chars - start:
            first -= 1
            length += len(self._parts[first])
        tail = "".join(self._parts[first:])
        begin = length - (self._num_chars - start)
        return tail[begin : begin + self._num_taken - start]

    @property
    def text(self) -> str:
        """Return all text that is safe, taken or not."""
        return "".join(self._parts)[: self._num_safe]

    @property
    def num_kept_tokens(self) -> int:
        """Return how many tokens were added up to the one that completes the stop string, or all of them."""
        return self._num_tokens

    @property
    def _num_safe(self) -> int:
        """Return how many characters are safe."""
        return self._num_chars - self._num_held if self._end is None else self._end

    def _begin(self, prompt_ids: Sequence[int]) -> None:
        """Take from the prompt what the text depends on: whether it has begun, and within which character."""
        tokenizer = self._tokenizer
        self._num_strip = tokenizer.rules.num_strip
        self._is_first = True
        for token_id in filter(self._has_text, prompt_ids):
            data = tokenizer.first_bytes(token_id) if self._is_first else tokenizer.token_bytes(token_id)
            self._is_first = False
            self._num_strip = self._left_to_strip(data)
            if not self._num_strip:
                break
        last = [*islice(filter(self._has_text, reversed(prompt_ids)), _MAX_CHARACTER_BYTES)][::-1]
        self._is_after_added = bool(last) and last[-1] in self._joined
        self._decode(b"".join(map(tokenizer.token_bytes, last)), final=False)

    def _has_text(self, token_id: int) -> bool:
        """Tell whether a token has a text that is not skipped."""
        return token_id not in self._skipped and self._tokenizer.has_token(token_id)

    def _bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds."""
        if token_id in self._skipped:
            return b""
        is_added = token_id in self._joined
        if is_added and self._is_after_added:
            return self._tokenizer.token_text(token_id).encode()
        self._is_after_added = is_added
        if not self._is_first and not self._num_strip:
            return self._tokenizer.token_bytes(token_id)
        if not self._tokenizer.has_token(token_id):
            return b""
        data = self._tokenizer.first_bytes(token_id) if self._is_first else self._tokenizer.token_bytes(token_id)
        self._is_first = False
        num_strip, self._num_strip = self._num_strip, self._left_to_strip(data)
        return data[min(num_strip, len(data) - len(data.lstrip(b" "))) :]

    def _left_to_strip(self, data: bytes) -> int:
        """Return how many leading spaces the text has yet to lose after these bytes."""
        return max(0, self._num_strip - len(data)) if not data.strip(b" ") else 0

    def _decode(self, data: bytes, *, final: bool) -> str:
        """Return the characters that are complete with these bytes."""
        text = self._decoder.decode(data, final)
        return _ESCAPED.sub("\ufffd", text) if self._is_escaping and not text.isascii() else text

    def _find_stop(self, text: str) -> str | None:
        """Go on over new text at the end; return the stop string that is the first to be complete."""
        is_suppressed = self._num_tokens < self._min_tokens
        for i, char in enumerate(text):
            complete = [stop.text for stop in self._stops if stop.feed(char)]
            if complete and not is_suppressed:
                found = max(complete, key=len)
                end = self._num_chars - len(text) + i + 1
                self._end = end if self._include_stop_str else end - len(found)
                return found
        self._num_held = max(stop.num_matched for stop in self._stops)
        return None


class _Stop:
    """How much of one stop string the text ends with, in amortized constant time for each character.

    Source: Knuth, Morris, Pratt, "Fast pattern matching in strings" (1977).
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.num_matched = 0
        self._borders = [0] * len(text)  # of each beginning, the longest other beginning that it ends with
        length = 0
        for i in range(1, len(text)):
            while length and text[i] != text[length]:
                length = self._borders[length - 1]
            length += text[i] == text[length]
            self._borders[i] = length

    def feed(self, char: str) -> bool:
        """Add a character to the text; tell whether the text ends with the whole stop string."""
        while self.num_matched and char != self.text[self.num_matched]:
            self.num_matched = self._borders[self.num_matched - 1]
        self.num_matched += char == self.text[self.num_matched]
        if self.num_matched < len(self.text):
            return False
        self.num_matched = self._borders[-1]
        return True
