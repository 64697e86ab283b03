"""A front end over MockEngine: a byte-level tokenizer whose token i is byte i, and no model."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from octavo.config.engine import EngineConfig
from octavo.engine.outputs import ModelInfo
from octavo.hf.chat_template import ChatTemplate
from octavo.hf.tokenizer import Tokenizer as OctavoTokenizer

__all__ = ["BOS", "EOS", "MAX_LEN", "ids_of", "make_info"]

MAX_LEN = 2048
BOS, EOS = 256, 257
TEMPLATE = "{% for m in messages %}<|start|>{{ m.role }}:{{ m.content }}<|end|>{% endfor %}<|start|>assistant:"


def _byte_of(character: str) -> int:
    """Return the byte a character of the byte-level alphabet stands for."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in printable}
    extra = (b for b in range(256) if b not in printable)
    table |= {chr(256 + i): b for i, b in enumerate(extra)}
    return table[character]


def make_info(folder: Path, *, adds_bos: bool = False, **fields: object) -> ModelInfo:
    """Return what a front end knows of a model that is not there. Token ids 0-255 are bytes."""
    vocab = {c: _byte_of(c) for c in pre_tokenizers.ByteLevel.alphabet()}
    library = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(t, special=True) for t in ("<|bos|>", "<|end|>", "<|start|>")])
    if adds_bos:
        library.post_processor = processors.TemplateProcessing("<|bos|> $A", special_tokens=[("<|bos|>", BOS)])
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<|bos|>", "eos_token": "<|end|>"}')
    tokenizer = OctavoTokenizer.from_folder(folder)
    return ModelInfo(
        model="mock",
        max_model_len=MAX_LEN,
        vocab_size=300,
        tokenizer=tokenizer,
        chat_template=ChatTemplate(TEMPLATE),
        control_texts=frozenset(),
        eos_token_ids=(EOS,),
        sampling_defaults={"temperature": 0.5, "max_new_tokens": 7},
        config=EngineConfig.from_flat(**fields),
    )


def ids_of(text: str) -> list[int]:
    """Return one token per UTF-8 byte."""
    return list(text.encode())
