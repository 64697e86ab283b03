"""Text that knows, for each character, whether the chat template wrote it.

A mask is one small integer for the whole text, or bytes with one value per character. Only TRUSTED characters
may form control tokens. Every operation that is not written here returns a plain str, and a plain str counts as
untrusted: forgetting an operation can lose trust, never give it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, SupportsIndex

from octavo.hf.template_budget import Budget

if TYPE_CHECKING:
    from typing import Self

__all__ = [
    "FINAL",
    "FINAL_END",
    "TRUSTED",
    "UNTRUSTED",
    "Mask",
    "TracedText",
    "concat",
    "mask_bytes",
    "mask_of",
    "pieces_of",
    "same_length_mask",
    "spans",
    "trace",
]

UNTRUSTED = 0  # a message, a tool, a variable, or an operation that is not tracked
TRUSTED = 1  # a literal of the template, or bos_token and its kind
FINAL = 2  # untrusted, and from the content of the message that is to be continued
FINAL_END = 3  # as FINAL: the last character of that content that is not white space

Mask = int | bytes

_RUNS = re.compile(rb"\x01+|[^\x01]+", re.DOTALL)


class TracedText(str):
    """A str whose characters remember where they came from; equal to, and hashed as, the plain str.

    `mask` is one of the constants above, or bytes of the text's length; `budget` pays for it and for what is
    made of it.
    """

    __slots__ = ("budget", "mask")

    mask: Mask
    budget: Budget

    def __new__(cls, text: str, mask: Mask, budget: Budget) -> Self:
        """Make a traced text; a mask that does not fit the text counts as untrusted."""
        budget.hold(len(text))
        self = super().__new__(cls, text)
        self.mask = UNTRUSTED if isinstance(mask, bytes) and len(mask) != len(text) else mask
        self.budget = budget
        return self

    def __del__(self) -> None:
        """Give the characters back to the budget."""
        self.budget.release(len(self))

    def __getitem__(self, key: SupportsIndex | slice) -> TracedText:
        """Return one character or a slice, with its provenance."""
        text = str.__getitem__(self, key)
        mask = self.mask
        if isinstance(mask, bytes):
            mask = mask[key] if isinstance(key, slice) else mask[key.__index__()]
        return TracedText(text, mask, self.budget)

    def __iter__(self) -> Iterator[TracedText]:
        """Yield the characters, each with its provenance."""
        return (self[i] for i in range(len(self)))

    def __add__(self, other: object) -> TracedText:
        """Concatenate with a text on the right."""
        return concat((self, other), self.budget) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: object) -> TracedText:
        """Concatenate with a text on the left."""
        return concat((other, self), self.budget) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: object) -> TracedText:
        """Repeat the text."""
        if not isinstance(count, int):
            return NotImplemented
        self.budget.check_chars(len(self) * max(count, 0))
        mask = self.mask * count if isinstance(self.mask, bytes) else self.mask
        return TracedText(str.__mul__(self, count), mask, self.budget)

    __rmul__ = __mul__


def trace(text: str, budget: Budget, *, mask: Mask = UNTRUSTED) -> TracedText:
    """Return `text` as a traced text; one that is traced already keeps its own mask."""
    return text if isinstance(text, TracedText) else TracedText(text, mask, budget)


def mask_of(text: str) -> Mask:
    """Return the mask of a text; a plain str is untrusted."""
    return text.mask if isinstance(text, TracedText) else UNTRUSTED


def mask_bytes(text: str) -> bytes:
    """Return the mask of a text, one byte per character."""
    mask = mask_of(text)
    return mask if isinstance(mask, bytes) else bytes((mask,)) * len(text)


def concat(parts: Iterable[str], budget: Budget) -> TracedText:
    """Join texts, each keeping its provenance. Raises TemplateError if the result would be too long."""
    kept = [part for part in parts if part]
    if len(kept) == 1:
        return trace(kept[0], budget)
    budget.check_chars(sum(map(len, kept)))
    masks = [mask_of(part) for part in kept]
    first = masks[0] if masks else UNTRUSTED
    if isinstance(first, int) and all(type(mask) is int and mask == first for mask in masks):
        return TracedText("".join(kept), first, budget)
    return TracedText("".join(kept), b"".join(map(mask_bytes, kept)), budget)


def pieces_of(texts: Iterable[str]) -> list[tuple[str, bool]]:
    """Return the runs (plain text, is_trusted) of the texts one after another; neighbours of one kind are merged."""
    groups: list[tuple[list[str], bool]] = []
    for text in texts:
        for run, is_trusted in _runs(text):
            if groups and groups[-1][1] == is_trusted:
                groups[-1][0].append(run)
            else:
                groups.append(([run], is_trusted))
    return [("".join(runs), is_trusted) for runs, is_trusted in groups]


def _runs(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the non-empty runs of one text as plain strings."""
    mask = mask_of(text)
    plain = str(text)
    if not isinstance(mask, bytes):
        if plain:
            yield plain, mask == TRUSTED
        return
    for match in _RUNS.finditer(mask):
        yield plain[match.start() : match.end()], mask[match.start()] == TRUSTED


def same_length_mask(text: TracedText, changed: str) -> Mask:
    """Return the mask for `changed`, made from `text` character by character (a change of case).

    Where the length changes the characters cannot be paired, so a mixed text becomes untrusted.
    """
    if not isinstance(text.mask, bytes) or len(changed) == len(text):
        return text.mask
    return UNTRUSTED


def spans(text: TracedText, pieces: Sequence[str], *, gap: int = 0) -> list[TracedText]:
    """Return pieces that follow one another in `text`, `gap` characters apart, with their provenance."""
    if not isinstance(text.mask, bytes):
        return [TracedText(piece, text.mask, text.budget) for piece in pieces]
    found, start = [], 0
    for piece in pieces:
        found.append(text[start : start + len(piece)])
        start += len(piece) + gap
    return found
