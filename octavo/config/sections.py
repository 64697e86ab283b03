"""Every configuration field, declared once: default, help and bounds are its one line.

Sections are frozen. A field's CLI flag is its name with dashes; docs/config.md is generated from here.
"auto" (None) values are resolved in engine/resolve.py and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.config.field import Section, field_

__all__ = [
    "CacheConfig",
    "ModelConfig",
    "ObservabilityConfig",
    "ParallelConfig",
    "SchedulerConfig",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig(Section):
    """Which model, and how it is loaded."""

    model: str | None = field_(None, "Model folder, GGUF file or hub name; auto is the installed demo model.")
    tokenizer: str | None = field_(None, "Folder or file to take the tokenizer from instead of the model's own.")
    revision: str | None = field_(None, "Branch, tag or commit of a hub model.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = field_("auto", "Compute type; auto is float32 on a CPU.")
    max_model_len: int | None = field_(
        None,
        "Longest prompt plus output, in tokens; auto is what the model allows, or what fits memory.",
        ge=1,
        unit="tokens",
    )
    chat_template: str | None = field_(None, "File with a Jinja chat template to use instead of the model's own.")
    generation_config: Literal["model", "none"] = field_(
        "model", "Where sampling defaults come from: the model's generation_config.json, or none."
    )
    logprobs_mode: Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"] = field_(
        "raw_logprobs", "What logprobs are computed from: before or after processors and temperature."
    )
    max_logprobs: int = field_(20, "Most logprobs per token a request may ask for; -1 is the whole vocabulary.", ge=-1)
    logits_processors: tuple[str, ...] = field_((), "Custom logits processors, module:Class each.")
    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = field_(
        "auto", "How weights are read; dummy makes random ones."
    )
    enable_trace_replay: bool = field_(False, "Let a request force its output tokens (benchmark replay).")


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig(Section):
    """The paged KV cache."""

    block_size: int = field_(16, "Tokens per KV block.", ge=1, le=1024, unit="tokens")
    kv_cache_dtype: Literal["auto", "f32", "bf16", "f16"] = field_(
        "auto", "Type of cached keys and values; auto is the compute type."
    )
    kv_cache_bytes: int | None = field_(
        None, "Memory for the KV cache; auto is memory_fraction of what is free.", ge=1, unit="bytes"
    )
    memory_fraction: float = field_(
        0.5, "Share of the free memory, after the weights, that the KV cache may grow to.", ge=0.01, le=0.95
    )
    enable_prefix_caching: bool = field_(True, "Reuse the KV of prefixes seen before.")


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig(Section):
    """What runs in a step."""

    max_num_seqs: int = field_(256, "Most requests in one step.", ge=1, le=4096, unit="count")
    max_num_batched_tokens: int | None = field_(
        None, "Most tokens computed in one step; auto is 2048.", ge=1, unit="tokens"
    )
    max_num_queued_seqs: int = field_(100_000, "Most requests waiting; more are refused.", ge=1, unit="count")
    enable_chunked_prefill: bool = field_(True, "Split long prompts over steps, mixed with decodes.")
    long_prefill_threshold: int = field_(
        0,
        "Most prompt tokens of one request per step while others run; 0: the step-cost gate decides.",
        ge=0,
        unit="tokens",
    )
    max_step_stretch: float = field_(
        3.0,
        "How many times longer than a pure decode step a step with prefill may take while streams run; 0 is unlimited.",
        ge=0,
    )
    policy: Literal["fcfs", "priority"] = field_("fcfs", "Order of waiting requests.")
    priority_ageing_s: float = field_(10.0, "Waiting this long, in seconds, is worth one priority level.", ge=0.001)
    prefix_wait: bool = field_(
        True, "Let a request wait for a prefix that another is computing, instead of computing it again."
    )
    depth: int = field_(1, "Steps in flight: 1 is synchronous, 2 overlaps scheduling with compute.", ge=1, le=8)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig(Section):
    """Threads and devices."""

    threads: int | None = field_(
        None, "Compute threads; auto follows cgroup quota, affinity and physical cores.", ge=1, le=1024
    )
    op: tuple[str, ...] = field_(
        (), "Use another implementation of an op, name=backend each (a wrong kernel is bisected so)."
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservabilityConfig(Section):
    """Logs."""

    log_level: Literal["debug", "info", "warning", "error"] = field_("warning", "Least severe log message shown.")
