"""Read the tokenizer of a model folder: tokenizer.json or tokenizer.model, and what tokenizer_config.json adds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from octavo.errors import CheckpointError, ModelNotFoundError
from octavo.hf.files import read_json_object, read_text
from octavo.hf.gguf_tokenizer import read_gguf_tokenizer
from octavo.hf.tokenizer_model import read_sentencepiece
from octavo.hf.tokenizer_source import MAX_TOKENS, LibraryErrors, TokenizerSource

__all__ = ["read_folder"]

MAX_TOKENIZER_BYTES = 128 << 20  # the largest tokenizer.json known has 33 MB
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXTRA = ("additional_special_tokens", "extra_special_tokens")


def read_folder(folder: Path) -> TokenizerSource:
    """Read the tokenizer in a folder.

    tokenizer.json alone says whether a BOS or EOS token is added: as in transformers, add_bos_token and add_eos_token
    in tokenizer_config.json have no effect beside it.
    Without it, tokenizer.model of sentencepiece is read.
    Raises CheckpointError if its files are wrong, ModelNotFoundError if there are none.
    """
    config = _read_config(folder)
    if (folder / "tokenizer.json").is_file():
        source = TokenizerSource(core=_read_json(folder / "tokenizer.json"))
    elif (folder / "tokenizer.model").is_file():
        source = _read_model(folder / "tokenizer.model", config)
    else:
        found = "tekken.json, which cannot be read, but " if (folder / "tekken.json").is_file() else ""
        raise ModelNotFoundError(
            f"{folder} has {found}no tokenizer.json or tokenizer.model, so text cannot become tokens; download "
            "tokenizer.json with the model, or name a folder or GGUF file that has the tokenizer with --tokenizer"
        )
    core = source.core
    named = {name: _content(config.get(name), name) for name in _NAMED}
    extra = [text for name in _EXTRA for text in _extra(config.get(name), name)]
    _add_missing(core, config, [*(text for text in named.values() if text), *extra])
    ids = {name: core.token_to_id(text) for name, text in named.items() if text}
    eos = ids.get("eos_token")
    return replace(
        source,
        bos_token_id=ids.get("bos_token", source.bos_token_id),
        eos_token_ids=source.eos_token_ids if eos is None else (eos,),
        pad_token_id=ids.get("pad_token", source.pad_token_id),
        unk_token_id=ids.get("unk_token", source.unk_token_id),
    )


def _read_json(path: Path) -> tokenizers.Tokenizer:
    """Read tokenizer.json."""
    with LibraryErrors(str(path)):
        core = tokenizers.Tokenizer.from_str(read_text(path, MAX_TOKENIZER_BYTES))
    core.no_truncation()
    core.no_padding()
    if core.get_vocab_size() > MAX_TOKENS:
        raise CheckpointError(f"{path}: has {core.get_vocab_size()} tokens, at most {MAX_TOKENS} are allowed")
    return core


def _read_model(path: Path, config: dict[str, Any]) -> TokenizerSource:
    """Read tokenizer.model; here the flags of tokenizer_config.json count."""
    metadata = read_sentencepiece(path)
    for name in ("add_bos_token", "add_eos_token"):
        if isinstance(config.get(name), bool):
            metadata[f"tokenizer.ggml.{name}"] = config[name]
    return read_gguf_tokenizer(metadata)


def _read_config(folder: Path) -> dict[str, Any]:
    """Return tokenizer_config.json over special_tokens_map.json; either may be missing."""
    found: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            found |= read_json_object(folder / name)
    return found


def _content(value: object, name: str) -> str | None:
    """Return the text of a token given as text or as an object with `content`; None if not given or empty."""
    text = value.get("content") if isinstance(value, dict) else value
    if text is not None and not isinstance(text, str):
        raise CheckpointError(f"tokenizer_config.json: {name} must be text, not {str(value)[:200]}")
    return text or None


def _extra(value: object, name: str) -> Iterable[str]:
    """Return the texts of a list of tokens, or of an object that names them."""
    items = value.values() if isinstance(value, dict) else value
    if items is None:
        return ()
    if not isinstance(items, Iterable) or isinstance(items, str):
        raise CheckpointError(f"tokenizer_config.json: {name} must be a list, not {str(value)[:200]}")
    return [text for item in items if (text := _content(item, name)) is not None]


def _add_missing(core: tokenizers.Tokenizer, config: dict[str, Any], special: list[str]) -> None:
    """Add tokens that only tokenizer_config.json knows; those in `special` become special tokens."""
    known = {token.content: token for token in core.get_added_tokens_decoder().values()}
    declared = config.get("added_tokens_decoder") or {}
    if not isinstance(declared, dict) or len(declared) > MAX_TOKENS:
        raise CheckpointError(f"tokenizer_config.json: added_tokens_decoder must be an object of at most {MAX_TOKENS}")
    missing: dict[str, AddedToken] = {}
    for token_id in sorted(declared, key=_token_id):
        entry = declared[token_id]
        text = _content(entry, f"added_tokens_decoder.{token_id}")
        if text is None or not isinstance(entry, dict):
            raise CheckpointError(f"tokenizer_config.json: added_tokens_decoder.{token_id} is {str(entry)[:200]}")
        flags = {name: entry.get(name) is True for name in ("lstrip", "rstrip", "single_word", "special")}
        token = AddedToken(text, normalized=entry.get("normalized", not flags["special"]) is True, **flags)
        if text not in known or _flags(known[text]) != _flags(token):
            missing[text] = token
    for text in special:
        if text not in known and text not in missing:
            missing[text] = AddedToken(text, special=True, normalized=False)
        elif text in missing:
            missing[text].special = True
    if missing:
        with LibraryErrors("tokenizer_config.json"):
            core.add_tokens(list(missing.values()))


def _token_id(key: str) -> int:
    """Return a key of added_tokens_decoder as a number."""
    if not key.isascii() or not key.isdigit() or len(key) > 9:
        raise CheckpointError(f"tokenizer_config.json: added_tokens_decoder has the key {key[:50]!r}, not a token id")
    return int(key)


def _flags(token: AddedToken) -> tuple[bool, ...]:
    """Return what distinguishes added tokens of one text."""
    return (token.lstrip, token.rstrip, token.single_word, token.normalized, token.special)
