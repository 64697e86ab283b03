"""Every "auto" ends here: a pure function of configuration, checkpoint facts and platform facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from octavo.config.engine import EngineConfig
from octavo.errors import ConfigError

__all__ = ["ModelLimits", "PlatformFacts", "Resolved", "resolve"]

DEFAULT_BATCHED_TOKENS = 2048
Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]
KVDtype: TypeAlias = Literal["auto", "f32", "bf16", "f16"]
KV_DTYPES: Mapping[str, KVDtype] = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelLimits:
    """What a checkpoint says of itself.   max_position: longest context it was made for, in tokens.

    default_position: the context used unless more is asked for (a model that can stretch its first training length).
    """

    architecture: str
    max_position: int
    default_position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlatformFacts:
    """What the machine says of itself."""

    device: str
    default_dtype: Dtype
    threads: int
    threads_reason: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """A configuration without "auto", and one line for each choice made.

    max_model_len may still be lowered by the memory planner when the user did not fix it.
    """

    config: EngineConfig
    reasons: tuple[str, ...]


def resolve(config: EngineConfig, model: ModelLimits, platform: PlatformFacts) -> Resolved:
    """Fill every field that was left open.

    Raises ConfigError for combinations that cannot work.
    """
    reasons = []
    dtype = config.model.dtype
    if dtype == "auto":
        dtype = platform.default_dtype
        reasons.append(f"dtype={dtype}: what {platform.device} computes fastest and exactly")
    kv_dtype = config.cache.kv_cache_dtype
    if kv_dtype == "auto":
        kv_dtype = KV_DTYPES[dtype]
        reasons.append(f"kv_cache_dtype={kv_dtype}: the compute type")
    max_model_len = config.model.max_model_len
    if max_model_len is None:
        max_model_len = model.default_position
        reasons.append(f"max_model_len={max_model_len}: the context {model.architecture} was made for")
    elif max_model_len > model.max_position:
        raise ConfigError(
            f"max_model_len={max_model_len} is beyond the {model.max_position} tokens this model was made for",
            field="max_model_len",
        )
    batched = config.scheduler.max_num_batched_tokens
    if batched is None:
        batched = DEFAULT_BATCHED_TOKENS
        if not config.scheduler.enable_chunked_prefill:
            batched = max(batched, max_model_len)
        reasons.append(f"max_num_batched_tokens={batched}")
    if batched < config.scheduler.max_num_seqs:
        if config.scheduler.max_num_batched_tokens is not None:
            raise ConfigError(
                f"max_num_batched_tokens={batched} is less than max_num_seqs={config.scheduler.max_num_seqs}: "
                "each running request needs a token per step; raise the first or lower the second",
                field="max_num_batched_tokens",
            )
        batched = config.scheduler.max_num_seqs
    if not config.scheduler.enable_chunked_prefill and batched < max_model_len:
        raise ConfigError(
            f"without chunked prefill a prompt of max_model_len={max_model_len} tokens must fit one step, "
            f"but max_num_batched_tokens={batched}; raise it, lower max_model_len or leave chunked prefill on",
            field="max_num_batched_tokens",
        )
    threads = config.parallel.threads
    if threads is None:
        threads = platform.threads
        reasons.append(f"threads={threads}: {platform.threads_reason}")
    full = replace(
        config,
        model=replace(config.model, dtype=dtype, max_model_len=max_model_len),
        cache=replace(config.cache, kv_cache_dtype=kv_dtype),
        scheduler=replace(config.scheduler, max_num_batched_tokens=batched),
        parallel=replace(config.parallel, threads=threads),
    )
    return Resolved(full, tuple(reasons))
