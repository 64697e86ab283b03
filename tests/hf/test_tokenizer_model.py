"""tokenizer.model: the ids and texts of the sentencepiece package; damaged files are refused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from octavo.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from octavo.hf.tokenizer import Tokenizer
from octavo.hf.tokenizer_model import read_sentencepiece
from tests.hf.small_tokenizers import NASTY, train_sentencepiece

TEXTS = [text for text in NASTY if "<unk>" not in text and "\x00" not in text]

CLUSTERS = {"\r", "\u1161"}  # within sequences that the library normalizes otherwise (as it does for transformers)


def write(folder: Path, oracle, **config) -> Path:
    """Write a model folder with tokenizer.model and nothing else but a config."""
    (folder / "tokenizer.model").write_bytes(oracle.serialized_model_proto())
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


OPTIONS = [
    {},
    {"add_dummy_prefix": False},
    {"remove_extra_whitespaces": True},
    {"normalization_rule_name": "nmt_nfkc"},
    {"normalization_rule_name": "nmt_nfkc_cf", "remove_extra_whitespaces": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_folders_encode_and_decode_as_sentencepiece(kind, options, tmp_path):
    oracle = train_sentencepiece(kind, **options)
    tokenizer = Tokenizer.from_folder(write(tmp_path, oracle))
    has_rules = "normalization_rule_name" in options
    for text in [text for text in TEXTS if not has_rules or not CLUSTERS & set(text)]:
        ids = oracle.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text
        assert tokenizer.decode(ids) == oracle.decode(ids), text
    assert tokenizer.vocab_size == oracle.vocab_size()
    assert [tokenizer.token_text(i) for i in range(20)] == [oracle.id_to_piece(i) for i in range(20)]
    roles = (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.unk_token_id, tokenizer.pad_token_id)
    assert roles == (oracle.bos_id(), (oracle.eos_id(),), oracle.unk_id(), None)
    assert {oracle.bos_id(), oracle.eos_id(), oracle.unk_id()} <= tokenizer.special_ids


@pytest.mark.parametrize("flags", [(True, True), (False, True), (True, False), (False, False)])
def test_flags_say_which_tokens_are_added(flags, tmp_path):
    oracle = train_sentencepiece("bpe")
    tokenizer = Tokenizer.from_folder(write(tmp_path, oracle, add_bos_token=flags[0], add_eos_token=flags[1]))
    assert tokenizer.encode("dog") == oracle.encode("dog", add_bos=flags[0], add_eos=flags[1])
    assert tokenizer.adds_bos == flags[0]


def test_without_flags_bpe_adds_the_beginning(tmp_path):
    oracle = train_sentencepiece("bpe")
    assert Tokenizer.from_folder(write(tmp_path, oracle)).encode("dog") == oracle.encode("dog", add_bos=True)


def test_the_config_adds_and_names_tokens(tmp_path):
    oracle = train_sentencepiece("bpe")
    folder = write(tmp_path, oracle, eos_token="<turn>", pad_token={"content": "<unk>"})
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.eos_token_ids == (oracle.vocab_size(),)
    assert tokenizer.pad_token_id == oracle.unk_id()
    assert tokenizer.encode("dog<turn>")[-1] == oracle.vocab_size()


def test_tokens_found_anywhere_are_found_anywhere(tmp_path):
    oracle = train_sentencepiece("bpe")
    tokenizer = Tokenizer.from_folder(write(tmp_path, oracle))
    tool = oracle.piece_to_id("<tool>")
    assert tokenizer.encode("fox<tool>fox").count(tool) == 1
    assert tokenizer.encode_pieces([("fox<tool>", False)], control_texts=["<tool>"]).count(tool) == 0


def test_damaged_files_are_refused(tmp_path):
    whole = train_sentencepiece("bpe").serialized_model_proto()
    path = tmp_path / "tokenizer.model"
    rng = random.Random(1)
    cut = [whole[: rng.randrange(1, len(whole))] for _ in range(60)]
    changed = []
    for _ in range(200):
        data = bytearray(whole)
        data[rng.randrange(len(data))] = rng.randrange(256)
        changed.append(bytes(data))
    for data in [*cut, *changed]:
        path.write_bytes(data)
        try:
            Tokenizer.from_folder(tmp_path).encode("The quick brown fox \u4f60")
        except CheckpointError as error:
            assert "tokenizer" in str(error)  # any other error fails the test


HOSTILE = [
    (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "are left"),
    (b"\x0a" + b"\xff" * 11, "more than ten bytes"),
    (b"\x0a", "ends within a number"),
    (b"\x08\x01", "a number where"),
    (b"\x0b\x0c", "wire type 3"),
    (b"\x12\x02\x18\x01", "no pieces"),
    (b"IQ== 0\nIg== 1\n", "tiktoken"),
]


@pytest.mark.parametrize(("data", "message"), HOSTILE)
def test_hostile_files_are_refused_with_the_reason(data, message, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        read_sentencepiece(tmp_path / "tokenizer.model")


def test_other_kinds_are_refused(tmp_path):
    oracle = train_sentencepiece("char", byte_fallback=False, user_defined_symbols=[])
    with pytest.raises(UnsupportedModelError, match="of type 4; supported are 1"):
        Tokenizer.from_folder(write(tmp_path, oracle))


def test_tekken_alone_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(ModelNotFoundError, match=r"tekken.json, which cannot be read.*download tokenizer.json"):
        Tokenizer.from_folder(tmp_path)
