"""What one step does: the wire structs between scheduler and worker.

A leaf module as far as the worker is concerned: it imports types and messages only.
"""

from __future__ import annotations

import msgspec

from octavo.engine.messages import TokenLogprobs
from octavo.types import SamplingParams

__all__ = ["NewRow", "RowError", "SchedulerOutput", "StepOutput", "StepPlan", "StepTiming"]


class NewRow(msgspec.Struct, array_like=True, gc=False):
    """A request that enters the row table (admission, or resume after preemption).

    tokens: all known ids: prompt, then output so far.
    num_computed_tokens: leading tokens whose KV is already in its blocks (prefix hit).
    prompt_logprobs_from: first prompt position whose logprobs are still to be reported.
    """

    row: int
    tokens: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    params: SamplingParams
    seed: int
    sample_index: int
    stop_ids: list[int]
    bad_words: list[list[int]]
    prompt_logprobs_from: int = 0


class SchedulerOutput(msgspec.Struct, array_like=True, gc=False):
    """One step, as deltas. Parallel lists have one entry per scheduled request, in batch order.

    new: rows to (re)initialise before anything else of this step; a row of `new` is also in `rows`.
    rows: row indices.   num_tokens: tokens to compute for each row in this step (>= 1).
    new_blocks: per scheduled row, per KV group, block ids appended to its table (a new row starts empty).
    samples: whether the row's last scheduled token is its last known one, so a token is sampled.
    freed_rows: rows to forget, before `new` is applied.
    """

    step: int
    new: list[NewRow]
    rows: list[int]
    num_tokens: list[int]
    new_blocks: list[list[list[int]]]
    samples: list[bool]
    freed_rows: list[int]


class RowError(msgspec.Struct, array_like=True, gc=False):
    """One row failed in a step; the others went on."""

    row: int
    message: str


class StepTiming(msgspec.Struct, array_like=True, gc=False):
    """Seconds spent in a step, by stage."""

    forward_s: float = 0.0
    sample_s: float = 0.0


class StepOutput(msgspec.Struct, array_like=True, gc=False):
    """What a step produced. `tokens` and `logprobs` are parallel to `rows`.

    rows: the rows that sampled.   tokens: accepted ids for each (one without speculation).
    logprobs: for each row one entry per token, or None where not asked for.
    prompt_logprobs: row -> newly computed prompt positions in order.
    """

    step: int
    rows: list[int]
    tokens: list[list[int]]
    logprobs: list[list[TokenLogprobs] | None]
    prompt_logprobs: dict[int, list[TokenLogprobs]]
    failed: list[RowError]
    timing: StepTiming


class StepPlan:
    """A step while it is put together. Counts are tokens unless said otherwise.

    num_decodes: requests that compute their last token.   num_hit_blocks: of the waiting request under consideration.
    """

    __slots__ = (
        "budget_left",
        "is_preempting",
        "new",
        "new_blocks",
        "num_decodes",
        "num_hit_blocks",
        "num_prefill_tokens",
        "num_running",
        "num_tokens",
        "rows",
        "samples",
    )

    def __init__(self, budget: int, num_running: int) -> None:
        self.budget_left = budget
        self.num_running = num_running
        self.num_decodes = 0
        self.num_prefill_tokens = 0
        self.num_hit_blocks = 0
        self.is_preempting = False
        self.new: list[NewRow] = []
        self.rows: list[int] = []
        self.num_tokens: list[int] = []
        self.new_blocks: list[list[list[int]]] = []
        self.samples: list[bool] = []

    def add(self, row: int, count: int, blocks: list[list[int]], *, samples: bool, is_decode: bool) -> None:
        """Take a row's tokens into the step."""
        self.rows.append(row)
        self.num_tokens.append(count)
        self.new_blocks.append(blocks)
        self.samples.append(samples)
        self.budget_left -= count
        if is_decode:
            self.num_decodes += 1
        else:
            self.num_prefill_tokens += count

    def finish(self, step: int, freed_rows: list[int]) -> SchedulerOutput:
        """Return the wire form."""
        return SchedulerOutput(step, self.new, self.rows, self.num_tokens, self.new_blocks, self.samples, freed_rows)
