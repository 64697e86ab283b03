"""ModelRunner: one step on one device, in two calls: forward, then sample.

The blast wall is here: a forward that raises is run again in halves, so that only the row at fault fails.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from octavo.attention.batch import ForwardBatch
from octavo.errors import RequestFailedError
from octavo.models.base import CausalLM
from octavo.ops.op import Ops, Tensor
from octavo.sampling.logprobs import PromptLogprobs
from octavo.sampling.sampler import Sampler
from octavo.scheduler.plan import RowError, SchedulerOutput, StepOutput, StepTiming
from octavo.worker.batch import BatchBuilder
from octavo.worker.request_table import RequestTable

__all__ = ["Forwarded", "ModelRunner"]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that went through the model together.   rows, num_tokens, samples: [B].   hidden: [T, D]."""

    rows: np.ndarray
    num_tokens: np.ndarray
    samples: np.ndarray
    batch: ForwardBatch
    hidden: Tensor


@dataclass(slots=True)
class Forwarded:
    """A step between forward and sampling."""

    step: int
    parts: list[Part] = field(default_factory=list)
    failed: list[RowError] = field(default_factory=list)
    forward_s: float = 0.0


class ModelRunner:
    """Composes table, batch builder, model and sampler."""

    def __init__(
        self, *, ops: Ops, model: CausalLM, table: RequestTable, builder: BatchBuilder, sampler: Sampler
    ) -> None:
        self.ops = ops
        self.model = model
        self.table = table
        self.builder = builder
        self.sampler = sampler
        self.prompt_logprobs = PromptLogprobs(
            ops, logprobs_mode=sampler.logprobs_mode, table=table, vocab_size=sampler.vocab_size
        )

    def forward(self, plan: SchedulerOutput) -> Forwarded:
        """Apply the plan's deltas and run the model over its tokens."""
        begin = time.perf_counter()
        for row in plan.freed_rows:
            self.sampler.remove(row)
            self.prompt_logprobs.remove(row)
        self.table.apply(plan)
        for new in plan.new:
            self.sampler.add(new)
            self.prompt_logprobs.add(new)
        forwarded = Forwarded(plan.step)
        rows, num_tokens = np.array(plan.rows, np.int64), np.array(plan.num_tokens, np.int64)
        self._run(rows, num_tokens, np.array(plan.samples, bool), forwarded)
        forwarded.forward_s = time.perf_counter() - begin
        return forwarded

    def _run(self, rows: np.ndarray, num_tokens: np.ndarray, samples: np.ndarray, into: Forwarded) -> None:
        """Forward rows together; where that raises, in halves, down to the row at fault."""
        try:
            batch = self.builder.build(self.table, rows, num_tokens, samples)
            into.parts.append(Part(rows, num_tokens, samples, batch, self.model.forward(batch)))
        except Exception as error:
            if len(rows) == 1:
                into.failed.append(RowError(int(rows[0]), f"the forward pass failed: {type(error).__name__}: {error}"))
                return
            half = len(rows) // 2
            self._run(rows[:half], num_tokens[:half], samples[:half], into)
            self._run(rows[half:], num_tokens[half:], samples[half:], into)

    def sample(self, forwarded: Forwarded) -> StepOutput:
        """Sample one token for each row that reached its last known one."""
        begin = time.perf_counter()
        output = StepOutput(forwarded.step, [], [], [], {}, forwarded.failed, StepTiming(forward_s=forwarded.forward_s))
        for part in forwarded.parts:
            self._prompt_logprobs(part, output)
            self.table.computed[part.rows] += part.num_tokens
            sampling = part.rows[part.samples].tolist()
            if sampling:
                logits = self.model.logits(self.ops.take_rows(part.hidden, part.batch.logits_index))
                self._draw(sampling, logits, output)
        output.timing.sample_s = time.perf_counter() - begin
        return output

    def _draw(self, rows: list[int], logits: Tensor, output: StepOutput) -> None:
        sampled = self.sampler.sample(logits, rows)
        failed = {error.row for error in output.failed}
        output.failed.extend(error for error in sampled.failed if error.row not in failed)
        failed.update(error.row for error in sampled.failed)
        for row, token, logprobs in zip(rows, sampled.tokens, sampled.logprobs, strict=True):
            if row not in failed:
                self.table.append(row, token)
                output.rows.append(row)
                output.tokens.append([token])
                output.logprobs.append(None if logprobs is None else [logprobs])

    def _prompt_logprobs(self, part: Part, output: StepOutput) -> None:
        """Collect prompt logprobs of the chunk's positions, in slices of rows."""
        start = 0
        for row, count in zip(part.rows.tolist(), part.num_tokens.tolist(), strict=True):
            if self.prompt_logprobs.wants(row):
                begin = int(self.table.computed[row])
                hidden = self.ops.take_rows(part.hidden, self.ops.from_host(np.arange(start, start + count)))
                try:
                    found = self.prompt_logprobs.compute(row, begin, count, hidden, self.model.logits)
                except RequestFailedError as error:
                    output.failed.append(RowError(row, str(error)))
                    found = []
                if found:
                    output.prompt_logprobs[row] = found
            start += count
