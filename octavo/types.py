"""What crosses every boundary: request parameters and the values they are made of.

Frozen msgspec structs, safe on a wire. Validation happens once, on construction.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

__all__ = [
    "BeamSearchParams",
    "FinishReason",
    "Logprob",
    "OutputKind",
    "RepetitionDetection",
    "SamplingParams",
]


class FinishReason(enum.Enum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


class OutputKind(enum.Enum):
    """What each streamed output carries: all so far, only what is new, or one final output."""

    CUMULATIVE = "cumulative"
    DELTA = "delta"
    FINAL_ONLY = "final_only"


class RepetitionDetection(msgspec.Struct, frozen=True, kw_only=True):
    """Stop when the last tokens repeat one pattern: pattern sizes in tokens, count in repeats."""

    max_pattern_size: int
    min_pattern_size: int = 1
    min_count: int = 2


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one request is sampled. Field meanings: docs/sampling.md."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: tuple[tuple[int, ...], ...] | None = None
    prompt_logprob_start: int = 0
    logprob_token_ids: tuple[int, ...] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: OutputKind = OutputKind.CUMULATIVE
    stream_interval: int = 1
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    extra_args: dict[str, Any] | None = None
    skip_reading_prefix_cache: bool | None = None
    repetition_detection: RepetitionDetection | None = None


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True):
    """How one prompt is beam-searched."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True


class Logprob(msgspec.Struct, frozen=True):
    """One token's log probability at one position; rank 1 is the most likely token."""

    logprob: float
    rank: int
    decoded_token: str | None = None
