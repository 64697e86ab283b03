"""What users hold: outputs of requests, and what the front end knows of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.config.engine import EngineConfig
from octavo.engine.messages import RequestTiming
from octavo.hf.chat_template import ChatTemplate
from octavo.hf.tokenizer import Tokenizer
from octavo.types import FinishReason, Logprob

__all__ = ["CompletionOutput", "FlatLogprobs", "ModelInfo", "RequestError", "RequestOutput"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo:
    """What the front end needs of a loaded model. Lengths are in tokens."""

    model: str
    max_model_len: int
    vocab_size: int
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    control_texts: frozenset[str]
    eos_token_ids: tuple[int, ...]
    sampling_defaults: Mapping[str, Any]
    config: EngineConfig


@dataclass(slots=True)
class FlatLogprobs:
    """Logprobs of many positions in parallel lists: position i is [start_indices[i], end_indices[i])."""

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    decoded_tokens: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.start_indices)

    def __getitem__(self, position: int) -> dict[int, Logprob]:
        """Return one position as token id -> Logprob."""
        span = range(self.start_indices[position], self.end_indices[position])
        return {self.token_ids[i]: Logprob(self.logprobs[i], self.ranks[i], self.decoded_tokens[i]) for i in span}

    def joined(self, other: FlatLogprobs) -> FlatLogprobs:
        """Return the positions of both, one after the other."""
        shift = len(self.token_ids)
        return FlatLogprobs(
            self.start_indices + [index + shift for index in other.start_indices],
            self.end_indices + [index + shift for index in other.end_indices],
            self.token_ids + other.token_ids,
            self.logprobs + other.logprobs,
            self.ranks + other.ranks,
            self.decoded_tokens + other.decoded_tokens,
        )


Logprobs = list[dict[int, Logprob]] | FlatLogprobs


@dataclass(slots=True)
class CompletionOutput:
    """One sequence. In a delta, text, token_ids and logprobs are what is new since the last one.

    stop_reason: the stop string or stop token id that matched; None for end of sequence and other ends.
    num_discarded_tokens: generated behind a stop string, and not part of the output.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_discarded_tokens: int = 0

    @property
    def finished(self) -> bool:
        """Whether this sequence is complete."""
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestError:
    """Why a request failed.   code: "invalid_request", "capacity", "internal" or "deadline"."""

    code: str
    message: str
    param: str | None = None


@dataclass(slots=True)
class RequestOutput:
    """A request's outputs so far. Exactly one output of each request has `finished` set.

    prompt_logprobs: one entry per prompt token, the first None.   seed: the one used, drawn when none was given.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0
    seed: int | None = None
    timing: RequestTiming = field(default_factory=RequestTiming)
    error: RequestError | None = None
