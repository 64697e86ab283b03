"""A token table and requests for sampler tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from octavo.ops import op as op_module
from octavo.ops.op import Ops
from octavo.sampling.custom import CustomProcessor
from octavo.sampling.sampler import SampledRows, Sampler
from octavo.scheduler.plan import NewRow
from octavo.types import SamplingParams


def bound_ops() -> Ops:
    """Bind the torch reference."""
    op_module.load("torch")
    return op_module.bind(["torch"])


OPS = bound_ops()


class Table:
    """Prompt and output ids by row, as plain lists."""

    def __init__(self) -> None:
        self.prompts: dict[int, list[int]] = {}
        self.outputs: dict[int, list[int]] = {}

    def prompt(self, row: int) -> np.ndarray:
        """Return the prompt, [P] int32."""
        return np.array(self.prompts[row], np.int32)

    def output(self, row: int) -> np.ndarray:
        """Return the output so far, [O] int32."""
        return np.array(self.outputs[row], np.int32)

    def num_tokens(self, row: int) -> int:
        """Return the position of the next token."""
        return len(self.prompts[row]) + len(self.outputs[row])


class Bench:
    """A sampler with its table; logits go in as numpy."""

    def __init__(self, vocab_size: int, mode: str = "raw_logprobs", custom: Sequence[CustomProcessor] = ()) -> None:
        self.table = Table()
        self.vocab_size = vocab_size
        self.sampler = Sampler(OPS, vocab_size=vocab_size, logprobs_mode=mode, table=self.table, custom=custom)

    def add(
        self,
        row: int,
        params: SamplingParams,
        *,
        prompt: Sequence[int] = (0,),
        output: Sequence[int] = (),
        seed: int = 0,
        **fields: Any,
    ) -> None:
        """Put a request in a row."""
        self.table.prompts[row], self.table.outputs[row] = list(prompt), list(output)
        self.sampler.add(new_row(row, params, prompt=prompt, output=output, seed=seed, **fields))

    def sample(self, logits: np.ndarray, rows: Sequence[int]) -> SampledRows:
        """Sample once; the tables do not grow."""
        return self.sampler.sample(OPS.from_host(np.array(logits, np.float32)), rows)

    def step(self, logits: np.ndarray, rows: Sequence[int]) -> list[int]:
        """Sample once and append the tokens to the tables."""
        tokens = self.sample(logits, rows).tokens
        for row, token in zip(rows, tokens, strict=True):
            self.table.outputs[row].append(token)
        return tokens


def new_row(
    row: int,
    params: SamplingParams,
    *,
    prompt: Sequence[int] = (0,),
    output: Sequence[int] = (),
    seed: int = 0,
    sample_index: int = 0,
    stop_ids: Sequence[int] = (),
    bad_words: Sequence[Sequence[int]] = (),
) -> NewRow:
    """Make the wire form of a request."""
    return NewRow(
        row=row,
        tokens=[*prompt, *output],
        num_prompt_tokens=len(prompt),
        num_computed_tokens=0,
        params=params,
        seed=seed,
        sample_index=sample_index,
        stop_ids=list(stop_ids),
        bad_words=[list(word) for word in bad_words],
    )


def draw_many(params: SamplingParams, logits: Sequence[float], count: int, **request: Any) -> np.ndarray:
    """Draw `count` tokens from one distribution, each with a seed of its own; returns counts, [V]."""
    bench = Bench(len(logits))
    rows = range(count)
    for row in rows:
        bench.add(row, params, seed=row * 7919 + 1, **request)
    result = bench.sample(np.tile(np.array(logits, np.float32), (count, 1)), rows)
    assert not result.failed
    return np.bincount(result.tokens, minlength=len(logits))


def assert_follows(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """Compare counts with an exact distribution: nothing impossible was drawn, and chi-square finds no difference.

    Seeds are fixed, so the limit on the p-value is no source of flakiness: it was met once and for all.
    """
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    expected = probabilities[possible] * counts.sum()
    if possible.sum() > 1:
        assert stats.chisquare(counts[possible], expected).pvalue > 1e-3
