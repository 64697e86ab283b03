"""Wire structs between front end and engine core.

A leaf module: it imports types only, so that scheduler and worker may use it too.
"""

from __future__ import annotations

import msgspec

from octavo.types import FinishReason, SamplingParams

__all__ = ["Abort", "EngineOutput", "EngineRequest", "RequestTiming", "TokenLogprobs"]


class EngineRequest(msgspec.Struct, tag=True, array_like=True, omit_defaults=True, gc=False):
    """One sequence to generate: validated, tokenised, ready for the scheduler.

    seed: always set (drawn by the front end when the user gave none).
    sample_index: which of the request's n samples this is; part of the sampling key.
    arrival: time.monotonic() seconds at the door.  deadline: the same clock, or None.
    bad_words: token id sequences whose last token is masked after the others.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    arrival: float
    seed: int = 0
    sample_index: int = 0
    max_new_tokens: int = 16
    eos_token_ids: list[int] = []
    bad_words: list[list[int]] = []
    priority: int = 0
    cache_salt: str = ""
    deadline: float | None = None


class Abort(msgspec.Struct, tag=True, array_like=True):
    """Stop these requests, in whatever state they are."""

    ids: list[str]


class TokenLogprobs(msgspec.Struct, array_like=True, gc=False):
    """Log probabilities at one position. Entry 0 is the sampled (or prompt) token, then the others
    by falling probability; parallel lists.  ranks: 1 + number of tokens with a greater value.
    """

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]


class RequestTiming(msgspec.Struct, array_like=True, gc=False):
    """When things happened to a request: time.monotonic() seconds, 0.0 while it has not happened."""

    arrival: float = 0.0
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    num_preemptions: int = 0


class EngineOutput(msgspec.Struct, tag=True, array_like=True, omit_defaults=True, gc=False):
    """What one step brought for one request.

    tokens: newly accepted ids, the end-of-sequence or stop token included.
    stop_reason: the stop token id for a stop_token_ids match; None for end of sequence.
    logprobs: one per token of `tokens` when asked for.
    prompt_logprobs: newly computed prompt positions, in order; position 0 has none and is not sent.
    error: set with FinishReason.ERROR: what to tell the user.
    """

    id: str
    tokens: list[int] = []
    finish: FinishReason | None = None
    stop_reason: int | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    num_cached_tokens: int = 0
    timing: RequestTiming | None = None
    error: str | None = None
