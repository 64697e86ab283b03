"""Scheduler: which tokens of which requests run in a step. No phases: a request has pending tokens, or it has not."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from octavo.config.sections import SchedulerConfig
from octavo.engine.messages import EngineOutput, EngineRequest, TokenLogprobs
from octavo.errors import CapacityError, InvalidRequestError
from octavo.kvcache.manager import KVCacheManager
from octavo.scheduler.cost import StepCost
from octavo.scheduler.gate import Gate, make_gates
from octavo.scheduler.plan import NewRow, SchedulerOutput, StepOutput, StepPlan
from octavo.scheduler.queue import RequestQueue, order_key
from octavo.scheduler.request import Request, RequestStatus
from octavo.scheduler.stop import stop_of
from octavo.types import FinishReason

__all__ = ["Scheduler", "SchedulerStats"]


class SchedulerStats(msgspec.Struct, frozen=True, kw_only=True):
    """A moment's state, and totals since the start. prefix_* count tokens."""

    running: int
    waiting: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_used: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    blocked: dict[str, int]


class Scheduler:
    """Owned by one thread. Every request that is added gets exactly one output with a finish reason."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCacheManager,
        *,
        max_model_len: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert config.max_num_batched_tokens is not None, "the token budget is not resolved"
        self.config = config
        self.budget = config.max_num_batched_tokens
        self.cache = cache
        self.max_model_len = max_model_len
        self.clock = clock
        self._is_by_priority = config.policy == "priority"
        self.waiting = RequestQueue()
        self.running: list[Request] = []
        self._requests: dict[str, Request] = {}
        self._rows: dict[int, Request] = {}
        self._free_rows = list(range(config.max_num_seqs))
        self._freed_rows: list[int] = []
        self._deadlines: set[str] = set()
        self._sequence = itertools.count()
        self._step = itertools.count()
        self._cost = StepCost()
        self._gates = make_gates(config, cache, self._cost)
        self._decode_gates = [gate for gate in self._gates if not gate.is_prefill_only]
        self._composition: dict[int, tuple[int, int]] = {}  # step in flight -> decodes, prefill tokens
        self._totals = {"queries": 0, "hits": 0, "preemptions": 0}

    # Requests come and go

    def add(self, wire: EngineRequest) -> None:
        """Queue a request.

        Raises CapacityError when the queue is full, InvalidRequestError when the KV cache could never hold it.
        """
        if len(self.waiting) >= self.config.max_num_queued_seqs:
            raise CapacityError(f"{len(self.waiting)} requests are waiting, which is the limit; try again later")
        if wire.id in self._requests:
            raise InvalidRequestError(f"request id {wire.id!r} is in use; choose another", param="request_id")
        length = min(len(wire.prompt) + wire.max_new_tokens, self.max_model_len)
        need = self.cache.peak_blocks(length, self.budget)
        if need > self.cache.pool.num_total:
            raise InvalidRequestError(
                f"a request of {length} tokens needs {need} KV blocks, but there are {self.cache.pool.num_total}; "
                "shorten the prompt, lower max_tokens or give the KV cache more memory",
                param="max_tokens",
            )
        policy, ageing_s = self.config.policy, self.config.priority_ageing_s
        order = order_key(wire, next(self._sequence), policy=policy, ageing_s=ageing_s)
        extra = (wire.cache_salt,) if wire.cache_salt else ()
        request = Request(wire, order, self.cache.open(extra), self.max_model_len)
        self._requests[wire.id] = request
        if wire.deadline is not None:
            self._deadlines.add(wire.id)
        self.waiting.add(request)

    def abort(self, ids: Iterable[str]) -> list[EngineOutput]:
        """End these requests in whatever state they are; unknown ids are ignored. Returns their last outputs."""
        return self._end(ids, FinishReason.ABORT, None)

    def fail(self, ids: Iterable[str], message: str) -> list[EngineOutput]:
        """End these requests with an error. Returns their last outputs."""
        return self._end(ids, FinishReason.ERROR, message)

    def expire(self, now: float) -> list[EngineOutput]:
        """End the requests whose deadline (seconds of the scheduler's clock) is past. Returns their last outputs."""
        late = [i for i in self._deadlines if (self._requests[i].wire.deadline or 0.0) <= now]
        return self._end(late, FinishReason.ABORT, "the request's deadline passed before it was done")

    def _end(self, ids: Iterable[str], finish: FinishReason, error: str | None) -> list[EngineOutput]:
        known = [self._requests[i] for i in dict.fromkeys(ids) if i in self._requests]
        return [self._finish(request, finish, error=error) for request in known]

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._requests)

    @property
    def num_running(self) -> int:
        """Requests that hold a row."""
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self.waiting)

    def stats(self) -> SchedulerStats:
        """Return counts of now, and totals."""
        pool = self.cache.pool
        blocked: dict[str, int] = {}
        for request in self.waiting:
            if request.blocked_on:
                blocked[request.blocked_on] = blocked.get(request.blocked_on, 0) + 1
        return SchedulerStats(
            running=len(self.running),
            waiting=len(self.waiting),
            blocks_total=pool.num_total,
            blocks_free=pool.num_free,
            blocks_cached=pool.num_cached,
            blocks_used=pool.num_total - pool.num_free,
            prefix_queries=self._totals["queries"],
            prefix_hits=self._totals["hits"],
            preemptions=self._totals["preemptions"],
            blocked=blocked,
        )

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; refused (False) while any request holds blocks."""
        return self.cache.pool.reset()

    # A step

    def schedule(self) -> SchedulerOutput | None:
        """Choose the tokens of the next step; None when nothing can be computed now."""
        plan = StepPlan(self.budget, len(self.running))
        others = []
        for request in tuple(self.running):
            done = request.num_computed + request.num_inflight
            if len(request.tokens) + request.num_expected - done == 1 and done > 0:
                # one token each: first, as many streams wait for them; most have room in their last block
                if done < request.blocks.capacity:
                    self._extend(request, plan)
                else:
                    self._continue(request, plan, self._decode_gates)
            else:
                others.append(request)
        for request in others:
            self._continue(request, plan, self._gates)
        if not plan.is_preempting:
            for request in self.waiting:
                if plan.budget_left <= 0 or not self._free_rows:
                    break
                if not self._admit(request, plan):
                    break
        if not plan.rows:
            return None
        step = next(self._step)
        self._composition[step] = (plan.num_decodes, plan.num_prefill_tokens)
        freed, self._freed_rows = self._freed_rows, []
        return plan.finish(step, freed)

    def _limit(self, request: Request, plan: StepPlan, gates: Sequence[Gate]) -> tuple[int, Gate | None]:
        """Ask the gates how many of the request's pending tokens to compute: the count, and who holds it back at 0."""
        count = request.num_pending
        if count <= 0:
            return 0, None
        for gate in gates:
            count = gate.limit(request, count, plan)
            if count <= 0:
                request.blocked_on = gate.name
                return 0, gate
        return count, None

    def _continue(self, request: Request, plan: StepPlan, gates: Sequence[Gate]) -> None:
        """Schedule a running request's next tokens, preempting others if memory is short."""
        if request.status is not RequestStatus.RUNNING:
            return  # preempted in this step
        count, _ = self._limit(request, plan, gates)
        if count <= 0:
            return
        length = request.num_computed + request.num_inflight + count
        added = self.cache.allocate(request.blocks, length)
        while added is None:
            victim = self._victim(request, plan)
            if victim is None:
                return  # blocks come back when a step in flight returns
            self._preempt(victim)
            plan.is_preempting = True
            if victim is request:
                return
            added = self.cache.allocate(request.blocks, length)
        self._commit(request, count, added, plan)

    def _extend(self, request: Request, plan: StepPlan) -> None:
        """Do what _continue does for one token that has its place already."""
        if request.status is not RequestStatus.RUNNING:
            return
        for gate in self._decode_gates:
            if gate.limit(request, 1, plan) <= 0:
                request.blocked_on = gate.name
                return
        request.num_inflight += 1
        request.num_steps_inflight += 1
        request.num_expected += 1
        plan.add(request.row, 1, self.cache.nothing_new, samples=True, is_decode=True)

    def _victim(self, request: Request, plan: StepPlan) -> Request | None:
        """Return the running request that loses least by giving its blocks up, `request` itself included.

        Not one of this step or of one in flight, none of higher priority, and none that made no progress since it
        was last resumed, unless nothing else could ever move.
        """
        scheduled = set(plan.rows)
        idle = [r for r in self.running if r.row not in scheduled and r.num_steps_inflight == 0]
        equal = [r for r in idle if r.wire.priority >= request.wire.priority] if self._is_by_priority else idle
        moved = [r for r in equal if len(r.tokens) > r.progress_mark]
        stuck = not plan.rows and not any(r.num_steps_inflight for r in self.running)
        candidates = moved or (equal if stuck else [])
        if len(self.running) == 1 and not candidates:
            return None
        return min(candidates, key=self._loss, default=None)

    def _loss(self, request: Request) -> tuple[float, int, float, int]:
        importance = -request.wire.priority if self._is_by_priority else 0
        recompute = self.cache.num_recompute(request.blocks, request.num_computed)
        late, sequence = request.order
        return (importance, recompute, -late, -sequence)

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks and row; it waits in its old place, and begins from what is still cached."""
        self._totals["preemptions"] += 1
        request.timing.num_preemptions += 1
        self.running.remove(request)
        self._release(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed = 0
        self.waiting.add(request)

    def _admit(self, request: Request, plan: StepPlan) -> bool:
        """Try to start a waiting request. Returns whether those behind it may be tried."""
        hits = self.cache.match(request.blocks, request.tokens) if request.reads_cache else []
        hits = hits or [[] for _ in self.cache.kinds]
        plan.num_hit_blocks = len(hits[0])
        request.num_computed = plan.num_hit_blocks * self.cache.block_size
        count, gate = self._limit(request, plan, self._decode_gates if request.is_decoding else self._gates)
        if count <= 0:
            request.num_computed = 0
            return gate is None or not gate.is_shared
        # all its known tokens must fit, and each running request its next block, or it would be preempted at once
        length = len(request.tokens) + 1
        reserve = min(len(self.running), self.cache.pool.num_total // 8)
        if self.cache.num_admission(length, hits, self.budget) + reserve > self.cache.pool.num_free:
            if self.running or plan.rows:
                request.num_computed, request.blocked_on = 0, "memory"
                return False
        self.cache.adopt(request.blocks, hits)
        added = self.cache.allocate(request.blocks, request.num_computed + count)
        if added is None:
            self.cache.free(request.blocks)
            request.num_computed, request.blocked_on = 0, "memory"
            return False
        self._start(request, plan)
        for gate in self._gates:
            gate.admit(request)
        tables = [list(table) for table in request.blocks.tables]
        self._commit(request, count, tables, plan)
        return True

    def _start(self, request: Request, plan: StepPlan) -> None:
        self.waiting.remove(request)
        if request.status is RequestStatus.WAITING:
            request.num_cached = request.num_computed
            request.timing.scheduled = self.clock()
            if request.reads_cache and self.cache.is_caching:
                self._totals["queries"] += len(request.tokens)
                self._totals["hits"] += request.num_computed
        else:
            request.progress_mark = len(request.tokens)
        request.status = RequestStatus.RUNNING
        request.row = heapq.heappop(self._free_rows)
        self._rows[request.row] = request
        self.running.append(request)
        wire = request.wire
        stop_ids = [] if wire.params.ignore_eos else list(wire.eos_token_ids)
        plan.new.append(
            NewRow(
                request.row,
                list(request.tokens),
                request.num_prompt,
                request.num_computed,
                wire.params,
                wire.seed,
                wire.sample_index,
                stop_ids + [i for i in wire.params.stop_token_ids if i not in stop_ids],
                wire.bad_words,
                request.prompt_logprobs_from,
            )
        )

    def _commit(self, request: Request, count: int, added: list[list[int]], plan: StepPlan) -> None:
        request.blocked_on = ""
        pending = request.num_pending
        is_decode = pending == 1 and request.num_computed + request.num_inflight > 0
        request.num_inflight += count
        request.num_steps_inflight += 1
        request.num_expected += count == pending
        plan.add(request.row, count, added, samples=count == pending, is_decode=is_decode)

    # Results

    def update(self, plan: SchedulerOutput, output: StepOutput, *, step_s: float | None = None) -> list[EngineOutput]:
        """Take a step's results in, in the order of the steps.   step_s: seconds it took.

        Returns an output for each request that got tokens, prompt logprobs or its end.
        """
        now = self.clock()
        composition = self._composition.pop(plan.step)
        if step_s is not None:
            self._cost.observe(step_s, *composition)
        tokens = dict(zip(output.rows, output.tokens, strict=True))
        logprobs = dict(zip(output.rows, output.logprobs, strict=True))
        failed = {error.row: error.message for error in output.failed}
        outputs = []
        for row, count, samples in zip(plan.rows, plan.num_tokens, plan.samples, strict=True):
            request = self._rows[row]
            request.num_inflight -= count
            request.num_steps_inflight -= 1
            if samples:
                request.num_expected -= 1
            if request.status is RequestStatus.FINISHED:
                if request.num_steps_inflight == 0:
                    self._release(request)
                continue
            if row in failed:
                outputs.append(self._finish(request, FinishReason.ERROR, error=failed[row]))
                continue
            request.num_computed += count
            self.cache.commit(request.blocks, request.tokens, request.num_computed)
            prompt_logprobs = output.prompt_logprobs.get(row)
            request.prompt_logprobs_from += len(prompt_logprobs or ())
            if samples:
                made = self._accept(request, tokens[row], logprobs[row], now)
            elif prompt_logprobs:
                made = EngineOutput(request.wire.id)
            else:
                continue
            made.prompt_logprobs = prompt_logprobs
            outputs.append(made)
        return outputs

    def _accept(
        self, request: Request, tokens: list[int], logprobs: list[TokenLogprobs] | None, now: float
    ) -> EngineOutput:
        """Append sampled tokens up to the first that ends the request."""
        if not request.timing.first_token:
            request.timing.first_token = now
        request.timing.last_token = now
        accepted: list[int] = []
        for token in tokens:
            request.tokens.append(token)
            accepted.append(token)
            stop = stop_of(request, self.max_model_len)
            if stop is not None:
                finish, reason = stop
                return self._finish(request, finish, tokens=accepted, logprobs=logprobs, stop_reason=reason)
        return EngineOutput(
            request.wire.id, accepted, logprobs=logprobs, num_cached_tokens=request.num_cached, timing=request.timing
        )

    def _finish(
        self,
        request: Request,
        finish: FinishReason,
        *,
        tokens: list[int] | None = None,
        logprobs: list[TokenLogprobs] | None = None,
        stop_reason: int | None = None,
        error: str | None = None,
    ) -> EngineOutput:
        """End a request: its last output. Blocks and row are given back when no step in flight names them."""
        was_running = request.status is RequestStatus.RUNNING
        request.status = RequestStatus.FINISHED
        del self._requests[request.wire.id]
        self._deadlines.discard(request.wire.id)
        if was_running:
            self.running.remove(request)
            if finish is FinishReason.ERROR:
                self.cache.taint(request.blocks)
            if request.num_steps_inflight == 0:
                self._release(request)
        else:
            self.waiting.remove(request)
        return EngineOutput(
            request.wire.id,
            tokens or [],
            finish,
            stop_reason,
            logprobs,
            num_cached_tokens=request.num_cached,
            timing=request.timing,
            error=error,
        )

    def _release(self, request: Request) -> None:
        """Give row and blocks back."""
        for gate in self._gates:
            gate.release(request)
        self.cache.free(request.blocks)
        del self._rows[request.row]
        self._freed_rows.append(request.row)
        heapq.heappush(self._free_rows, request.row)
        request.row = -1
