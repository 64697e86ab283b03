"""A deterministic simulator of the engine without a model.

The worker double keeps, for every KV slot, what identifies the text up to the token written there. For each query it
reads every position the query sees, as a kernel would, and asserts that it finds exactly the request's own prefix: a
stale, shared, overwritten or expired block shows at once. The next token is a hash of the prefix, so the output of a
request depends on its prompt alone and is known beforehand.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.config.sections import SchedulerConfig
from octavo.engine.messages import EngineOutput, EngineRequest
from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.spec import KVCacheSpec, KVGroup
from octavo.scheduler.plan import RowError, SchedulerOutput, StepOutput, StepTiming
from octavo.scheduler.scheduler import Scheduler
from octavo.types import FinishReason, SamplingParams

__all__ = ["EOS", "VOCAB", "Scenario", "Simulation", "Worker", "continuation", "make_groups"]

VOCAB = 50
EOS = 0
Prefix = bytes


def chain(prefix: Prefix, token: int) -> Prefix:
    """Return what identifies a text extended by a token."""
    return hashlib.blake2b(prefix + token.to_bytes(4, "little"), digest_size=8).digest()


def next_token(prefix: Prefix) -> int:
    """Return the token that the "model" puts behind a text; one in VOCAB ends it."""
    return int.from_bytes(prefix[:4], "little") % VOCAB


def continuation(prompt: Sequence[int], max_tokens: int) -> list[int]:
    """Return what a request must generate, computed directly."""
    prefix = b""
    for token in prompt:
        prefix = chain(prefix, token)
    made: list[int] = []
    while len(made) < max_tokens:
        made.append(next_token(prefix))
        if made[-1] == EOS:
            break
        prefix = chain(prefix, made[-1])
    return made


def make_groups(windows: Sequence[int | None], block_size: int) -> list[KVGroup]:
    """Return one group per window; None is full attention."""
    return [
        KVGroup(
            KVCacheSpec(
                kind="sliding_window" if window else "full",
                block_size=block_size,
                num_kv_heads=1,
                head_dim=1,
                dtype="f32",
                window=window,
            ),
            (index,),
        )
        for index, window in enumerate(windows)
    ]


class Worker:
    """Executes plans in order, verifying every read."""

    def __init__(self, groups: Sequence[KVGroup], rng: random.Random, failure_rate: float) -> None:
        self.groups = groups
        self.rng = rng
        self.failure_rate = failure_rate
        self.kv: list[dict[int, Prefix]] = [{} for _ in groups]
        self.tokens: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.tables: dict[int, list[list[int]]] = {}
        self.failed: set[int] = set()  # rows whose request failed in a step that later ones in flight do not know of

    def execute(self, plan: SchedulerOutput) -> StepOutput:
        """Run one step."""
        for row in plan.freed_rows:
            self.tokens.pop(row, None)
            self.failed.discard(row)
        assert len(set(plan.rows)) == len(plan.rows), "a row is scheduled twice"
        for new in plan.new:
            assert new.row not in self.tokens, f"row {new.row} is handed out while it is in use"
            self.tokens[new.row] = list(new.tokens)
            self.computed[new.row] = new.num_computed_tokens
            self.tables[new.row] = [[] for _ in self.groups]
        output = StepOutput(plan.step, [], [], [], {}, [], StepTiming())
        steps = zip(plan.rows, plan.num_tokens, plan.new_blocks, plan.samples, strict=True)
        for row, count, blocks, samples in steps:
            for table, ids in zip(self.tables[row], blocks, strict=True):
                table.extend(ids)
            if row in self.failed:
                output.failed.append(RowError(row, "failed before"))
                continue
            prefix = self._forward(row, count)
            assert samples == (self.computed[row] == len(self.tokens[row]))
            if self.rng.random() < self.failure_rate:
                output.failed.append(RowError(row, "unlucky"))
                self.failed.add(row)
            elif samples:
                token = next_token(prefix)
                self.tokens[row].append(token)
                output.rows.append(row)
                output.tokens.append([token])
                output.logprobs.append(None)
        return output

    def _forward(self, row: int, count: int) -> Prefix:
        """Write and read the KV of the row's next tokens; returns what identifies the text up to the last."""
        start = self.computed[row]
        tokens = self.tokens[row]
        assert start + count <= len(tokens), "a token is computed before it is known"
        prefixes: list[Prefix] = []
        prefix = b""
        for token in tokens[: start + count]:
            prefix = chain(prefix, token)
            prefixes.append(prefix)
        for group, (spec, kv) in enumerate(zip((g.spec for g in self.groups), self.kv, strict=True)):
            table, size = self.tables[row][group], spec.block_size
            for position in range(start, start + count):
                block = table[position // size]
                assert block != 0, "the null block is written"
                kv[block * size + position % size] = prefixes[position]
            for position in range(start, start + count):
                first = max(0, position + 1 - spec.window) if spec.window else 0
                for seen in range(first, position + 1):
                    found = kv.get(table[seen // size] * size + seen % size)
                    assert found == prefixes[seen], f"group {group}: position {seen} of row {row} holds another text"
        self.computed[row] = start + count
        return prefixes[-1]


@dataclass
class Scenario:
    """What a run is made of."""

    seed: int
    windows: tuple[int | None, ...] = (None,)
    block_size: int = 4
    num_blocks: int = 200
    max_model_len: int = 96
    depth: int = 1
    num_requests: int = 30
    abort_rate: float = 0.02
    failure_rate: float = 0.0
    fields: dict[str, object] = field(default_factory=dict)


class Simulation:
    """Runs a scenario to its end and checks everything that must always hold."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.rng = random.Random(scenario.seed)
        groups = make_groups(scenario.windows, scenario.block_size)
        fields = {"max_num_batched_tokens": 32, "max_num_seqs": 8} | scenario.fields
        self.cache = KVCacheManager(
            groups,
            scenario.num_blocks,
            enable_prefix_caching=bool(fields.pop("enable_prefix_caching", True)),
            hash_secret=b"simulator",
        )
        self.now = 0.0
        config = SchedulerConfig(**fields)
        self.scheduler = Scheduler(config, self.cache, max_model_len=scenario.max_model_len, clock=lambda: self.now)
        self.worker = Worker(groups, self.rng, scenario.failure_rate)
        self.made: dict[str, list[int]] = {}
        self.ends: dict[str, EngineOutput] = {}
        self.requests: dict[str, EngineRequest] = {}

    def run(self) -> None:
        """Serve random arrivals until all is done."""
        inflight: deque[tuple[SchedulerOutput, StepOutput]] = deque()
        shared = [self.rng.randrange(1, VOCAB) for _ in range(self.scenario.max_model_len // 2)]
        waiting = [self._request(index, shared) for index in range(self.scenario.num_requests)]
        idle = 0
        while waiting or self.scheduler.has_work or inflight:
            self.now += 0.01
            while waiting and self.rng.random() < 0.4:
                request = waiting.pop()
                self.requests[request.id] = request
                self.scheduler.add(request)
            self._take(self.scheduler.expire(self.now))
            if self.rng.random() < self.scenario.abort_rate and self.requests:
                self._take(self.scheduler.abort([self.rng.choice(list(self.requests)), "unknown"]))
            before = len(inflight)
            while len(inflight) < self.scenario.depth:
                plan = self.scheduler.schedule()
                if plan is None:
                    break
                assert sum(plan.num_tokens) <= self.scheduler.budget
                inflight.append((plan, self.worker.execute(plan)))
            if inflight:
                plan, output = inflight.popleft()
                self._take(self.scheduler.update(plan, output, step_s=0.001 * sum(plan.num_tokens) + 0.002))
            self._check_pool()
            idle = idle + 1 if not before and not inflight and self.scheduler.has_work and not waiting else 0
            assert idle < 3 or plan is not None, "requests wait, and nothing runs"
        self._check_end()

    def _request(self, index: int, shared: list[int]) -> EngineRequest:
        rng, longest = self.rng, self.scenario.max_model_len
        tail = [rng.randrange(1, VOCAB) for _ in range(rng.randint(1, longest // 3))]
        prompt = shared[: rng.randint(0, len(shared))] + tail if rng.random() < 0.6 else tail
        limit = rng.randint(1, longest - len(prompt))
        return EngineRequest(
            id=f"r{index}",
            prompt=prompt,
            params=SamplingParams(max_tokens=limit, temperature=0.0),
            arrival=self.now,
            max_new_tokens=limit,
            eos_token_ids=[EOS],
            priority=rng.randint(0, 3),
            cache_salt=rng.choice(["", "", "other"]),
            deadline=rng.choice([None, None, None, rng.uniform(0, 3)]),
        )

    def _take(self, outputs: list[EngineOutput]) -> None:
        for output in outputs:
            assert output.id not in self.ends, f"{output.id} goes on after its end"
            self.made.setdefault(output.id, []).extend(output.tokens)
            if output.finish is not None:
                self.ends[output.id] = output

    def _check_pool(self) -> None:
        pool = self.cache.pool
        held = sum(block.ref_count > 0 for block in pool.blocks)
        assert pool.num_free + held == pool.num_total
        tables = [r.blocks.tables for r in self.scheduler.running]
        users: dict[int, int] = {}
        for table in (table for by_group in tables for table in by_group):
            for block_id in table:
                users[block_id] = users.get(block_id, 0) + (block_id != 0)
        for block_id, count in users.items():
            block = pool.blocks[block_id]
            assert count <= block.ref_count or block_id == 0
            assert count <= 1 or block.key is not None, "two requests share a block that no hit can have given them"

    def _check_end(self) -> None:
        assert set(self.ends) == set(self.requests), "a request has no end"
        assert self.cache.pool.num_free == self.cache.pool.num_total, "blocks are held by nobody"
        for name, request in self.requests.items():
            expected = continuation(request.prompt, request.max_new_tokens)
            made, finish = self.made[name], self.ends[name].finish
            if finish in (FinishReason.STOP, FinishReason.LENGTH):
                assert made == expected, name
                assert (finish is FinishReason.STOP) == (made[-1] == EOS)
            else:
                assert made == expected[: len(made)], name
