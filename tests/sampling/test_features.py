"""Each logits processor does what its field says, compared with transformers' where the meaning is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from octavo.types import SamplingParams
from tests.sampling.table import Bench

V = 300
PROMPT, OUTPUT = [5, 6, 7, 5], [9, 6, 9]


def processed(params: SamplingParams, x: np.ndarray, **request: Any) -> np.ndarray:
    """Return the logits that a token is drawn from, [V], in id order."""
    bench = Bench(len(x), mode="processed_logits")
    bench.add(0, msgspec.structs.replace(params, logprobs=-1), **request)
    entry = bench.sample(x[None], [0]).logprobs[0]
    assert entry is not None
    out = np.empty(len(x))
    out[entry.token_ids] = entry.logprobs
    return out


def logits(seed: int = 0) -> np.ndarray:
    """Make random logits without ties, [V]."""
    return np.random.default_rng(seed).normal(0, 3, V).astype(np.float32)


def theirs(warper: Callable[..., Any], x: np.ndarray, ids: list[int] | None = None) -> np.ndarray:
    """Run one of transformers' processors on a row."""
    history = torch.tensor([ids or PROMPT + OUTPUT])
    return warper(history, torch.from_numpy(x[None].copy()))[0].numpy()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("given", "warper"),
    [
        ({"temperature": 0.7}, TemperatureLogitsWarper(0.7)),
        ({"top_k": 20}, TopKLogitsWarper(20)),
        ({"top_k": 1}, TopKLogitsWarper(1)),
        ({"top_p": 0.9}, TopPLogitsWarper(0.9)),
        ({"top_p": 0.2}, TopPLogitsWarper(0.2)),
        ({"min_p": 0.05}, MinPLogitsWarper(0.05)),
        ({"repetition_penalty": 1.4}, RepetitionPenaltyLogitsProcessor(1.4)),
        ({"repetition_penalty": 0.8}, RepetitionPenaltyLogitsProcessor(0.8)),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else type(value).__name__,
)
def test_a_feature_equals_transformers(given: dict[str, float], warper: Callable[..., Any], seed: int) -> None:
    x = logits(seed)
    got = processed(SamplingParams(**given), x, prompt=PROMPT, output=OUTPUT)
    np.testing.assert_allclose(got, theirs(warper, x), rtol=1e-6)


def test_bad_words_equal_transformers() -> None:
    words = [[9], [6, 9, 40], [9, 41], [7, 5, 42], [5, 9, 43], [5, 9, 6, 9, 44]]
    x = logits()
    got = processed(SamplingParams(bad_words=["given as ids"]), x, prompt=PROMPT, output=OUTPUT, bad_words=words)
    np.testing.assert_array_equal(got, theirs(NoBadWordsLogitsProcessor(words, eos_token_id=0), x))
    assert np.flatnonzero(np.isinf(got)).tolist() == [9, 40, 41, 44]


def test_both_spellings_of_a_bad_word_are_banned() -> None:
    """A front end sends a word with and without its leading space; either is masked on its own."""
    got = processed(SamplingParams(bad_words=["cat"]), logits(), bad_words=[[17], [30, 18]], prompt=[1], output=[30])
    assert np.flatnonzero(np.isinf(got)).tolist() == [17, 18]


def test_a_bad_word_may_begin_in_the_prompt() -> None:
    got = processed(SamplingParams(bad_words=["x"]), logits(), bad_words=[[2, 3, 4]], prompt=[9, 2], output=[3])
    assert np.flatnonzero(np.isinf(got)).tolist() == [4]


def test_a_bad_word_longer_than_the_text_so_far_bans_nothing() -> None:
    got = processed(SamplingParams(bad_words=["x"]), logits(), bad_words=[[1, 2, 3, 4]], prompt=[3], output=[])
    assert np.isfinite(got).all()


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_min_tokens_masks_stop_ids_until_reached_as_transformers_does(length: int) -> None:
    x = logits()
    output = [9] * length
    got = processed(SamplingParams(min_tokens=2), x, prompt=PROMPT, output=output, stop_ids=[11, 3])
    oracle = MinNewTokensLengthLogitsProcessor(len(PROMPT), 2, [11, 3], device="cpu")
    np.testing.assert_array_equal(got, theirs(oracle, x, PROMPT + output))
    assert np.isinf(got).sum() == (2 if length < 2 else 0)


def test_a_stop_id_outside_the_vocabulary_is_no_error() -> None:
    got = processed(SamplingParams(min_tokens=1), logits(), stop_ids=[11, V + 5])
    assert np.flatnonzero(np.isinf(got)).tolist() == [11]


def test_allowed_ids_mask_everything_else() -> None:
    x = logits()
    got = processed(SamplingParams(allowed_token_ids=[7, 3, 7]), x)
    assert np.flatnonzero(np.isfinite(got)).tolist() == [3, 7]
    np.testing.assert_array_equal(got[[3, 7]], x[[3, 7]])


def test_bias_is_added_and_a_banned_token_stays_banned() -> None:
    x = logits()
    params = SamplingParams(logit_bias={3: 2.5, 4: -100, 5: 100}, bad_words=["x"])
    got = processed(params, x, bad_words=[[5]])
    expected = x.astype(np.float64)
    expected[3] += 2.5
    expected[4] -= 100
    expected[5] = -np.inf
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_frequency_counts_the_output_alone_and_presence_once() -> None:
    x = logits()
    got = processed(SamplingParams(frequency_penalty=0.5, presence_penalty=1.0), x, prompt=PROMPT, output=OUTPUT)
    expected = x.astype(np.float64)
    expected[9] -= 0.5 * 2 + 1
    expected[6] -= 0.5 + 1
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_penalties_follow_a_growing_output() -> None:
    """Counts are kept from step to step; at each they equal a fresh start."""
    params = SamplingParams(repetition_penalty=1.3, frequency_penalty=0.3, presence_penalty=0.2, logprobs=-1)
    rng = np.random.default_rng(2)
    bench = Bench(V, mode="processed_logits")
    bench.add(0, params, prompt=PROMPT)
    for _ in range(100):
        x = rng.normal(0, 3, V).astype(np.float32)
        fresh = Bench(V, mode="processed_logits")
        fresh.add(0, params, prompt=PROMPT, output=bench.table.outputs[0])
        assert bench.sample(x[None], [0]) == fresh.sample(x[None], [0])
        bench.table.outputs[0].append(int(rng.integers(0, V)))


def test_a_trace_is_replayed_against_all_odds_then_ends() -> None:
    params = SamplingParams(temperature=0, trace_decode_token_ids=[8, 8, 2], min_tokens=3, bad_words=["x"])
    x = logits()
    bench = Bench(V)
    bench.add(0, params, stop_ids=[2], bad_words=[[8]])
    free = int(np.argmax(np.where(np.arange(V) == 8, -np.inf, x)))
    assert [bench.step(x[None], [0])[0] for _ in range(4)] == [8, 8, 2, free]


def test_all_features_at_once_run_in_the_documented_order() -> None:
    x = logits(5)
    params = SamplingParams(
        allowed_token_ids=list(range(0, V, 2)),
        bad_words=["x"],
        logit_bias={4: 3.0},
        min_tokens=5,
        repetition_penalty=1.5,
        frequency_penalty=0.2,
        presence_penalty=0.3,
        temperature=1.5,
        min_p=0.01,
        top_k=30,
        top_p=0.9,
    )
    got = processed(params, x, prompt=[4, 6], output=[4, 8], bad_words=[[10]], stop_ids=[12])
    y = x.astype(np.float64)
    y[1::2] = -np.inf
    y[[10, 12]] = -np.inf
    y[4] += 3
    for token in (4, 6, 8):
        y[token] = y[token] / 1.5 if y[token] > 0 else y[token] * 1.5
    for token in (4, 8):
        y[token] -= 0.5
    y = torch.from_numpy((y / 1.5)[None])
    for warper in (MinPLogitsWarper(0.01), TopKLogitsWarper(30), TopPLogitsWarper(0.9)):
        y = warper(torch.tensor([[0]]), y)
    np.testing.assert_allclose(got, y[0].numpy(), rtol=1e-5)
    assert 2 < np.isfinite(got).sum() < 31
