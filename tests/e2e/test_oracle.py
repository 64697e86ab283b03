"""The engine's greedy output equals the naive oracle's, token for token, whatever the engine does to get there."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from octavo.config.engine import EngineConfig
from octavo.engine.build import build_engine, plan_engine
from octavo.engine.core import EngineCore
from octavo.engine.messages import EngineRequest
from octavo.platforms.cpu import CpuPlatform
from octavo.types import FinishReason, SamplingParams
from tests.oracle import greedy

EOS = 257
NUM_TOKENS = 20


def _prompts(rng: random.Random, count: int, longest: int) -> list[list[int]]:
    """Random prompts; some share a prefix, one is a repeat."""
    shared = [rng.randrange(256) for _ in range(longest // 2)]
    prompts = []
    for i in range(count):
        tail = [rng.randrange(256) for _ in range(rng.randint(1, longest // 2))]
        prompts.append(shared + tail if i % 3 == 0 else tail)
    return [*prompts, list(prompts[0])]


def _engine(folder: Path, **fields: Any) -> EngineCore:
    core, _ = build_engine(_config(folder, **fields))
    return core


def _config(folder: Path, **fields: Any) -> EngineConfig:
    return EngineConfig.from_flat(model=str(folder), max_model_len=144, threads=1, **fields)


def _run(
    core: EngineCore, prompts: list[list[int]], max_tokens: int, *, stagger: int = 0, **params: Any
) -> list[list[int]]:
    """Serve all prompts at once, or a new one every `stagger` steps; return their tokens."""
    outputs: dict[str, list[int]] = {}
    waiting = [
        EngineRequest(
            id=str(i),
            prompt=prompt,
            params=SamplingParams(temperature=0, max_tokens=max_tokens, **params),
            arrival=0.0,
            max_new_tokens=max_tokens,
            eos_token_ids=[EOS],
        )
        for i, prompt in enumerate(prompts)
    ]
    finished = 0
    for step in itertools.count():
        while waiting and (not stagger or step % stagger == 0):
            core.add(waiting.pop(0))
            if stagger:
                break
        for output in core.step():
            outputs.setdefault(output.id, []).extend(output.tokens)
            if output.finish is not None:
                assert output.finish in (FinishReason.STOP, FinishReason.LENGTH), output
                finished += 1
        if finished == len(prompts):
            return [outputs[str(i)] for i in range(len(prompts))]
    raise AssertionError


@pytest.fixture(scope="module")
def expectations() -> dict[Any, list[list[int]]]:
    """The oracle's outputs, computed once for each model and KV type."""
    return {}


COMBINATIONS = {
    "plain": {},
    "no prefix cache": {"enable_prefix_caching": False},
    "small chunks": {"max_num_batched_tokens": 16, "max_num_seqs": 8},
    "one at a time": {"max_num_seqs": 1},
    "small blocks": {"block_size": 4},
    "big blocks": {"block_size": 64},
    "no chunked prefill": {"enable_chunked_prefill": False},
    "overlap": {"depth": 2},
    "overlap, small chunks": {"depth": 2, "max_num_batched_tokens": 16, "max_num_seqs": 8},
    "priority": {"policy": "priority"},
    "bf16 cache": {"kv_cache_dtype": "bf16"},
    "f16 cache, small chunks": {"kv_cache_dtype": "f16", "max_num_batched_tokens": 16, "max_num_seqs": 8},
    # memory for one request of the longest length, shared by all, in blocks that outputs need many of
    "preemption": {"tight": True, "block_size": 2, "max_num_batched_tokens": 16, "max_num_seqs": 8},
    "preemption, overlap, small chunks": {
        "tight": True,
        "block_size": 2,
        "depth": 2,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 8,
    },
    "preemption, no prefix cache": {
        "tight": True,
        "block_size": 2,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 8,
        "enable_prefix_caching": False,
    },
}


@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.parametrize("folder_fixture", ["llama_folder", "gemma3_folder"])
def test_greedy_equals_the_oracle(
    folder_fixture: str, combination: str, request: pytest.FixtureRequest, expectations: dict[Any, list[list[int]]]
) -> None:
    fields = dict(COMBINATIONS[combination])
    tight = fields.pop("tight", None)
    folder = request.getfixturevalue(folder_fixture)
    if tight:
        plan = plan_engine(_config(folder, **fields), CpuPlatform())
        fields["kv_cache_bytes"] = plan.memory.full_length_bytes + plan.memory.block_bytes
    core = _engine(folder, **fields)
    prompts = _prompts(random.Random(3), 6, 120)
    runner = core.executor.worker.runner
    try:
        first = _run(core, prompts, NUM_TOKENS)
        again = _run(core, prompts, NUM_TOKENS, stagger=2)  # now with hits, and arrivals in between
        stats = core.call("stats")
    finally:
        core.close()
    kv_dtype = fields.get("kv_cache_dtype", "f32")
    key = (folder_fixture, kv_dtype)
    if key not in expectations:
        expectations[key] = [
            greedy(runner.model, runner.ops, prompt, NUM_TOKENS, frozenset([EOS]), kv_dtype) for prompt in prompts
        ]
    expected = expectations[key]
    assert first == expected
    assert again == expected
    assert stats.running == stats.waiting == 0
    assert stats.blocks_used == 0
    if tight:
        assert stats.preemptions > 0
    elif fields.get("enable_prefix_caching", True):
        assert stats.prefix_hits > 0
