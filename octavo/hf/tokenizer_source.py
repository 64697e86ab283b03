"""What a tokenizer is read into, whatever file it came from, and how the library's errors become ours."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

import tokenizers
from tokenizers import processors

from octavo.errors import CheckpointError

if TYPE_CHECKING:
    from typing import Self

__all__ = ["LibraryErrors", "TokenizerSource", "set_affixes"]

MAX_TOKENS = 1 << 20  # the largest vocabulary known has 262,144


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerSource:
    """A tokenizer of the `tokenizers` library, and what its files say about single tokens.

    special_ids: special tokens that the library does not know to be special; it knows those added as special.
    """

    core: tokenizers.Tokenizer
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    unk_token_id: int | None = None
    special_ids: frozenset[int] = frozenset()


class LibraryErrors:
    """Turn what the library raises while it reads `what` into CheckpointError.

    It raises plain Exception for bad input, and a PanicException, which is no Exception, where its code gives up.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> Self:
        """Begin to watch."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise CheckpointError for an error of the library; let all others pass."""
        if kind is not None and (kind in (Exception, ValueError, TypeError) or kind.__name__ == "PanicException"):
            raise CheckpointError(f"{self._what}: {str(error)[:500]}; get the tokenizer's files again") from error


def set_affixes(core: tokenizers.Tokenizer, *, bos: int | None, eos: int | None) -> None:
    """Make `core` add these tokens around a text when asked for special tokens; None adds nothing."""
    before = [] if bos is None else [core.id_to_token(bos)]
    after = [] if eos is None else [core.id_to_token(eos)]
    ids = {core.id_to_token(i): i for i in (bos, eos) if i is not None}
    core.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *before, "$B", *after],
        special_tokens=list(ids.items()),
    )
