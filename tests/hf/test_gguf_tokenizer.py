"""GGUF tokenizers: the ids of transformers, sentencepiece and tokenizers; bad metadata is refused at once."""

from __future__ import annotations

import json
import struct
import time

import numpy as np
import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.hf.gguf import read_gguf
from octavo.hf.tokenizer import Tokenizer
from octavo.hf.tokenizer_words import WORD_RULES
from tests.hf.real_models import DEMO, GEMMA, QWEN, model_file
from tests.hf.small_tokenizers import CORPUS, NASTY, named, train_sentencepiece

PROMPT = "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n"


def metadata_of(core: tokenizers.Tokenizer, model: str, **more: object) -> dict[str, object]:
    """Return the GGUF metadata of a tokenizer: special tokens are control tokens, other added ones user-defined."""
    vocab = core.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    types = np.ones(len(tokens), np.int32)
    for token_id, token in core.get_added_tokens_decoder().items():
        types[token_id] = 3 if token.special else 4
    types[[i for i, text in enumerate(tokens) if text.startswith("<0x")]] = 6
    values = {"model": model, "tokens": tokens, "token_type": types, "bos_token_id": vocab["<s>"]}
    values |= {"eos_token_id": vocab["</s>"], "add_bos_token": True}
    return {f"tokenizer.ggml.{name}": value for name, value in (values | more).items()}


def byte_level_metadata(**more: object) -> dict[str, object]:
    """Return the metadata of the small byte-level tokenizer."""
    core = named("byte_level")
    merges = [" ".join(pair) for pair in json.loads(core.to_str())["model"]["merges"]]
    return metadata_of(core, "gpt2", merges=merges, pre="gpt-2", **more)


@pytest.mark.parametrize(
    ("name", "limit_s"),
    [(DEMO, 0.6), pytest.param(QWEN, 1.6, marks=pytest.mark.slow)],  # twice what one busy core takes
)
def test_real_files_encode_as_transformers(name, limit_s):
    from transformers import AutoTokenizer

    path = model_file(name)
    metadata = read_gguf(path).metadata
    begin = time.process_time()
    tokenizer = Tokenizer.from_gguf(metadata)
    assert time.process_time() - begin < limit_s
    oracle = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # reading GGUF, transformers leaves out what it does for the same models' folders
    if name == QWEN:
        oracle.backend_tokenizer.normalizer = normalizers.NFC()
    else:
        words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        oracle.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), words])
    for text in [*NASTY, PROMPT, "x<|im_end|>y", "user<|endoftext|>"]:
        right = oracle.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text, add_special_tokens=False) == right, text
        assert tokenizer.decode(right, skip_special_tokens=False) == oracle.decode(right), text
    assert tokenizer.vocab_size == len(metadata["tokenizer.ggml.tokens"])


def test_end_tokens_of_the_demo_model():
    tokenizer = Tokenizer.from_gguf(read_gguf(model_file(DEMO)).metadata)
    assert [tokenizer.token_text(i) for i in tokenizer.eos_token_ids] == ["<|im_end|>", "<|endoftext|>"]
    assert not tokenizer.adds_bos
    assert set(tokenizer.eos_token_ids) <= tokenizer.special_ids


def model_proto(metadata: dict[str, object]) -> bytes:
    """Write a GGUF file's pieces as a model of the sentencepiece package, by hand: BPE that keeps all spaces."""

    def varint(value: int) -> bytes:
        return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)

    def message(number: int, data: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(data)) + data

    def number(field: int, value: int) -> bytes:
        return varint(field << 3) + varint(value)

    names = ("tokens", "scores", "token_type")
    pieces = zip(*(metadata[f"tokenizer.ggml.{name}"] for name in names), strict=True)
    written = []
    for text, score, kind in pieces:
        text = text.replace(" ", "\u2581") if kind == 4 else text
        written.append(
            message(1, message(1, text.encode()) + b"\x15" + struct.pack("<f", score) + number(3, int(kind)))
        )
    roles = [(40, "unknown"), (41, "bos"), (42, "eos"), (43, "padding")]
    trainer = b"".join(number(field, metadata[f"tokenizer.ggml.{role}_token_id"]) for field, role in roles)
    spaces = number(3, 0) + number(4, 0)
    return b"".join([*written, message(2, number(3, 2) + number(35, 1) + trainer), message(3, spaces)])


@pytest.mark.slow
def test_gemma_encodes_as_sentencepiece():
    metadata = read_gguf(model_file(GEMMA)).metadata
    begin = time.process_time()
    tokenizer = Tokenizer.from_gguf(metadata)
    assert time.process_time() - begin < 5  # 2.3 s, of which the library takes 1
    oracle = sentencepiece.SentencePieceProcessor(model_proto=model_proto(metadata))
    assert oracle.vocab_size() == tokenizer.vocab_size
    for text in [*NASTY, PROMPT, "x<start_of_image>y" * 3, "\t\t\t  \n\n\n", *CORPUS]:
        if "<unk>" in text:
            continue
        ids = oracle.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text
        assert tokenizer.decode(ids) == oracle.decode(ids) == text
    assert tokenizer.adds_bos and tokenizer.token_text(tokenizer.bos_token_id) == "<bos>"
    assert [tokenizer.token_text(i) for i in tokenizer.eos_token_ids] == ["<eos>", "<end_of_turn>"]


def test_byte_level_encodes_as_the_tokenizer_it_is_made_from():
    tokenizer, core = Tokenizer.from_gguf(byte_level_metadata()), named("byte_level")
    for text in [*NASTY, PROMPT, "a<tool>b\n\nc"]:
        assert tokenizer.encode(text) == core.encode(text).ids, text
    assert tokenizer.added_tokens == {t.content: i for i, t in core.get_added_tokens_decoder().items()}


def sentencepiece_metadata(oracle: sentencepiece.SentencePieceProcessor, model: str, **more: object):
    """Return the GGUF metadata of a sentencepiece model."""
    ids = range(oracle.vocab_size())
    kinds = [(oracle.is_unknown, 2), (oracle.is_control, 3), (oracle.is_byte, 6), (oracle.is_unused, 5)]
    types = [next((number for test, number in kinds if test(i)), 1) for i in ids]
    tokens = [oracle.id_to_piece(i) for i in ids]
    types[tokens.index("<tool>")] = 4
    values = {
        "model": model,
        "tokens": tokens,
        "scores": np.array([oracle.get_score(i) for i in ids], np.float32),
        "token_type": np.array(types, np.int32),
        "unknown_token_id": oracle.unk_id(),
        "bos_token_id": oracle.bos_id(),
        "eos_token_id": oracle.eos_id(),
    }
    return {f"tokenizer.ggml.{name}": value for name, value in (values | more).items()}


@pytest.mark.parametrize("adds_space", [True, False])
def test_sentencepiece_bpe_encodes_as_sentencepiece(adds_space):
    oracle = train_sentencepiece("bpe", add_dummy_prefix=adds_space)
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(oracle, "llama", add_space_prefix=adds_space))
    for text in [text for text in NASTY if text and "<unk>" not in text and "\x00" not in text]:
        assert tokenizer.encode(text, add_special_tokens=False) == oracle.encode(text), text
        assert tokenizer.decode(oracle.encode(text)) == oracle.decode(oracle.encode(text)), text
    assert tokenizer.encode("dog")[0] == oracle.bos_id()


@pytest.mark.parametrize("is_squeezed", [True, False])
def test_sentencepiece_unigram_encodes_as_sentencepiece(is_squeezed):
    oracle = train_sentencepiece("unigram", remove_extra_whitespaces=is_squeezed)
    metadata = sentencepiece_metadata(oracle, "t5", remove_extra_whitespaces=is_squeezed)
    tokenizer = Tokenizer.from_gguf(metadata)
    for text in (
        "Hello world",
        "The quick  brown fox ",
        "  \u00dcber den D\u00e4chern",
        "return a + b",
        "\u4f60\u597d x",
    ):
        assert tokenizer.encode(text, add_special_tokens=False) == oracle.encode(text), text
    assert tokenizer.encode("dog")[-1] == oracle.eos_id()


@pytest.mark.parametrize("is_lower", [True, False])
def test_word_pieces_encode_as_the_tokenizer_they_are_made_from(is_lower):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "quick", "##ly", "fox", "##es", ".", "un", "##want", "##ed"]
    words += ["\u00e9t\u00e9"] if is_lower else ["The", "\u00e9t\u00e9", "##LY"]
    core = tokenizers.Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    core.normalizer, core.pre_tokenizer = (
        normalizers.BertNormalizer(lowercase=is_lower),
        pre_tokenizers.BertPreTokenizer(),
    )
    core.decoder = decoders.WordPiece()
    marked = [w if w[0] == "[" else w[2:] if w[:2] == "##" else "\u2581" + w for w in words]
    values = {"model": "bert", "tokens": marked, "token_type": np.array([3] * 4 + [1] * (len(words) - 4), np.int32)}
    values |= {"unknown_token_id": 1, "cls_token_id": 2, "seperator_token_id": 3, "padding_token_id": 0}
    tokenizer = Tokenizer.from_gguf({f"tokenizer.ggml.{name}": value for name, value in values.items()})
    for text in ("The quickly  foxes.", "unwanted \u00c9T\u00c9 quickLY", "xyz the"):
        ids = core.encode(text).ids
        assert tokenizer.encode(text) == [2, *ids, 3]
        assert tokenizer.decode(ids, skip_special_tokens=False) == core.decode(ids)


@pytest.mark.parametrize("name", sorted(WORD_RULES))
def test_word_rules_keep_all_text(name):
    tokenizer = Tokenizer.from_gguf(byte_level_metadata() | {"tokenizer.ggml.pre": name})
    for text in NASTY:
        assert tokenizer.decode(tokenizer.encode(text)) == text or WORD_RULES[name].is_nfc


CHANGES = {
    "model": ["rwkv", 7],
    "pre": ["nonsense", 3],
    "tokens": [None, [], ["a", "a"], ["a", 1], "text", np.zeros(3)],
    "token_type": [np.zeros(2, np.int32), np.full(402, 9, np.int32), "x"],
    "merges": [["ab"], ["Zq Qz"], [1], " "],
    "bos_token_id": [10**6, -2, "x", 1.5, True],
    "eot_token_id": [10**6],
    "add_bos_token": [1, "yes"],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in CHANGES.items() for value in values])
def test_bad_metadata_is_refused_and_named(key, value):
    metadata = byte_level_metadata() | {f"tokenizer.ggml.{key}": value}
    if value is None:
        del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(CheckpointError, match=f"tokenizer.ggml.{key}|the tokenizer in the GGUF file"):
        Tokenizer.from_gguf(metadata)


def test_unknown_kinds_are_refused_with_those_there_are():
    for key, known in [("model", "gpt2, llama, bert, t5"), ("pre", "llama-bpe")]:
        with pytest.raises(UnsupportedModelError, match=known):
            Tokenizer.from_gguf(byte_level_metadata() | {f"tokenizer.ggml.{key}": "nonsense"})


@pytest.mark.parametrize("scores", [None, np.zeros(3, np.float32), np.full(402, np.nan, np.float32)])
def test_scores_that_are_missing_or_wrong_are_refused(scores):
    metadata = byte_level_metadata() | {"tokenizer.ggml.model": "llama"}
    if scores is not None:
        metadata["tokenizer.ggml.scores"] = scores
    with pytest.raises(CheckpointError, match="tokenizer.ggml.scores"):
        Tokenizer.from_gguf(metadata)


def test_tokens_that_end_a_turn_are_end_tokens():
    core = named("byte_level")
    end, other = core.token_to_id("<|im_end|>"), core.token_to_id("<|im_start|>")
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(eot_token_id=other))
    assert tokenizer.eos_token_ids == (core.token_to_id("</s>"), other, end)
