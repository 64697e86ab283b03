"""Every family equals transformers on tiny random checkpoints, from safetensors and from GGUF."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.hf.checkpoint import Checkpoint, open_checkpoint
from octavo.loader.loader import describe, load_model
from octavo.models.base import CausalLM
from octavo.ops import op as op_module
from tests.models.families import FAMILIES, Family, make, write_gguf
from tests.oracle import greedy, logits_of

op_module.load("torch")
OPS = op_module.bind(["torch"])

# Two float32 implementations that sum in different orders; the contract's bound.
MAX_RELATIVE_ERROR = 1e-4


def _open(path: Path, max_length: int) -> tuple[Checkpoint, CausalLM]:
    checkpoint = open_checkpoint(path)
    model = load_model(describe(checkpoint), checkpoint.weights, ops=OPS, max_length=max_length, dtype="f32", threads=1)
    return checkpoint, model


def _reference(model: transformers.PreTrainedModel, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


def _prompt(family: Family, count: int) -> list[int]:
    return np.random.default_rng(1).integers(3, 200, min(count, family.max_length)).tolist()


def _assert_close(ours: np.ndarray, reference: np.ndarray) -> None:
    assert np.abs(ours - reference).max() <= MAX_RELATIVE_ERROR * np.abs(reference).max()


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_greedy_tokens_equal_transformers(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    reference = make(family, tmp_path)
    _, model = _open(tmp_path, family.max_length)
    # a rope that depends on the length is compared at that length: transformers switches by the text so far
    fixed = name in ("llama, dynamic rope", "phi3, long rope, long")
    ids = _prompt(family, 48)
    _assert_close(logits_of(model, OPS, ids), _reference(reference, ids))
    if not fixed:
        prompt = ids[:8]
        ours = greedy(model, OPS, prompt, 24)
        for position, token in enumerate(ours):
            assert token == _reference(reference, prompt + ours[:position])[-1].argmax()


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.gguf])
def test_gguf_equals_transformers(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    reference = make(family, tmp_path / "hf")
    path = tmp_path / "model.gguf"
    assert family.gguf is not None
    write_gguf(reference, family.gguf, path)
    _, model = _open(path, family.max_length)
    ids = _prompt(family, 48)
    _assert_close(logits_of(model, OPS, ids), _reference(reference, ids))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16", "BF16"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3", "phi3"])
def test_quantised_gguf_equals_transformers_with_the_same_rounding(name: str, kind: str, tmp_path: Path) -> None:
    family, type_ = FAMILIES[name], gguf.GGMLQuantizationType[kind]
    reference = make(family, tmp_path / "hf")
    path = tmp_path / "model.gguf"
    assert family.gguf is not None
    write_gguf(reference, family.gguf, path, type_)
    with torch.no_grad():
        for tensor in {id(p): p for p in reference.parameters()}.values():
            if tensor.ndim == 2 and tensor.shape[1] % 32 == 0:
                rounded = gguf.quants.dequantize(gguf.quants.quantize(tensor.numpy(), type_), type_)
                tensor.copy_(torch.from_numpy(rounded))
    _, model = _open(path, family.max_length)
    ids = _prompt(family, 40)
    _assert_close(logits_of(model, OPS, ids), _reference(reference, ids))


def _llama(tmp_path: Path) -> Checkpoint:
    make(FAMILIES["llama"], tmp_path)
    return open_checkpoint(tmp_path)


def _load(checkpoint: Checkpoint) -> CausalLM:
    return load_model(describe(checkpoint), checkpoint.weights, ops=OPS, max_length=64, dtype="f32", threads=1)


def test_missing_and_unexpected_tensors_are_named(tmp_path: Path) -> None:
    checkpoint = _llama(tmp_path)
    checkpoint.weights["model.layers.0.strange.weight"] = checkpoint.weights.pop("model.layers.1.mlp.up_proj.weight")
    with pytest.raises(CheckpointError, match=r"1 missing: layers\.1\.gate_up\.weight \(up\); 1 unexpected: .*strange"):
        _load(checkpoint)


def test_layer_beyond_the_configuration_is_unexpected(tmp_path: Path) -> None:
    checkpoint = _llama(tmp_path)
    checkpoint.weights["model.layers.4.mlp.up_proj.weight"] = checkpoint.weights["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(CheckpointError, match=r"1 unexpected: model\.layers\.4"):
        _load(checkpoint)


def test_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    checkpoint = _llama(tmp_path)
    weights = checkpoint.weights
    weights["model.layers.0.mlp.up_proj.weight"] = weights["model.layers.0.mlp.down_proj.weight"]
    with pytest.raises(CheckpointError, match=r"up_proj.weight has shape \(64, 96\).* asks for \(96, 64\)"):
        _load(checkpoint)


def test_unknown_model_type_lists_what_is_supported(tmp_path: Path) -> None:
    checkpoint = _llama(tmp_path)
    checkpoint.config["model_type"] = "perceptron"
    with pytest.raises(
        UnsupportedModelError, match=r"'perceptron' is not supported; supported: gemma2, gemma3_text, llama"
    ):
        describe(checkpoint)


def test_quantised_checkpoint_is_refused_by_its_method(tmp_path: Path) -> None:
    checkpoint = _llama(tmp_path)
    checkpoint.config["quantization_config"] = {"quant_method": "awq"}
    with pytest.raises(UnsupportedModelError, match="quantised with 'awq'"):
        describe(checkpoint)


@pytest.mark.parametrize("value", [0, -1, 2.5, "64", None, True, 1 << 40])
def test_configuration_sizes_must_be_positive_whole_numbers(tmp_path: Path, value: object) -> None:
    checkpoint = _llama(tmp_path)
    checkpoint.config["hidden_size"] = value
    with pytest.raises(CheckpointError, match="hidden_size must be a positive whole number"):
        describe(checkpoint)


def test_dummy_weights_are_the_same_each_time(tmp_path: Path) -> None:
    facts = describe(_llama(tmp_path))
    first, second = (load_model(facts, None, ops=OPS, max_length=64, dtype="f32", threads=1) for _ in range(2))
    ids = [5, 9, 3]
    np.testing.assert_array_equal(logits_of(first, OPS, ids), logits_of(second, OPS, ids))
