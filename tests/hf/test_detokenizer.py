"""Text comes out of tokens byte for byte, and stop strings are held back exactly as long as needed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, trainers

from octavo.hf.detokenizer import Detokenizer
from octavo.hf.tokenizer import Tokenizer

TEXTS = ("héllo wörld ďábel", "👨‍👩‍👧‍👦 🇨🇿 🎉", "한국어 텍스트", "ภาษาไทย", "a\n\n  b\t")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A byte-level tokenizer with few merges: characters fall apart into several tokens."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<end>"],
        show_progress=False,
    )
    library.train_from_iterator(["the quick brown fox", *TEXTS] * 3, trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    library.save(str(folder / "tokenizer.json"))
    return Tokenizer.from_folder(folder)


def _ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One token per byte."""
    by_byte = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size) if len(tokenizer.token_bytes(i)) == 1}
    return [by_byte[bytes([b])] for b in data]


def _stream(tokenizer: Tokenizer, ids: list[int], sizes: list[int], **options: object) -> tuple[list[str], str | None]:
    """Push ids in chunks of the given sizes, over and over; return the deltas and the stop string."""
    detokenizer = Detokenizer(tokenizer, [1], **options)
    deltas, start, turn = [], 0, 0
    while start < len(ids):
        size = sizes[turn % len(sizes)]
        matched = detokenizer.push(ids[start : start + size])
        start, turn = start + size, turn + 1
        if matched is not None:
            deltas.append(detokenizer.take(finished=True))
            return deltas, matched
        deltas.append(detokenizer.take(finished=False))
    return [*deltas, detokenizer.take(finished=True)], None


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_characters_split_over_tokens_come_out_whole(tokenizer: Tokenizer, text: str, size: int) -> None:
    deltas, _ = _stream(tokenizer, _ids(tokenizer, text.encode()), [size])
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=24), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_deltas_of_any_bytes_sum_to_the_library_s_text(tokenizer: Tokenizer, data: bytes, sizes: list[int]) -> None:
    deltas, _ = _stream(tokenizer, _ids(tokenizer, data), sizes)
    assert "".join(deltas) == data.decode(errors="replace")


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(alphabet="abc", max_size=20),
    stop=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    include=st.booleans(),
)
def test_the_match_that_ends_first_ends_the_text(
    tokenizer: Tokenizer, text: str, stop: list[str], sizes: list[int], include: bool
) -> None:
    found = [(text.find(s) + len(s), text.find(s), s) for s in stop if s in text]
    deltas, matched = _stream(tokenizer, _ids(tokenizer, text.encode()), sizes, stop=stop, include_stop_str=include)
    if not found:
        assert ("".join(deltas), matched) == (text, None)
    else:
        end, start, expected = min(found)
        assert ("".join(deltas), matched) == (text[: end if include else start], expected)


def test_no_part_of_a_stop_string_is_given_out(tokenizer: Tokenizer) -> None:
    deltas, matched = _stream(tokenizer, _ids(tokenizer, b"ABCDEFGHIJK"), [1], stop=["DEFGHIJ"])
    assert (deltas[:3], "".join(deltas), matched) == (["A", "B", "C"], "ABC", "DEFGHIJ")


def test_text_is_held_back_only_while_it_may_become_a_stop_string(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, [1], stop=["own fox"])
    detokenizer.push(_ids(tokenizer, b"The quick brown"))
    assert detokenizer.take(finished=False) == "The quick br"
    detokenizer.push(_ids(tokenizer, b"ie"))
    assert detokenizer.take(finished=False) == "ownie"


def test_tokens_behind_a_stop_string_are_not_kept(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, [1], stop=["bc"])
    assert detokenizer.push(_ids(tokenizer, b"abcde")) == "bc"
    assert (detokenizer.num_kept_tokens, detokenizer.take(finished=True)) == (3, "a")


def test_stop_strings_wait_for_min_tokens(tokenizer: Tokenizer) -> None:
    deltas, matched = _stream(tokenizer, _ids(tokenizer, b"xxxxx"), [1], stop=["x"], min_tokens=3)
    assert ("".join(deltas), matched) == ("xx", "x")


def test_special_tokens_are_shown_only_when_asked_for(tokenizer: Tokenizer) -> None:
    ids = [*_ids(tokenizer, b"a"), tokenizer.added_tokens["<end>"], *_ids(tokenizer, b"b")]
    assert "".join(_stream(tokenizer, ids, [1])[0]) == "ab"
    assert "".join(_stream(tokenizer, ids, [1], skip_special_tokens=False)[0]) == "a<end>b"
