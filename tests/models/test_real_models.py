"""Real models continue text as transformers does with the same weights, greedily, for 64 tokens on five prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from octavo.hf.checkpoint import open_checkpoint
from octavo.loader.loader import describe, load_model
from octavo.models.base import CausalLM
from octavo.ops import op as op_module
from tests.hf.real_models import DEMO, GEMMA, QWEN, model_file
from tests.oracle import logits_of

op_module.load("torch")
OPS = op_module.bind(["torch"])

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea,",
    "1, 2, 3, 5, 8, 13,",
    "Water boils at a lower temperature on a mountain because",
)
NUM_TOKENS = 64
# Float32 sums in another order: where two logits are closer than this, either may win.
TIE = 1e-3


def _load(path: Path) -> CausalLM:
    checkpoint = open_checkpoint(path)
    facts = describe(checkpoint)
    return load_model(facts, checkpoint.weights, ops=OPS, max_length=256, dtype="f32", threads=2)


def _reference(path: Path) -> tuple[transformers.PreTrainedModel, list[list[int]]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    metadata = open_checkpoint(path).metadata
    bos = [metadata["tokenizer.ggml.bos_token_id"]] if metadata.get("tokenizer.ggml.add_bos_token") else []
    return model.eval(), [bos + tokenizer(p, add_special_tokens=False)["input_ids"] for p in PROMPTS]


def _assert_continues(path: Path) -> None:
    reference, prompts = _reference(path)
    model = _load(path)
    for prompt in prompts:
        with torch.inference_mode():
            made = reference.generate(
                torch.tensor([prompt]), do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=-1
            )
        tokens = made[0].tolist()
        assert len(tokens) == len(prompt) + NUM_TOKENS
        # the token at each position of the reference's text is the one we would choose there
        logits = logits_of(model, OPS, tokens[:-1])[len(prompt) - 1 :]
        for row, token in zip(logits, tokens[len(prompt) :], strict=True):
            assert row.max() - row[token] <= TIE, (prompt, row.argmax(), token)


def test_demo_model_continues_as_transformers() -> None:
    _assert_continues(model_file(DEMO))


@pytest.mark.slow
def test_qwen_continues_as_transformers() -> None:
    _assert_continues(model_file(QWEN))


@pytest.mark.slow
def test_gemma_continues_as_transformers() -> None:
    _assert_continues(model_file(GEMMA))
