"""From checkpoint to model: map name -> shard -> fill. Strict: every tensor used once, every parameter filled."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.hf.checkpoint import Checkpoint
from octavo.hf.weight import Weight
from octavo.layers.parameter import Parameter
from octavo.models.base import CausalLM, To, WeightMap, find_gguf_model, find_model
from octavo.models.decoder import DecoderConfig
from octavo.ops.op import Ops
from octavo.quantization import ggml

__all__ = ["ModelFacts", "describe", "load_model"]

DUMMY_SCALE = 0.02
NAMES_SHOWN = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """What a checkpoint says of its model, without reading a weight.

    hf_config: config.json, or what a GGUF's metadata stands for.   architecture: name of our model file.
    """

    architecture: str
    config: DecoderConfig
    hf_config: Mapping[str, Any]
    weight_map: WeightMap
    module: ModuleType


def describe(checkpoint: Checkpoint) -> ModelFacts:
    """Find the model file of a checkpoint and read its configuration.

    Raises UnsupportedModelError for an architecture or a quantisation not known here, CheckpointError for bad values.
    """
    if checkpoint.format == "gguf":
        architecture = checkpoint.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise CheckpointError(f"{checkpoint.path}: the file names no general.architecture")
        module = find_gguf_model(architecture)

        def read(name: str) -> np.ndarray | None:
            weight = checkpoint.weights.get(name)
            if weight is None:
                return None
            # only small tensors are wanted for their values; of others, that they exist
            return ggml.decode(weight) if len(weight.shape) == 1 else np.empty(0, np.float32)

        hf_config = module.GGUF.hf_config(checkpoint.metadata, read)
        weight_map = module.GGUF.weights
    else:
        hf_config = checkpoint.config
        if quantised := hf_config.get("quantization_config"):
            method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
            raise UnsupportedModelError(
                f"{checkpoint.path}: weights quantised with {method!r} cannot be read; "
                "use a GGUF or an unquantised checkpoint"
            )
        model_type = hf_config.get("model_type")
        if not isinstance(model_type, str):
            raise CheckpointError(f"{checkpoint.path}: config.json names no model_type")
        module = find_model(model_type)
        weight_map = module.WEIGHTS
    return ModelFacts(
        architecture=module.__name__.rsplit(".", 1)[-1],
        config=module.config_from_hf(hf_config),
        hf_config=hf_config,
        weight_map=weight_map,
        module=module,
    )


def load_model(
    facts: ModelFacts, weights: Mapping[str, Weight] | None, *, ops: Ops, max_length: int, dtype: str, threads: int
) -> CausalLM:
    """Build the model and fill it.

    weights: the checkpoint's tensors by name, or None for deterministic random ones.
    max_length: longest sequence it will see, in tokens.   dtype: "f32" "bf16" "f16".
    Raises CheckpointError, with the names, unless every tensor is used once and every parameter filled.
    """
    model: CausalLM = facts.module.Model(facts.config, ops=ops, max_length=max_length)
    if weights is None:
        for parameter in model.parameters:
            _fill_dummy(parameter)
    else:
        _fill(model, facts, weights, threads)
    for parameter in model.parameters:
        parameter.finalize(ops, dtype)
    return model


def _fill_dummy(parameter: Parameter) -> None:
    rng = np.random.default_rng(zlib.crc32(parameter.name.encode()))
    for shard, (start, stop) in parameter.shards.items():
        out = parameter.destination(shard, (stop - start, *parameter.shape[1:]), parameter.name)
        if "norm" in parameter.name:
            out[...] = 1
        else:
            rng.standard_normal(out.shape, dtype=np.float32, out=out)
            out *= DUMMY_SCALE


def _fill(model: CausalLM, facts: ModelFacts, weights: Mapping[str, Weight], threads: int) -> None:
    """Plan where each tensor goes, check that all is complete, then decode."""
    direct: list[tuple[Weight, np.ndarray]] = []
    indirect: list[tuple[Weight, tuple[tuple[Parameter, To], ...]]] = []
    filled: dict[tuple[str, str], str] = {}
    unexpected = []
    for name, weight in weights.items():
        if facts.weight_map.is_ignored(name) or (name in _TIED and facts.config.is_tied):
            continue
        targets = facts.weight_map.find(name)
        places = [] if targets is None else [(model.parameters.get(to.parameter), to) for to in targets]
        found = tuple((parameter, to) for parameter, to in places if parameter is not None)
        if targets is None or len(found) != len(targets):
            unexpected.append(name)
            continue
        for parameter, to in found:
            other = filled.setdefault((parameter.name, to.shard), name)
            if other != name:
                raise CheckpointError(f"tensors {other} and {name} are both meant for {parameter.name}")
        if len(found) == 1 and found[0][1].transform is None:
            parameter, to = found[0]
            direct.append((weight, parameter.destination(to.shard, weight.shape, name)))
        else:
            indirect.append((weight, found))
    missing = [
        f"{parameter.name}{f' ({shard})' if shard else ''}"
        for parameter in model.parameters
        for shard in parameter.shards
        if (parameter.name, shard) not in filled
    ]
    if unexpected or missing:
        parts = [
            f"{len(names)} {what}: {_some(names)}"
            for names, what in ((missing, "missing"), (unexpected, "unexpected"))
            if names
        ]
        raise CheckpointError(f"the checkpoint's tensors are not those of its configuration; {'; '.join(parts)}")
    ggml.decode_many([weight for weight, _ in direct], threads, outs=[out for _, out in direct])
    for weight, found in indirect:
        _place(weight, found, facts.config)


_TIED = frozenset({"lm_head.weight", "output.weight"})


def _some(names: list[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN]) + (
        f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    )


def _place(weight: Weight, found: tuple[tuple[Parameter, To], ...], config: DecoderConfig) -> None:
    """Decode one tensor, cut it along its rows among its targets, and transform each part."""
    array, start = ggml.decode(weight), 0
    for parameter, to in found:
        first, last = parameter.shards[to.shard]
        part = array[start : start + last - first] if len(found) > 1 else array
        start += last - first
        part = part if to.transform is None else to.transform(part, config)
        parameter.destination(to.shard, part.shape, weight.name)[...] = part
    if len(found) > 1 and start != len(array):
        raise CheckpointError(f"{weight.name} has {len(array)} rows, but this model's configuration asks for {start}")
