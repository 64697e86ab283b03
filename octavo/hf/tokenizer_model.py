"""Read tokenizer.model, the file of the sentencepiece package, into the metadata that GGUF files hold.

    ModelProto       1 pieces (repeated)   2 trainer_spec   3 normalizer_spec
    SentencePiece    1 piece (string)   2 score (float)   3 type, numbered as in GGUF
    TrainerSpec      3 model_type   40 unk_id   41 bos_id   42 eos_id   43 pad_id
    NormalizerSpec   2 precompiled_charsmap   3 add_dummy_prefix   4 remove_extra_whitespaces

Protocol buffers: a message is a row of fields, each a varint key (number << 3 | wire type) and a value. Every length
is checked against the bytes that are left. Source: sentencepiece_model.proto of the sentencepiece package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.hf.files import map_file
from octavo.hf.tokenizer_source import MAX_TOKENS

__all__ = ["read_sentencepiece"]

MAX_MODEL_BYTES = 64 << 20  # the largest known has 5 MB
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_USER_DEFINED = 4
_SPACE = "\u2581"
_MODELS = {1: "t5", 2: "llama"}
_ID_FIELDS = {
    40: ("unknown_token_id", 0),
    41: ("bos_token_id", 1),
    42: ("eos_token_id", 2),
    43: ("padding_token_id", -1),
}
_FLOAT = struct.Struct("<f")


def read_sentencepiece(path: Path) -> dict[str, Any]:
    """Read the file into tokenizer.ggml.* metadata. Raises CheckpointError or UnsupportedModelError."""
    mapped = map_file(path)
    if mapped.size > MAX_MODEL_BYTES:
        raise CheckpointError(f"{path}: has {mapped.size} bytes, at most {MAX_MODEL_BYTES} are allowed")
    tokens: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    try:
        for number, value in _fields(mapped.tobytes()):
            if number == 1:
                piece = dict(_fields(_as_bytes(value)))
                kind = piece.get(3, 1)
                text = _as_bytes(piece.get(1, b"")).decode()
                # these are found in text before spaces are written as a visible character
                tokens.append(text.replace(_SPACE, " ") if kind == _USER_DEFINED else text)
                scores.append(_FLOAT.unpack(_as_bytes(piece.get(2, bytes(4))))[0])
                types.append(min(_as_int(kind), 0x7F))
            elif number in (2, 3):
                (trainer if number == 2 else normalizer).update(_fields(_as_bytes(value)))
            if len(tokens) > MAX_TOKENS:
                raise ValueError(f"more than {MAX_TOKENS} pieces")
        if not tokens:
            raise ValueError("no pieces")
        ids = {name: _signed(_as_int(trainer.get(key, default))) for key, (name, default) in _ID_FIELDS.items()}
        found = {
            "tokens": tokens,
            "scores": np.array(scores, np.float32),
            "token_type": np.array(types, np.int32),
            "precompiled_charsmap": np.frombuffer(_as_bytes(normalizer.get(2, b"")), np.uint8),
            "add_space_prefix": _as_int(normalizer.get(3, 1)) != 0,
            "remove_extra_whitespaces": _as_int(normalizer.get(4, 1)) != 0,
            **{name: token_id for name, token_id in ids.items() if token_id >= 0},
        }
        model_type = _as_int(trainer.get(3, 1))
    except (ValueError, struct.error) as error:
        raise CheckpointError(
            f"{path}: is not a sentencepiece model: {error}; if it is one of tiktoken, get the model's tokenizer.json"
        ) from error
    if model_type not in _MODELS:
        raise UnsupportedModelError(
            f"{path}: is a sentencepiece model of type {model_type}; supported are 1 (unigram) and 2 (BPE); "
            "get the model's tokenizer.json"
        )
    return {"tokenizer.ggml.model": _MODELS[model_type]} | {f"tokenizer.ggml.{k}": v for k, v in found.items()}


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message as (number, value); of a length-delimited one, its bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, place = _varint(data, place)
            yield number, value
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(wire)
        if wire == _BYTES:
            length, place = _varint(data, place)
        if length is None or number == 0:
            raise ValueError(f"field {number} of wire type {wire} at byte {place}")
        if length > len(data) - place:
            raise ValueError(f"field {number} has {length} bytes, {len(data) - place} are left")
        yield number, data[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the number at a place, seven bits a byte, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise ValueError("the file ends within a number")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError(f"a number of more than ten bytes ends at byte {place}")


def _as_bytes(value: int | bytes) -> bytes:
    """Return a value that must be bytes."""
    if not isinstance(value, bytes):
        raise ValueError("a number where a text or message must be")
    return value


def _as_int(value: int | bytes) -> int:
    """Return a value that must be a number."""
    if not isinstance(value, int):
        raise ValueError("bytes where a number must be")
    return value


def _signed(value: int) -> int:
    """Return a 64-bit number in two's complement as a signed one."""
    return value - (1 << 64) if value >= 1 << 63 else value
