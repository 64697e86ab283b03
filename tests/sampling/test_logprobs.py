"""Logprobs of generated and prompt tokens: values, ranks, order, modes, and memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax

from octavo.engine.messages import TokenLogprobs
from octavo.errors import RequestFailedError
from octavo.ops.op import Tensor
from octavo.sampling import logprobs as logprobs_module
from octavo.sampling.logprobs import PromptLogprobs
from octavo.types import SamplingParams
from tests.sampling.table import OPS, Bench, Table, new_row

V = 40


def logits_of(rows: int, seed: int = 0, vocab: int = V) -> np.ndarray:
    """Make random logits with ties, [rows, vocab]."""
    return np.round(np.random.default_rng(seed).normal(0, 2, (rows, vocab)), 1).astype(np.float32)


def expected(x: np.ndarray, token: int, ids: list[int], normalized: bool = True) -> TokenLogprobs:
    """Build the entry for one row of logits in float64."""
    values = log_softmax(x.astype(np.float64)) if normalized else x.astype(np.float64)
    order = [token, *sorted((v for v in set(ids) if v != token), key=lambda v: (-x[v], v))]
    return TokenLogprobs(order, values[order].tolist(), [1 + int((x > x[v]).sum()) for v in order])


def likeliest(x: np.ndarray, count: int) -> list[int]:
    """Return the ids of the greatest logits; the lowest ids of equals."""
    return sorted(range(len(x)), key=lambda v: (-x[v], v))[:count]


def assert_equal(got: TokenLogprobs | None, wanted: TokenLogprobs) -> None:
    """Compare entries; values are float32 against float64."""
    assert got is not None
    assert (got.token_ids, got.ranks) == (wanted.token_ids, wanted.ranks)
    np.testing.assert_allclose(got.logprobs, wanted.logprobs, atol=2e-6)


def sample_one(x: np.ndarray, mode: str = "raw_logprobs", **params: Any) -> tuple[int, TokenLogprobs | None]:
    """Sample one row with the given parameters."""
    bench = Bench(x.shape[1], mode)
    bench.add(0, SamplingParams(**params), seed=5)
    result = bench.sample(x, [0])
    return result.tokens[0], result.logprobs[0]


@pytest.mark.parametrize("count", [0, 1, 5, V, -1])
@pytest.mark.parametrize("seed", range(3))
def test_entry_holds_the_sampled_token_then_the_likeliest(count: int, seed: int) -> None:
    x = logits_of(1, seed)
    token, entry = sample_one(x, logprobs=count)
    assert_equal(entry, expected(x[0], token, likeliest(x[0], V if count == -1 else count)))
    assert entry is not None
    assert len(entry.token_ids) <= (V if count == -1 else count + 1)


def test_equal_values_share_a_rank() -> None:
    x = np.array([[1, 3, 3, 3, 0, 1]], np.float32)
    token, entry = sample_one(x, logprobs=-1, temperature=0)
    assert token == 1
    assert entry is not None
    assert dict(zip(entry.token_ids, entry.ranks, strict=True)) == {1: 1, 2: 1, 3: 1, 0: 4, 5: 4, 4: 6}


def test_ties_at_the_border_of_the_list_go_to_the_lowest_id() -> None:
    _, entry = sample_one(np.array([[0, 2, 1, 1, 1]], np.float32), logprobs=2, temperature=0)
    assert entry is not None
    assert entry.token_ids == [1, 2]


def test_chosen_ids_are_reported_instead_of_the_likeliest() -> None:
    x = logits_of(1)
    ids = [7, 3, 39, 0]
    for params in ({"logprob_token_ids": ids}, {"logprob_token_ids": ids, "logprobs": 4}):
        token, entry = sample_one(x, **params)
        assert_equal(entry, expected(x[0], token, ids))


def test_raw_modes_look_before_every_edit() -> None:
    x = logits_of(1)
    params = {"logit_bias": {3: 50.0}, "temperature": 0.5, "top_k": 1, "logprobs": 3}
    token, entry = sample_one(x, **params)
    assert token == 3
    assert_equal(entry, expected(x[0], 3, likeliest(x[0], 3)))
    _, entry = sample_one(x, "raw_logits", **params)
    assert_equal(entry, expected(x[0], 3, likeliest(x[0], 3), normalized=False))


def test_processed_modes_look_after_every_edit() -> None:
    x = logits_of(1)
    params = {"logit_bias": {3: 5.0}, "temperature": 0.5, "min_p": 1e-3, "logprobs": 3}
    y = x[0].copy()
    y[3] += 5
    y /= 0.5
    y[y < y.max() + np.log(1e-3)] = -np.inf
    token, entry = sample_one(x, "processed_logprobs", **params)
    assert_equal(entry, expected(y, token, likeliest(y, 3)))
    token, entry = sample_one(x, "processed_logits", **params)
    assert_equal(entry, expected(y, token, likeliest(y, 3), normalized=False))


def test_processed_logprobs_of_a_greedy_row_ignore_temperature_and_truncation() -> None:
    x = logits_of(1)
    token, entry = sample_one(x, "processed_logprobs", temperature=0, top_k=1, logprobs=2)
    assert_equal(entry, expected(x[0], token, likeliest(x[0], 2)))


def test_top_k_1_with_raw_logprobs_is_finite() -> None:
    """B8: masking for the draw does not leak into what is reported."""
    _, entry = sample_one(logits_of(1), logprobs=1, top_k=1, temperature=1.0)
    assert entry is not None
    assert np.isfinite(entry.logprobs).all()


def test_rows_of_a_batch_get_what_each_asked_for() -> None:
    x = logits_of(5)
    wishes: list[dict[str, Any]] = [
        *({"logprobs": 2}, {}, {"logprobs": 0}, {"logprob_token_ids": [5, 1]}, {"logprobs": 2, "temperature": 0})
    ]
    bench = Bench(V)
    for row, wish in enumerate(wishes):
        bench.add(row, SamplingParams(**wish), seed=row)
    result = bench.sample(x, range(5))
    assert result.logprobs[1] is None
    for row, ids in ((0, likeliest(x[0], 2)), (2, []), (3, [5, 1]), (4, likeliest(x[4], 2))):
        assert_equal(result.logprobs[row], expected(x[row], result.tokens[row], ids))


class Head:
    """A linear head with hidden states that remember their position; counts the rows it is asked for."""

    def __init__(self, vocab: int, num_tokens: int) -> None:
        rng = np.random.default_rng(1)
        self.hidden = rng.standard_normal((num_tokens, 8), dtype=np.float32)
        self.weight = rng.standard_normal((8, vocab), dtype=np.float32)
        self.asked: list[int] = []

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return logits, [S, V]."""
        rows = OPS.to_host(hidden)
        self.asked.append(len(rows))
        return OPS.from_host(rows @ self.weight)

    @property
    def logits(self) -> np.ndarray:
        """All logits at once, [P, V]; row p predicts position p + 1."""
        return self.hidden @ self.weight


def scorer(prompt: list[int], params: SamplingParams, mode: str = "raw_logprobs", vocab: int = V) -> PromptLogprobs:
    """Put a request in row 2."""
    table = Table()
    table.prompts[2], table.outputs[2] = prompt, []
    out = PromptLogprobs(OPS, logprobs_mode=mode, table=table, vocab_size=vocab)
    out.add(new_row(2, params, prompt=prompt))
    return out


PROMPT = np.random.default_rng(4).integers(0, V, 30).tolist()


@pytest.mark.parametrize("chunks", [[30], [1] * 30, [7, 16, 7], [29, 1]])
@pytest.mark.parametrize("start", [0, 1, 12, 29])
def test_prompt_positions_are_scored_once_however_chunked(chunks: list[int], start: int) -> None:
    head = Head(V, 30)
    scores = scorer(PROMPT, SamplingParams(prompt_logprobs=3, prompt_logprob_start=start))
    out: list[TokenLogprobs] = []
    begin = 0
    for count in chunks:
        out += scores.compute(2, begin, count, OPS.from_host(head.hidden[begin : begin + count]), head)
        begin += count
    positions = range(max(1, start), 30)
    assert len(out) == len(positions)
    for entry, position in zip(out, positions, strict=True):
        x = head.logits[position - 1]
        assert_equal(entry, expected(x, PROMPT[position], likeliest(x, 3)))


def test_chunks_beyond_the_prompt_score_nothing() -> None:
    """A resumed request computes output tokens again in its last prefill chunk."""
    head = Head(V, 40)
    scores = scorer(PROMPT, SamplingParams(prompt_logprobs=0))
    assert len(scores.compute(2, 20, 20, OPS.from_host(head.hidden[20:40]), head)) == 9
    assert scores.compute(2, 30, 5, OPS.from_host(head.hidden[30:35]), head) == []


def test_a_resumed_request_does_not_report_a_position_again() -> None:
    head = Head(V, 30)
    scores = scorer(PROMPT, SamplingParams(prompt_logprobs=2))
    whole = scores.compute(2, 0, 30, OPS.from_host(head.hidden), head)
    resumed = new_row(2, SamplingParams(prompt_logprobs=2), prompt=PROMPT)
    resumed.prompt_logprobs_from = 12
    scores.add(resumed)
    again = [
        entry
        for begin in (0, 10, 20)
        for entry in scores.compute(2, begin, 10, OPS.from_host(head.hidden[begin : begin + 10]), head)
    ]
    assert again == whole[11:]


def test_given_ids_are_scored_at_every_prompt_position() -> None:
    head = Head(V, 30)
    for table, start in (([[4, 9]], 0), ([[p % V, (p + 1) % V] for p in range(10, 30)], 10)):
        params = SamplingParams(prompt_logprob_token_ids=table, prompt_logprob_start=start)
        out = scorer(PROMPT, params).compute(2, 0, 30, OPS.from_host(head.hidden), head)
        for entry, position in zip(out, range(max(1, start), 30), strict=True):
            ids = table[0] if len(table) == 1 else table[position - start]
            assert_equal(entry, expected(head.logits[position - 1], PROMPT[position], ids))


@pytest.mark.parametrize("mode", ["raw_logits", "processed_logits", "processed_logprobs"])
def test_prompt_logprobs_are_never_processed(mode: str) -> None:
    head = Head(V, 30)
    params = SamplingParams(prompt_logprobs=1, temperature=0.5, top_k=1, logit_bias={0: 10.0})
    out = scorer(PROMPT, params, mode).compute(2, 0, 30, OPS.from_host(head.hidden), head)
    x = head.logits[0]
    assert_equal(out[0], expected(x, PROMPT[1], likeliest(x, 1), normalized=mode.endswith("logprobs")))


def test_a_row_that_asked_for_nothing_is_not_wanted_and_neither_is_a_removed_one() -> None:
    scores = scorer(PROMPT, SamplingParams(prompt_logprobs=1))
    assert scores.wants(2)
    scores.add(new_row(2, SamplingParams()))
    assert not scores.wants(2)
    scores.add(new_row(2, SamplingParams(prompt_logprobs=1)))
    scores.remove(2)
    scores.remove(2)
    assert not scores.wants(2)


def test_prompt_logits_that_are_not_finite_fail_the_request() -> None:
    head = Head(V, 30)
    head.hidden[4] = np.nan
    scores = scorer(PROMPT, SamplingParams(prompt_logprobs=1))
    with pytest.raises(RequestFailedError, match="after prompt position 4 are not finite"):
        scores.compute(2, 0, 30, OPS.from_host(head.hidden), head)


def test_a_long_prompt_at_a_large_vocabulary_is_scored_in_small_slices() -> None:
    """2,048 tokens at 152k would be 1.2 GB of logits; a slice is at most 32 MiB."""
    vocab, length = 151_936, 2048
    slices = scorer([0] * length, SamplingParams(prompt_logprobs=1), vocab=vocab).slice_rows
    assert slices * vocab * 4 <= logprobs_module.SLICE_BYTES == 32 << 20
    assert slices > 32  # and not so small that the head is read from memory for every few rows
    small = scorer(PROMPT, SamplingParams(prompt_logprobs=1))
    small.slice_rows = 4
    head = Head(V, 30)
    whole = small.compute(2, 0, 30, OPS.from_host(head.hidden), head)
    assert head.asked == [4] * 7 + [1]
    small.slice_rows = 1000
    assert whole == small.compute(2, 0, 30, OPS.from_host(head.hidden), head)
