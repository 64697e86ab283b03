"""Read the tokenizer of a model folder: tokenizer.json, and what tokenizer_config.json adds to it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from octavo.errors import CheckpointError, ModelNotFoundError
from octavo.hf.files import read_json_object, read_text
from octavo.hf.tokenizer_source import MAX_TOKENS, LibraryErrors, TokenizerSource

__all__ = ["read_folder"]

MAX_TOKENIZER_BYTES = 128 << 20  # the largest tokenizer.json known has 33 MB
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXTRA = ("additional_special_tokens", "extra_special_tokens")


def read_folder(folder: Path) -> TokenizerSource:
    """Read the tokenizer in a folder.

    tokenizer.json alone says whether a BOS or EOS token is added: as in transformers, add_bos_token and add_eos_token
    in tokenizer_config.json have no effect beside it.
    Raises CheckpointError if its files are wrong, ModelNotFoundError if there are none.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelNotFoundError(
            f"{folder} has no tokenizer.json, so text cannot become tokens; download it with the model, "
            "or name a folder or GGUF file that has the tokenizer with --tokenizer"
        )
    with LibraryErrors(str(path)):
        core = tokenizers.Tokenizer.from_str(read_text(path, MAX_TOKENIZER_BYTES))
    core.no_truncation()
    core.no_padding()
    if core.get_vocab_size() > MAX_TOKENS:
        raise CheckpointError(f"{path}: has {core.get_vocab_size()} tokens, at most {MAX_TOKENS} are allowed")
    config = _read_config(folder)
    named = {name: _content(config.get(name), name) for name in _NAMED}
    extra = [text for name in _EXTRA for text in _extra(config.get(name), name)]
    _add_missing(core, config, [*(text for text in named.values() if text), *extra])
    ids = {name: None if text is None else core.token_to_id(text) for name, text in named.items()}
    return TokenizerSource(
        core=core,
        bos_token_id=ids["bos_token"],
        eos_token_ids=() if ids["eos_token"] is None else (ids["eos_token"],),
        pad_token_id=ids["pad_token"],
        unk_token_id=ids["unk_token"],
    )


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
