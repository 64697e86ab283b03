"""Small tokenizers of every kind, trained here with the library or with sentencepiece."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path

import sentencepiece
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. Hello world, hello there!",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 23))",
    "It's what we're told: don't. user assistant system 2024 12345",
    "\u00dcber den D\u00e4chern \u00e9t\u00e9 na\u00efve \u010fakujem \u4f60\u597d \u4e16\u754c",
] * 4
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
# Texts that break tokenizers: combining marks, joined emoji, flags, several scripts, all kinds of white space.
NASTY = [
    "",
    " ",
    "  leading and trailing  ",
    "Hello world!  It's 12345 o'clock\r\n\r\n\ttabs\n \n x",
    "caf\u00e9 cafe\u0301 \ufb01 \u212b \uff21",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \ud55c\uad6d\uc5b4 \u1112\u1161\u11ab \u0928\u092e\u0938\u094d\u0924\u0947",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u3053\u3093\u306b\u3061\u306f \u0645\u0631\u062d\u0628\u0627",
    "\u00a0\u2003\u3000\u200b\ufeff x \x00\x01\x7f\x85\u2028",
    "def f(x):\n\treturn {'a': [1, 2.5e-3]}  # \u00fc\n" * 3,
    "a" * 300 + " " * 70 + "\n" * 40,
    "1234567 \u0663\u0664 \u00bd \u2167 3\u00d74",
    "DON'T we'LL I'm '\u017f",
    "\u2581\u2581x <0x41> <unk> \ufffd \U0010ffff",
]


def named(name: str) -> tokenizers.Tokenizer:
    """Return a new tokenizer of a kind."""
    return tokenizers.Tokenizer.from_str(_trained(name))


KINDS = ("byte_level", "byte_level_prefix", "prepend", "gemma", "metaspace", "metaspace_first", "word_piece", "unigram")


@cache
def _trained(name: str) -> str:
    """Train a tokenizer and return its JSON."""
    core = _untrained(name)
    core.train_from_iterator(CORPUS, _trainer(name))
    if name in ("prepend", "gemma", "metaspace", "metaspace_first"):
        core = _with_bytes(core)
    core.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL])
    core.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("\n\n", normalized=False)])
    bos = core.token_to_id("<s>")
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", bos)]
    )
    return core.to_str()


def _untrained(name: str) -> tokenizers.Tokenizer:
    """Return the parts of a tokenizer of a kind."""
    if name == "word_piece":
        core = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        core.normalizer = normalizers.BertNormalizer(lowercase=True)
        core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        core.decoder = decoders.WordPiece()
        return core
    if name == "unigram":
        core = tokenizers.Tokenizer(models.Unigram())
        core.normalizer = normalizers.NFKC()
        core.pre_tokenizer = pre_tokenizers.Metaspace()
        core.decoder = decoders.Metaspace()
        return core
    core = tokenizers.Tokenizer(models.BPE(unk_token=None if name.startswith("byte") else "<unk>"))
    if name.startswith("byte_level"):
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=name == "byte_level_prefix")
        core.decoder = decoders.ByteLevel()
    elif name in ("prepend", "gemma"):
        steps = [normalizers.Replace(" ", "\u2581")]
        core.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), *steps] if name == "prepend" else steps)
        strip = [decoders.Strip(" ", 1, 0)] if name == "prepend" else []
        core.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
    else:
        scheme = "first" if name == "metaspace_first" else "always"
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
        steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        core.decoder = decoders.Sequence(steps)
    return core


def _trainer(name: str) -> trainers.Trainer:
    """Return a trainer of some 400 tokens."""
    if name == "word_piece":
        return trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]", "[PAD]"], show_progress=False)
    if name == "unigram":
        return trainers.UnigramTrainer(
            vocab_size=400, special_tokens=["<unk>", "<pad>"], unk_token="<unk>", show_progress=False
        )
    alphabet = pre_tokenizers.ByteLevel.alphabet() if name.startswith("byte") else []
    unknown = [] if name.startswith("byte") else ["<unk>"]
    return trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, special_tokens=unknown, show_progress=False)


def _with_bytes(core: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a tokenizer whose vocabulary begins with byte tokens, and that falls back to them."""
    state = json.loads(core.to_str())
    texts = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    texts += [text for text in state["model"]["vocab"] if text != "<unk>"]
    state["model"] |= {"vocab": {text: i for i, text in enumerate(texts)}, "byte_fallback": True, "fuse_unk": True}
    state["added_tokens"] = []
    core = tokenizers.Tokenizer.from_str(json.dumps(state))
    core.add_special_tokens([AddedToken("<unk>", normalized=False, special=True)])
    return core


def write_folder(folder: Path, core: tokenizers.Tokenizer, **config: object) -> Path:
    """Write a tokenizer as a model folder holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    core.save(str(folder / "tokenizer.json"))
    values = {"bos_token": "<s>", "eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(values | config))
    return folder


def train_sentencepiece(kind: str, **options: object) -> sentencepiece.SentencePieceProcessor:
    """Train a sentencepiece model with byte fallback."""
    written = io.BytesIO()
    defaults = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
    options = defaults | {"user_defined_symbols": ["<tool>"]} | options
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter([line for text in CORPUS for line in text.splitlines()] * 5),
        model_writer=written,
        model_type=kind,
        vocab_size=360 if kind == "bpe" else 330,
        character_coverage=0.98,
        minloglevel=2,
        hard_vocab_limit=False,
        **options,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
