"""Request: one sequence as the scheduler sees it, and its legal states."""

from __future__ import annotations

import enum

from octavo.engine.messages import EngineRequest, RequestTiming
from octavo.kvcache.manager import RequestBlocks

__all__ = ["Request", "RequestStatus"]


class RequestStatus(enum.Enum):
    """Where a request is. WAITING -> RUNNING <-> PREEMPTED, and any of them -> FINISHED."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Request:
    """A request's progress. Owned by one scheduler; counts are tokens.

    tokens: prompt and output ids known here.   num_computed: leading tokens whose KV is valid.
    num_inflight: scheduled, result not yet seen.   num_expected: sampled by a step in flight, value not known yet.
    order: place in the queue; smaller is earlier.   row: index in the worker's table while running, else -1.
    max_length: tokens that prompt and output may have together.
    progress_mark: length at which it was last resumed: until it grows, it is not preempted again.
    """

    __slots__ = (
        "blocked_on",
        "blocks",
        "max_length",
        "num_cached",
        "num_computed",
        "num_expected",
        "num_inflight",
        "num_prompt",
        "num_steps_inflight",
        "order",
        "progress_mark",
        "prompt_logprobs_from",
        "row",
        "status",
        "timing",
        "tokens",
        "wire",
    )

    def __init__(
        self, wire: EngineRequest, order: tuple[float, int], blocks: RequestBlocks, max_model_len: int
    ) -> None:
        self.wire = wire
        self.order = order
        self.blocks = blocks
        self.tokens = list(wire.prompt)
        self.num_prompt = len(wire.prompt)
        self.max_length = min(self.num_prompt + wire.max_new_tokens, max_model_len)
        self.num_computed = 0
        self.num_inflight = 0
        self.num_expected = 0
        self.num_steps_inflight = 0
        self.num_cached = 0
        self.row = -1
        self.status = RequestStatus.WAITING
        self.blocked_on = ""
        self.progress_mark = -1
        self.prompt_logprobs_from = max(1, wire.params.prompt_logprob_start)
        self.timing = RequestTiming(arrival=wire.arrival)

    @property
    def num_pending(self) -> int:
        """Tokens that could be computed now: the only scheduling rule."""
        return len(self.tokens) + self.num_expected - self.num_computed - self.num_inflight

    @property
    def is_decoding(self) -> bool:
        """Whether all but its last token are computed or on their way."""
        done = self.num_computed + self.num_inflight
        return done > 0 and len(self.tokens) + self.num_expected - done == 1

    @property
    def reads_cache(self) -> bool:
        """Whether it may begin with cached blocks: prompt logprobs need every position computed."""
        skip = self.wire.params.skip_reading_prefix_cache
        return not (self.wire.params.wants_prompt_logprobs if skip is None else skip)
