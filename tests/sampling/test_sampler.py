"""The sampler's rules: order, determinism, isolation between rows, and errors that stay with their row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.sampling import processor as processor_module
from octavo.sampling.processor import Setting, Stage
from octavo.sampling.rng import draw_key
from octavo.types import SamplingParams
from tests.sampling.table import OPS, Bench, Table

V = 50
GREEDY = SamplingParams(temperature=0)


def logits_of(rows: int, seed: int = 0, vocab: int = V) -> np.ndarray:
    """Make random logits, [rows, vocab]."""
    return np.random.default_rng(seed).normal(0, 2, (rows, vocab)).astype(np.float32)


def solo(params: SamplingParams, logits: np.ndarray, steps: int = 6, **request: Any) -> list[int]:
    """Run one request alone; step s sees logits[s]."""
    bench = Bench(V)
    bench.add(3, params, **request)
    return [bench.step(logits[step][None], [3])[0] for step in range(steps)]


def test_greedy_rows_take_the_first_of_the_likeliest() -> None:
    x = logits_of(4)
    x[1, [7, 9]] = 50
    bench = Bench(V)
    for row in range(4):
        bench.add(row, GREEDY)
    assert bench.sample(x, range(4)).tokens == x.argmax(1).tolist()


def test_greedy_rows_that_want_nothing_else_cost_one_op() -> None:
    called = []

    class Counting:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            called.append(name)
            return getattr(OPS, name)

    bench = Bench(V)
    bench.add(0, GREEDY)
    bench.sampler.ops = Counting()
    bench.sample(logits_of(1), [0])
    assert called == ["row_argmax", "to_host", "to_host"]


def test_top_k_1_is_greedy() -> None:
    x = logits_of(6)
    for params in (SamplingParams(top_k=1), SamplingParams(top_p=1e-9), SamplingParams(min_p=1.0)):
        assert solo(params, x, seed=5) == solo(GREEDY, x)


def test_a_tiny_temperature_is_greedy() -> None:
    x = logits_of(6)
    assert solo(SamplingParams(temperature=1e-9, top_p=0.5), x, seed=5) == solo(GREEDY, x)


def test_greedy_and_random_rows_mix() -> None:
    x = logits_of(6)
    bench = Bench(V)
    for row in range(6):
        bench.add(row, GREEDY if row % 2 else SamplingParams(top_k=1), seed=row)
    assert bench.sample(x, range(6)).tokens == x.argmax(1).tolist()


def test_greedy_rows_feel_penalties_and_bias_but_not_truncation() -> None:
    x = np.zeros((1, V), np.float32)
    x[0, :3] = [3, 2.9, 2.8]
    bench = Bench(V)
    bench.add(0, SamplingParams(temperature=0, repetition_penalty=2.0, logit_bias={2: 0.5}), prompt=[0])
    assert bench.sample(x, [0]).tokens == [2]


KINDS = {
    "greedy": GREEDY,
    "penalised": SamplingParams(temperature=0, repetition_penalty=2.0),
    "random": SamplingParams(temperature=0.9),
    "truncated": SamplingParams(top_k=5, top_p=0.9, presence_penalty=0.5),
    "biased": SamplingParams(logit_bias={1: 5.0}, min_p=0.05, logprobs=2),
    "listed": SamplingParams(allowed_token_ids=[4, 8, 15, 16, 23, 42]),
}


@pytest.mark.parametrize(
    "order", [("penalised", "random"), ("random", "penalised"), tuple(KINDS), tuple(reversed(KINDS))]
)
def test_each_row_of_a_batch_equals_its_solo_run(order: tuple[str, ...]) -> None:
    """B13: the order of requests in a batch does not matter."""
    x = logits_of(6, seed=3)
    bench = Bench(V)
    for row, kind in enumerate(order):
        bench.add(row, KINDS[kind], prompt=[1, 2], seed=99)
    steps = [bench.step(np.tile(x[step], (len(order), 1)), range(len(order))) for step in range(6)]
    for column, kind in enumerate(order):
        assert [tokens[column] for tokens in steps] == solo(KINDS[kind], x, prompt=[1, 2], seed=99)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(sorted(KINDS)), st.booleans()), max_size=12), st.randoms())
def test_rows_leave_no_trace(events: list[tuple[int, str, bool]], random: Any) -> None:
    """However rows were added, replaced and removed before, what is in them now samples as if alone."""
    bench, now = Bench(V), {}
    x = logits_of(6, seed=8)
    for row, kind, removed in events:
        bench.add(row, KINDS[kind], prompt=[1, 2], seed=99)
        bench.step(x[:1], [row])
        now[row] = kind
        if removed:
            bench.sampler.remove(row)
            del now[row]
    for row, kind in now.items():
        bench.add(row, KINDS[kind], prompt=[1, 2], seed=99)
    rows = list(now)
    random.shuffle(rows)
    steps = [bench.step(np.tile(x[step], (len(rows), 1)), rows) for step in range(3)] if rows else []
    for column, row in enumerate(rows):
        assert [tokens[column] for tokens in steps] == solo(KINDS[now[row]], x, 3, prompt=[1, 2], seed=99)
    for row in rows:
        bench.sampler.remove(row)
    assert not bench.sampler._rows
    for processor in bench.sampler.processors:
        assert not any(state for state in vars(processor).values() if isinstance(state, dict)), processor


@pytest.mark.parametrize("kind", ["random", "truncated", "penalised"])
def test_a_resumed_request_continues_with_the_same_tokens(kind: str) -> None:
    """Preemption re-adds a row with its output so far; draws depend on positions alone."""
    x = logits_of(6, seed=4)
    whole = solo(KINDS[kind], x, prompt=[1, 2, 3], seed=11)
    bench = Bench(V)
    bench.add(0, KINDS[kind], prompt=[1, 2, 3], output=whole[:3], seed=11)
    assert [bench.step(x[step][None], [0])[0] for step in range(3, 6)] == whole[3:]


def test_four_samples_of_a_seed_differ_and_come_again() -> None:
    """B24."""
    x = logits_of(8, seed=6)

    def run() -> list[tuple[int, ...]]:
        return [tuple(solo(SamplingParams(n=4, seed=7), x, 8, seed=7, sample_index=i)) for i in range(4)]

    assert len(set(run())) == 4
    assert run() == run()


def test_another_seed_gives_other_tokens() -> None:
    x = np.zeros((8, V), np.float32)
    assert solo(SamplingParams(), x, 6, seed=1) != solo(SamplingParams(), x, 6, seed=2)


def test_draw_keys_are_the_documented_numbers() -> None:
    """Pinned: a change of these changes every seeded answer."""
    assert draw_key(0, 0, 0) == 0x0 ^ _reference_key(0, 0, 0)
    assert draw_key(-1, 0, 5) == draw_key(2**64 - 1, 0, 5)
    keys = {draw_key(seed, sample, position) for seed in range(5) for sample in range(5) for position in range(5)}
    assert len(keys) == 125


def _reference_key(*values: int) -> int:
    """Compute the key with numpy's wrapping uint64, apart from the implementation."""
    key = np.uint64(0)
    with np.errstate(over="ignore"):
        for value in values:
            key = (key ^ np.uint64(value)) + np.uint64(0x9E3779B97F4A7C15)
            key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            key = key ^ (key >> np.uint64(31))
    return int(key)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("other", [GREEDY, SamplingParams(logprobs=1), SamplingParams(top_k=3)])
def test_a_row_of_bad_logits_fails_alone(value: float, other: SamplingParams) -> None:
    x = logits_of(3)
    x[1, 13] = value
    bench = Bench(V)
    for row in (4, 5, 6):
        bench.add(row, other, seed=row)
    result = bench.sample(x, [4, 5, 6])
    assert [error.row for error in result.failed] == [5]
    assert "not finite" in result.failed[0].message
    assert result.tokens[1] == -1
    assert result.logprobs[1] is None
    for place, row in ((0, 4), (2, 6)):
        alone = Bench(V)
        alone.add(row, other, seed=row)
        same = alone.sample(x[place][None], [row])
        assert result.tokens[place] == same.tokens[0]
        assert result.logprobs[place] == same.logprobs[0]


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_row_with_every_token_masked_fails_alone(temperature: float) -> None:
    bench = Bench(V)
    bench.add(
        0, SamplingParams(temperature=temperature, allowed_token_ids=[3], bad_words=["x"], logprobs=1), bad_words=[[3]]
    )
    bench.add(1, SamplingParams(temperature=temperature, allowed_token_ids=[3], logprobs=1))
    result = bench.sample(logits_of(2), [0, 1])
    assert result.tokens == [-1, 3]
    assert [(error.row, "every token is masked" in error.message) for error in result.failed] == [(0, True)]
    assert result.logprobs[0] is None
    assert result.logprobs[1] is not None


def test_features_are_found_by_file_name_and_run_in_order() -> None:
    setting = Setting(ops=OPS, table=Table(), vocab_size=V)
    found = [type(item).__module__.rsplit(".", 1)[1] for item in processor_module.discover(setting)]
    assert found == [
        *("allowed_tokens", "bad_words", "logit_bias", "min_tokens", "penalties", "trace_replay"),
        *("min_p", "top_k_top_p"),
    ]
    assert [stage.name for stage in Stage] == [
        *("RESTRICT", "EDIT", "CUSTOM", "PENALIZE", "FORCE", "TEMPERATURE", "NARROW", "TRUNCATE")
    ]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_logits_of_the_models_dtype_are_sampled_in_float32(dtype: str) -> None:
    x = logits_of(1)
    bench = Bench(V)
    bench.add(0, SamplingParams(top_k=4, logprobs=1), seed=3)
    rounded = OPS.to_host(OPS.from_host(x, dtype)).astype(np.float32)
    expected = bench.sample(rounded, [0])
    assert bench.sampler.sample(OPS.from_host(x, dtype), [0]) == expected
