"""Tiny random models on disk: written by transformers, read by octavo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CHAT_TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 257,
    "vocab_size": 260,
}


def _write_tokenizer(folder: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<|bos|>", "<|end|>", "<|start|>", "<|pad|>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|bos|>", "eos_token": "<|end|>", "add_bos_token": False, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _write(folder: Path, config: transformers.PretrainedConfig) -> Path:
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:  # wide enough that attention and the choice of a token are sharp
                parameter.mul_(6 if "embed" not in name else 2)
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama with full attention."""
    config = transformers.LlamaConfig(**COMMON, num_hidden_layers=2, rope_theta=10_000.0)
    return _write(tmp_path_factory.mktemp("llama"), config)


@pytest.fixture(scope="session")
def gemma3_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A six-layer Gemma 3: five sliding-window layers and a full one."""
    config = transformers.Gemma3TextConfig(**COMMON, num_hidden_layers=6, sliding_window=24, query_pre_attn_scalar=16)
    return _write(tmp_path_factory.mktemp("gemma3"), config)
