"""Build the tokenizer that a GGUF file holds in its metadata, under tokenizer.ggml.*.

    model   "gpt2" byte-level BPE | "llama" SentencePiece BPE | "bert" WordPiece | "t5" SentencePiece unigram
    tokens  one text per id        token_type  1 normal 2 unknown 3 control 4 user-defined 5 unused 6 byte
    scores  of SentencePiece       merges      of byte-level BPE, "left right"
    pre     which rules split text into words before byte-level BPE

Source: the GGUF specification (docs/gguf.md in the ggml repository) and published files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.hf.tokenizer_source import MAX_TOKENS, LibraryErrors, TokenizerSource, set_affixes
from octavo.hf.tokenizer_spm import SpmRules, build_bpe, build_unigram
from octavo.hf.tokenizer_words import WORD_RULES, pre_tokenizer

__all__ = ["read_gguf_tokenizer"]

_PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Texts that end a turn in models whose files name only one end token; they are control tokens there.
_END_TEXTS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eot|>")
_HARMONY_END_TEXTS = ("<|return|>", "<|call|>", "<|endoftext|>")  # there <|end|> ends a part of a turn
_PHANTOM_SPACE = "\u2581"


def read_gguf_tokenizer(metadata: Mapping[str, Any]) -> TokenizerSource:
    """Build the tokenizer from the metadata of a GGUF file.

    Raises CheckpointError for metadata that is wrong, UnsupportedModelError for a kind of tokenizer not listed here.
    """
    model = metadata.get(_PREFIX + "model")
    build = _BUILDERS.get(model) if isinstance(model, str) else None
    if build is None:
        raise UnsupportedModelError(
            f"tokenizer.ggml.model is {str(model)[:100]!r}; supported are {', '.join(_BUILDERS)}; "
            "name a folder with a tokenizer.json with --tokenizer"
        )
    fields = _Fields(metadata)
    with LibraryErrors("the tokenizer in the GGUF file"):
        core = build(fields)
        _add_tokens(core, fields)
    eos = tuple(dict.fromkeys(i for key in _END_KEYS if (i := fields.token_id(key)) is not None))
    bos = fields.token_id("bos_token_id")
    is_bert = model == "bert"
    is_spm = model == "llama"
    adds_by_default = WORD_RULES[fields.word_rules].adds_bos if model == "gpt2" else is_spm or is_bert
    adds_bos = fields.flag("add_bos_token", adds_by_default)
    adds_eos = fields.flag("add_eos_token", model == "t5") or fields.flag("add_sep_token", is_bert)
    end = fields.token_id("seperator_token_id") if is_bert else None  # sic
    start = fields.token_id("cls_token_id") if is_bert and bos is None else bos
    if end is None and eos:
        end = eos[0]
    if adds_bos or adds_eos:
        set_affixes(core, bos=start if adds_bos else None, eos=end if adds_eos else None)
    return TokenizerSource(
        core=core,
        bos_token_id=bos,
        eos_token_ids=eos + tuple(i for i in _turn_ends(fields) if i not in eos),
        pad_token_id=fields.token_id("padding_token_id"),
        unk_token_id=fields.token_id("unknown_token_id"),
    )


class _Fields:
    """The checked fields of a tokenizer: every id is a token, every list has the right length and type."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.model = metadata.get(_PREFIX + "model")
        tokens = self.texts("tokens")
        if not tokens or len(tokens) > MAX_TOKENS:
            raise CheckpointError(f"tokenizer.ggml.tokens has {len(tokens)} tokens; 1 to {MAX_TOKENS} are allowed")
        self.tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(tokens)]
        self.vocab = {text: i for i, text in enumerate(self.tokens)}
        if len(self.vocab) != len(tokens):
            text, count = Counter(self.tokens).most_common(1)[0]
            raise CheckpointError(f"tokenizer.ggml.tokens has {text[:100]!r} {count} times; each must be there once")
        types = self.numbers("token_type")
        self.types = np.full(len(tokens), NORMAL) if types is None else types
        if not np.isin(self.types, (0, *range(NORMAL, BYTE + 1))).all():
            raise CheckpointError("tokenizer.ggml.token_type has values other than 0 to 6")

    def texts(self, name: str) -> list[str]:
        """Return an array of strings, empty if there is none."""
        value = self._metadata.get(_PREFIX + name, [])
        if not isinstance(value, list) or not set(map(type, value)) <= {str}:
            raise CheckpointError(f"tokenizer.ggml.{name} must be an array of strings, not {type(value).__name__}")
        return value

    def numbers(self, name: str) -> np.ndarray | None:
        """Return an array of one number per token, or None if there is none."""
        value = self._metadata.get(_PREFIX + name)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or value.shape != (len(self.tokens),):
            raise CheckpointError(
                f"tokenizer.ggml.{name} must be an array of {len(self.tokens)} numbers, one for each token"
            )
        return value

    def scores(self) -> np.ndarray:
        """Return the score of each token, [V] f32."""
        found = self.numbers("scores")
        if found is None:
            raise CheckpointError("tokenizer.ggml.scores is missing; a SentencePiece tokenizer needs it")
        if found.dtype.kind != "f" or not np.isfinite(found).all():
            raise CheckpointError("tokenizer.ggml.scores must be finite float numbers")
        return found

    def token_id(self, name: str) -> int | None:
        """Return the id of a token by its role, or None if not given; 0xFFFFFFFF also says so."""
        value = self._metadata.get(_PREFIX + name)
        if value is None or value in (0xFFFFFFFF, -1):
            return None
        if type(value) is not int or not 0 <= value < len(self.tokens):
            raise CheckpointError(f"tokenizer.ggml.{name} is {str(value)[:100]}; there are {len(self.tokens)} tokens")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a yes or no."""
        value = self._metadata.get(_PREFIX + name, default)
        if type(value) is not bool:
            raise CheckpointError(f"tokenizer.ggml.{name} must be true or false, not {str(value)[:100]}")
        return value

    def bytes_of(self, name: str) -> bytes:
        """Return an array of bytes, empty if there is none."""
        value = self._metadata.get(_PREFIX + name)
        if value is None:
            return b""
        if not isinstance(value, np.ndarray) or value.dtype.itemsize != 1:
            raise CheckpointError(f"tokenizer.ggml.{name} must be an array of bytes")
        return value.tobytes()

    @property
    def word_rules(self) -> str:
        """Return the name of the rules that split text into words."""
        value = self._metadata.get(_PREFIX + "pre", "default")
        if not isinstance(value, str) or value not in WORD_RULES:
            raise UnsupportedModelError(
                f"tokenizer.ggml.pre is {str(value)[:100]!r}; supported are {', '.join(sorted(WORD_RULES))}; "
                "name a folder with a tokenizer.json with --tokenizer"
            )
        return value


def _byte_level_bpe(fields: _Fields) -> tokenizers.Tokenizer:
    """Build byte-level BPE."""
    rules = WORD_RULES[fields.word_rules]
    merges = []
    for text in fields.texts("merges"):
        space = text.find(" ", 1)
        if space < 0:
            raise CheckpointError(f"tokenizer.ggml.merges has {text[:100]!r}; each must be two tokens and a space")
        merges.append((text[:space], text[space + 1 :]))
    core = tokenizers.Tokenizer(models.BPE(fields.vocab, merges, ignore_merges=rules.ignore_merges))
    if rules.is_nfc:
        core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizer(rules, add_prefix_space=fields.flag("add_space_prefix", False))
    core.decoder = decoders.ByteLevel()
    return core


def _spm_bpe(fields: _Fields) -> tokenizers.Tokenizer:
    """Build SentencePiece BPE, whose merges are in the scores."""
    return build_bpe(fields.vocab, fields.scores(), _spaces(fields), is_mergeable=np.isin(fields.types, (0, NORMAL)))


def _spm_unigram(fields: _Fields) -> tokenizers.Tokenizer:
    """Build SentencePiece unigram."""
    return build_unigram(fields.tokens, fields.scores(), _spaces(fields))


def _spaces(fields: _Fields) -> SpmRules:
    """Return how a SentencePiece tokenizer treats spaces, and what it lacks; BPE keeps spaces if not told otherwise."""
    is_unigram = fields.model == "t5"
    return SpmRules(
        unknown=fields.token_id("unknown_token_id"),
        has_bytes=bool((fields.types == BYTE).sum() == 256),
        charsmap=fields.bytes_of("precompiled_charsmap"),
        add_prefix=fields.flag("add_space_prefix", True),
        is_squeezed=fields.flag("remove_extra_whitespaces", is_unigram),
    )


def _word_piece(fields: _Fields) -> tokenizers.Tokenizer:
    """Build WordPiece. The file marks what begins a word; the library marks what continues one."""
    is_word = fields.types <= NORMAL
    vocab = {}
    for token_id, text in enumerate(fields.tokens):
        if is_word[token_id]:
            text = text[1:] if text.startswith(_PHANTOM_SPACE) else f"##{text}"
        vocab[text] = token_id
    if len(vocab) != len(fields.tokens):
        raise CheckpointError("tokenizer.ggml.tokens has two tokens of one text")
    unknown = fields.token_id("unknown_token_id")
    if unknown is None:
        raise CheckpointError("tokenizer.ggml.unknown_token_id is missing; WordPiece needs it")
    core = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=fields.tokens[unknown]))
    # a vocabulary without capital letters is one of lower-cased text; files do not say it
    is_lower = all(text == text.lower() for text, word in zip(fields.tokens, is_word, strict=True) if word)
    core.normalizer = normalizers.BertNormalizer(lowercase=is_lower)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    return core


_BUILDERS: dict[str, Callable[[_Fields], tokenizers.Tokenizer]] = {
    "gpt2": _byte_level_bpe,
    "llama": _spm_bpe,
    "bert": _word_piece,
    "t5": _spm_unigram,
}


def _add_tokens(core: tokenizers.Tokenizer, fields: _Fields) -> None:
    """Add control tokens, which are special, and user-defined tokens: both are found in text before all others."""
    added = []
    for token_id in np.flatnonzero(np.isin(fields.types, (UNKNOWN, CONTROL, USER_DEFINED))).tolist():
        is_special = fields.types[token_id] != USER_DEFINED
        added.append(AddedToken(fields.tokens[token_id], special=bool(is_special), normalized=False))
    core.add_tokens(added)


def _turn_ends(fields: _Fields) -> list[int]:
    """Return control tokens that end a turn by their text."""
    texts = _HARMONY_END_TEXTS if _HARMONY_END_TEXTS[0] in fields.vocab else _END_TEXTS
    found = (fields.vocab.get(text) for text in texts)
    return [i for i in found if i is not None and fields.types[i] == CONTROL]
