"""What is drawn follows the exact distribution, for every parameter that shapes it (chi-square)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from octavo.types import SamplingParams
from tests.sampling.table import Bench, assert_follows, draw_many

LOGITS = [2.0, 1.5, 1.5, 0.5, 0.0, -1.0, -1.0, -2.5]
PROMPT, OUTPUT = [0, 3], [1, 1, 5]


def exact(logits: list[float], **given: Any) -> np.ndarray:
    """Compute the distribution in float64 from the catalogue's definitions, one step after the other."""
    x = np.array(logits, np.float64)
    for token, bias in given.get("logit_bias", {}).items():
        x[token] += bias
    seen_output = np.bincount(given.get("output", []), minlength=len(x))
    seen = seen_output + np.bincount(given.get("prompt", []), minlength=len(x))
    repetition = given.get("repetition_penalty", 1)
    x = np.where(seen > 0, np.where(x > 0, x / repetition, x * repetition), x)
    x -= given.get("frequency_penalty", 0) * seen_output + given.get("presence_penalty", 0) * (seen_output > 0)
    p = softmax(x / given.get("temperature", 1))
    p[p < given.get("min_p", 0) * p.max() * (1 - 1e-9)] = 0
    if given.get("top_k", 0):
        p[p < np.sort(p)[-given["top_k"]]] = 0
    p /= p.sum()
    order = sorted(range(len(p)), key=lambda v: (-p[v], v))
    before = np.cumsum(p[order]) - p[order]
    for rank, token in enumerate(order):
        if rank and before[rank] >= given.get("top_p", 1) - 1e-12:
            p[token] = 0
    return p / p.sum()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temperature": 0.4},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_k": 2},  # the border is a tie: three tokens stay
        {"top_p": 0.8},
        {"top_p": 0.3},
        {"min_p": 0.3},
        {"min_p": 0.05, "temperature": 0.7},
        {"top_k": 5, "top_p": 0.7},
        {"top_k": 6, "top_p": 0.9, "min_p": 0.1, "temperature": 1.5},
        {"logit_bias": {7: 4.0, 0: -100.0}},
    ],
    ids=str,
)
def test_draws_follow_the_exact_distribution(given: dict[str, Any]) -> None:
    assert_follows(draw_many(SamplingParams(**given), LOGITS, 2500), exact(LOGITS, **given))


@pytest.mark.parametrize(
    "given",
    [
        {"repetition_penalty": 1.8},
        {"repetition_penalty": 0.6},
        {"frequency_penalty": 0.7},
        {"frequency_penalty": -0.5},
        {"presence_penalty": 1.2},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.6, "temperature": 0.8},
        {"repetition_penalty": 1.5, "top_k": 4, "top_p": 0.95},
    ],
    ids=str,
)
def test_penalised_draws_follow_the_exact_distribution(given: dict[str, Any]) -> None:
    counts = draw_many(SamplingParams(**given), LOGITS, 2500, prompt=PROMPT, output=OUTPUT)
    assert_follows(counts, exact(LOGITS, prompt=PROMPT, output=OUTPUT, **given))


def test_positions_of_one_seed_are_independent_draws() -> None:
    bench = Bench(len(LOGITS))
    bench.add(0, SamplingParams(max_tokens=3000), seed=42)
    tokens = np.array([bench.step([LOGITS], [0])[0] for _ in range(3000)])
    assert_follows(np.bincount(tokens, minlength=8), exact(LOGITS))
    pairs = np.zeros((8, 8))
    np.add.at(pairs, (tokens[:-1], tokens[1:]), 1)
    joint = np.outer(exact(LOGITS), exact(LOGITS)).ravel()
    likely = joint * 2999 >= 5
    assert_follows(
        np.append(pairs.ravel()[likely], pairs.ravel()[~likely].sum()), np.append(joint[likely], joint[~likely].sum())
    )


def test_samples_of_one_seed_are_independent_draws() -> None:
    bench = Bench(len(LOGITS))
    for row in range(4000):
        bench.add(row, SamplingParams(), seed=7, sample_index=row)
    tokens = bench.sample(np.tile(LOGITS, (4000, 1)), range(4000)).tokens
    assert_follows(np.bincount(tokens, minlength=8), exact(LOGITS))
