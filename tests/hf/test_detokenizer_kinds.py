"""Detokenizer: tokenizers of every kind give, in any chunks, the text that decoding all tokens at once gives."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError
from octavo.hf.detokenizer import Detokenizer
from octavo.hf.tokenizer import Tokenizer
from octavo.hf.tokenizer_source import TokenizerSource
from tests.hf.small_tokenizers import KINDS, NASTY, named

TOKENIZERS = {kind: Tokenizer(TokenizerSource(core=named(kind))) for kind in KINDS}
BYTES = TOKENIZERS["byte_level"]


def byte_ids(data: bytes) -> list[int]:
    """Return one token per byte of the byte-level tokenizer."""
    found = {BYTES.token_bytes(i): i for i in range(BYTES.vocab_size)}
    return [found[data[i : i + 1]] for i in range(len(data))]


def stream(tokenizer: Tokenizer, ids, *, chunk: int = 1, prompt=(), **options) -> list[str]:
    """Return the deltas of tokens given in chunks."""
    detokenizer = Detokenizer(tokenizer, list(prompt), **options)
    deltas = []
    for i in range(0, len(ids), chunk):
        found = detokenizer.push(ids[i : i + chunk])
        deltas.append(detokenizer.take(finished=False))
        if found is not None:
            break
    deltas.append(detokenizer.take(finished=True))
    assert detokenizer.text == "".join(deltas)
    return deltas


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", [True, False])
def test_deltas_are_the_text_of_the_library(kind, skip):
    tokenizer, core = TOKENIZERS[kind], named(kind)
    for text in [*NASTY, "<s>Hello<|im_end|> <|im_start|>user\n\n hi <tool>x"]:
        ids = core.encode(text).ids
        whole = core.decode(ids, skip_special_tokens=skip)
        assert tokenizer.decode(ids, skip_special_tokens=skip) == whole
        for chunk in (1, 3):
            assert "".join(stream(tokenizer, ids, chunk=chunk, skip_special_tokens=skip)) == whole


@pytest.mark.parametrize("kind", KINDS)
def test_any_tokens_stream_as_they_decode(kind):
    tokenizer, core = TOKENIZERS[kind], named(kind)
    rng = random.Random(kind)
    for _ in range(300):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randrange(12))]
        whole = tokenizer.decode(ids)
        assert "".join(stream(tokenizer, ids)) == whole
        if not tokenizer.rules.byte_fallback or "\ufffd" not in whole:
            assert whole == core.decode(ids)


def test_errors_in_byte_tokens_replace_only_the_bytes_at_fault():
    tokenizer = TOKENIZERS["gemma"]
    first = next(i for i in range(tokenizer.vocab_size) if tokenizer.token_text(i) == "<0x00>")
    cases = [(b"\xe2\x82", "\ufffd\ufffd"), (b"\xe2\x82\xac\xff", "\u20ac\ufffd"), (b"\xf0\x9f", "\ufffd\ufffd")]
    for data, right in cases:
        ids = [first + byte for byte in data]
        assert tokenizer.decode(ids) == right
        assert "".join(stream(tokenizer, ids)) == right


@pytest.mark.parametrize("text", ["\U0001f600", "\U0001f1e9\U0001f1ea", "\ud55c\u1112\u1161", "a\u010fb\u0e2a\u0e27c"])
def test_each_character_comes_with_its_last_byte(text):  # B32
    assert [delta for delta in stream(BYTES, byte_ids(text.encode())) if delta] == list(text)


def test_text_ends_within_a_word():  # B29
    ids = BYTES.encode("The quick brown fox", add_special_tokens=False)
    for chunk in (1, 2, 5, 50):
        assert "".join(stream(BYTES, ids, chunk=chunk, stop=["own fox"])) == "The quick br"


def test_a_begun_stop_string_is_given_out_once_at_the_end():  # B30
    detokenizer = Detokenizer(BYTES, [], stop=["bcd"])
    deltas = []
    for token_id in byte_ids(b"ab"):
        detokenizer.push([token_id])
        deltas.append(detokenizer.take(finished=False))
    deltas += [detokenizer.take(finished=True), detokenizer.take(finished=True)]
    assert deltas == ["a", "", "b", ""]


@given(st.text("ab", max_size=10), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_exactly_what_may_become_a_stop_string_is_held(text, stops):
    detokenizer = Detokenizer(BYTES, [], stop=stops)
    for i, token_id in enumerate(byte_ids(text.encode())):
        if detokenizer.push([token_id]) is not None:
            return
        seen = text[: i + 1]
        held = max(k for stop in stops for k in range(len(stop)) if seen.endswith(stop[:k]))
        assert detokenizer.text == seen[: len(seen) - held]


def test_a_stop_string_begun_before_min_tokens_may_end_after_them():
    ids = byte_ids(b"xabxab")
    cases = [(0, "x"), (3, "x"), (4, "xabx"), (6, "xabx"), (7, "xabxab")]
    for min_tokens, right in cases:
        assert "".join(stream(BYTES, ids, stop=["ab"], min_tokens=min_tokens)) == right
    assert "".join(stream(BYTES, ids, stop=["xabxa"], min_tokens=4)) == ""


@pytest.mark.parametrize("kind", ["prepend", "metaspace", "unigram", "word_piece"])
def test_the_leading_space_is_kept_after_a_prompt(kind):
    tokenizer, core = TOKENIZERS[kind], named(kind)
    prompt, ids = core.encode("Hello").ids, core.encode("world", add_special_tokens=False).ids
    right = core.decode(prompt + ids).removeprefix(core.decode(prompt))
    assert right == " world"
    assert "".join(stream(tokenizer, ids, prompt=prompt)) == right
    assert "".join(stream(tokenizer, ids, prompt=[])) == "world"
    assert "".join(stream(tokenizer, ids, prompt=[core.token_to_id("<s>")])) == "world"


def test_a_character_that_the_prompt_ends_within_comes_whole():
    ids = byte_ids("x\u20acy".encode())
    assert "".join(stream(BYTES, ids[2:], prompt=ids[:2])) == "\u20acy"


def test_spaces_between_special_tokens_can_be_left_out():
    tokenizer, core = TOKENIZERS["word_piece"], named("word_piece")
    start, end = core.token_to_id("<|im_start|>"), core.token_to_id("<|im_end|>")
    ids = [start, end, *core.encode("dog", add_special_tokens=False).ids]
    options = {"skip_special_tokens": False}
    assert "".join(stream(tokenizer, ids, **options)) == core.decode(ids, skip_special_tokens=False)
    without = "".join(stream(tokenizer, ids, spaces_between_special_tokens=False, **options))
    assert without == "<|im_start|><|im_end|> dog"


def test_an_empty_stop_string_is_refused():
    with pytest.raises(InvalidRequestError, match="empty string") as caught:
        Detokenizer(BYTES, [], stop=["x", ""])
    assert caught.value.param == "stop"


def test_ids_without_a_token_have_no_text():
    for token_id in (-1, BYTES.vocab_size + 5, 1 << 40):
        assert stream(BYTES, [token_id]) == ["", ""]
        assert BYTES.token_text(token_id) == "" and BYTES.token_bytes(token_id) == b""
