"""Rotary embedding tables. Factors are fixed at load from the maximum length, so that cached keys stay valid.

Where a method depends on the current length (dynamic, longrope), the maximum length takes its place: a model opened
for more than its original context uses the long form for every request, as its keys may be shared between requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.errors import CheckpointError, UnsupportedModelError
from octavo.ops.op import Ops, Tensor

__all__ = ["RopeConfig", "RopeTables", "rope_from_hf", "rope_table"]


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """One rotary embedding: how many leading dimensions of a head turn, the base, and a scaling method's parameters.

    original_length: tokens the model was first trained for.   factors: per-frequency divisors given by the checkpoint
    itself (a GGUF's rope_freqs), used as they are.
    """

    rotary_dim: int
    theta: float
    kind: str = "default"
    original_length: int
    max_position: int
    params: Mapping[str, Any] = field(default_factory=dict)
    factors: tuple[float, ...] | None = None


def rope_from_hf(hf: Mapping[str, Any], head_dim: int, *, layer_type: str | None = None) -> RopeConfig:
    """Read the rotary embedding of a Hugging Face configuration, in either generation of its keys.

    layer_type: "full_attention" or "sliding_attention" where a model has one embedding for each.
    """
    given = hf.get("rope_parameters") or {}
    if layer_type is not None and layer_type in given:
        given = given[layer_type]
    scaling = {**(hf.get("rope_scaling") or {}), **given}
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    theta = scaling.get("rope_theta", hf.get("rope_theta", 10_000.0))
    partial = scaling.get("partial_rotary_factor", hf.get("partial_rotary_factor", 1.0))
    max_position = int(hf.get("max_position_embeddings") or 0)
    original = hf.get("original_max_position_embeddings") or scaling.get("original_max_position_embeddings")
    return RopeConfig(
        rotary_dim=int(head_dim * float(partial)),
        theta=float(theta),
        kind={"su": "longrope"}.get(kind, kind),
        original_length=int(original or max_position),
        max_position=max_position,
        params=scaling,
    )


def _number(rope: RopeConfig, key: str, default: float | None = None) -> float:
    value = rope.params.get(key)
    if value is None:
        value = default
    if not isinstance(value, int | float):
        raise CheckpointError(f"rope scaling {rope.kind} needs a number {key}, and the configuration gives {value!r}")
    return float(value)


def _default(rope: RopeConfig, max_length: int) -> tuple[np.ndarray, float]:
    exponents = np.arange(0, rope.rotary_dim, 2, dtype=np.float64) / rope.rotary_dim
    return rope.theta**-exponents, 1.0


def _linear(rope: RopeConfig, max_length: int) -> tuple[np.ndarray, float]:
    return _default(rope, max_length)[0] / _number(rope, "factor"), 1.0


def _dynamic(rope: RopeConfig, max_length: int) -> tuple[np.ndarray, float]:
    """Stretch the base as for a text of max_length tokens.   Source: the "NTK-aware" scaling of bloc97 (2023)."""
    factor, dim = _number(rope, "factor"), rope.rotary_dim
    stretch = factor * max(max_length, rope.max_position) / rope.max_position - (factor - 1)
    exponents = np.arange(0, dim, 2, dtype=np.float64) / dim
    return (rope.theta * stretch ** (dim / (dim - 2))) ** -exponents, 1.0


def _llama3(rope: RopeConfig, max_length: int) -> tuple[np.ndarray, float]:
    """Divide low frequencies by the factor, keep high ones, blend between.   Source: Llama 3.1 model card."""
    inverse, _ = _default(rope, max_length)
    factor, low, high = _number(rope, "factor"), _number(rope, "low_freq_factor"), _number(rope, "high_freq_factor")
    turns = rope.original_length * inverse / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - smooth) * inverse / factor + smooth * inverse, 1.0


def _yarn(rope: RopeConfig, max_length: int) -> tuple[np.ndarray, float]:
    """Blend interpolated and original frequencies by their number of turns.   Source: arXiv:2309.00071, section 3.2."""
    dim, original = rope.rotary_dim, rope.original_length
    factor = _number(rope, "factor", rope.max_position / original)

    def dimension_of(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension_of(_number(rope, "beta_fast", 32)), dimension_of(_number(rope, "beta_slow", 1))
    if rope.params.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low or 0.001), 0.0, 1.0)
    inverse, _ = _default(rope, max_length)

    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    attention = rope.params.get("attention_factor")
    if attention is None:
        scale, scale_all = rope.params.get("mscale"), rope.params.get("mscale_all_dim")
        attention = magnitude(scale) / magnitude(scale_all) if scale and scale_all else magnitude(1.0)
    return ramp * inverse / factor + (1 - ramp) * inverse, float(attention)


def _longrope(rope: RopeConfig, max_length: int) -> tuple[np.ndarray, float]:
    """Divide each frequency by its own factor, long or short by max_length.   Source: arXiv:2402.13753."""
    name = "long_factor" if max_length > rope.original_length else "short_factor"
    factors = np.asarray(rope.params.get(name), dtype=np.float64)
    if factors.shape != (rope.rotary_dim // 2,):
        raise CheckpointError(f"rope {name} has shape {factors.shape}, but {rope.rotary_dim // 2} factors are needed")
    attention = rope.params.get("attention_factor")
    if attention is None:
        ratio = rope.max_position / rope.original_length if rope.max_position else _number(rope, "factor")
        attention = 1.0 if ratio <= 1 else math.sqrt(1 + math.log(ratio) / math.log(rope.original_length))
    return _default(rope, max_length)[0] / factors, float(attention)


_METHODS = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def rope_table(rope: RopeConfig, max_length: int) -> np.ndarray:
    """Return cosines and sines of every position: [max_length, R] float32, computed in float64.

    Raises UnsupportedModelError for a method that is not known here.
    """
    if rope.kind not in _METHODS:
        raise UnsupportedModelError(f"rope scaling {rope.kind!r} is not supported; supported: {', '.join(_METHODS)}")
    inverse, attention = _METHODS[rope.kind](rope, max_length)
    if rope.factors is not None:
        if len(rope.factors) != len(inverse):
            raise CheckpointError(f"{len(rope.factors)} rope factors are given, but {len(inverse)} are needed")
        inverse = inverse / np.asarray(rope.factors, dtype=np.float64)
    angles = np.arange(max_length, dtype=np.float64)[:, None] * inverse
    return (np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * attention).astype(np.float32)


class RopeTables:
    """The rotary embeddings of one model: layers with the same one share its table."""

    def __init__(self, ops: Ops, max_length: int) -> None:
        self.ops = ops
        self.max_length = max_length
        self._ropes: list[RopeConfig] = []
        self._tables: list[Tensor] = []

    def index(self, rope: RopeConfig) -> int:
        """Return a rotary embedding's place among the tables; its table is made on first use."""
        if rope not in self._ropes:
            self._ropes.append(rope)
            self._tables.append(self.ops.from_host(rope_table(rope, self.max_length)))
        return self._ropes.index(rope)

    def angles(self, positions: Tensor) -> list[Tensor]:
        """Return each embedding's cosines and sines of some positions: [T] int64 -> [T, R] each."""
        return [self.ops.take_rows(table, positions) for table in self._tables]
