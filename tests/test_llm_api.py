"""The offline API over a tiny random model: order, isolation, determinism, logprobs and beams against transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from octavo import LLM, BeamSearchParams, SamplingParams
from octavo.engine.outputs import RequestOutput
from octavo.errors import ContextLengthError, InvalidRequestError, RequestFailedError

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
RNG = np.random.default_rng(5)
PROMPTS = [RNG.integers(0, 256, RNG.integers(3, 60)).tolist() for _ in range(44)]


@pytest.fixture(scope="module")
def llm(llama_folder: Path) -> Iterator[LLM]:
    with LLM(str(llama_folder), threads=1, max_model_len=256, max_logprobs=-1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def reference(llama_folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(llama_folder).eval()


def _tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def _generate(llm: LLM, prompts: Any, params: Any = GREEDY) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False)


def _log_softmax(reference: Any, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return reference(torch.tensor([ids])).logits[0].double().log_softmax(-1).numpy()


def test_a_batch_equals_each_prompt_alone(llm: LLM) -> None:
    alone = [_tokens(_generate(llm, [prompt]))[0] for prompt in PROMPTS[:16]]
    assert _tokens(_generate(llm, PROMPTS[:16])) == alone


@pytest.mark.parametrize("size", [2, 8, 44])
def test_tokens_and_logprobs_do_not_depend_on_the_batch(llm: LLM, size: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=3, ignore_eos=True)
    llm.reset_prefix_cache()
    (alone,) = _generate(llm, [PROMPTS[0]], params)
    llm.reset_prefix_cache()
    together = _generate(llm, PROMPTS[:size], params)[0]
    assert together.outputs[0].token_ids == alone.outputs[0].token_ids
    for mine, other in zip(together.outputs[0].logprobs, alone.outputs[0].logprobs, strict=True):
        assert mine.keys() == other.keys()
        # the bound promised on torch; native kernels are to make it exact
        assert all(abs(mine[token].logprob - other[token].logprob) <= 1e-4 for token in mine)


def test_order_in_a_batch_does_not_matter(llm: LLM) -> None:
    penalised = SamplingParams(temperature=0, repetition_penalty=2.0, max_tokens=10, ignore_eos=True)
    seeded = SamplingParams(temperature=1.0, seed=99, max_tokens=10, ignore_eos=True)
    solo = [_tokens(_generate(llm, [p], one))[0] for p, one in ((PROMPTS[0], penalised), (PROMPTS[1], seeded))]
    assert _tokens(_generate(llm, PROMPTS[:2], [penalised, seeded])) == solo
    assert _tokens(_generate(llm, PROMPTS[1::-1], [seeded, penalised])) == solo[::-1]


def test_a_hit_gives_the_same_output_and_is_reported(llm: LLM) -> None:
    prompt = (PROMPTS[3] * 20)[:100]
    llm.reset_prefix_cache()
    (miss,) = _generate(llm, [prompt])
    (hit,) = _generate(llm, [prompt])
    assert (miss.num_cached_tokens, hit.num_cached_tokens) == (0, 96)
    assert _tokens([hit]) == _tokens([miss])
    (longer,) = _generate(llm, [[*prompt, 1, 2, 3]])
    assert longer.num_cached_tokens == 96


def test_samples_differ_and_are_the_same_again(llm: LLM) -> None:
    params = SamplingParams(n=4, seed=7, temperature=1.0, max_tokens=10, ignore_eos=True)
    first, again = (_generate(llm, [PROMPTS[0]], params)[0] for _ in range(2))
    texts = [tuple(one.token_ids) for one in first.outputs]
    assert len(set(texts)) == 4
    assert texts == [tuple(one.token_ids) for one in again.outputs]
    assert first.seed == 7


def test_a_drawn_seed_is_reported_and_repeats_the_output(llm: LLM) -> None:
    (first,) = _generate(llm, [PROMPTS[0]], SamplingParams(temperature=1.0, max_tokens=10))
    assert first.seed is not None
    (again,) = _generate(llm, [PROMPTS[0]], SamplingParams(temperature=1.0, max_tokens=10, seed=first.seed))
    assert _tokens([again]) == _tokens([first])


def test_one_bad_request_fails_alone(llm: LLM) -> None:
    outputs = _generate(llm, [[1] * 300, PROMPTS[0], [999], "fine"])
    assert [output.error is None for output in outputs] == [False, True, False, True]
    assert outputs[0].error is not None and "context is 256 tokens" in outputs[0].error.message
    assert outputs[2].error is not None and outputs[2].error.param == "prompt"
    assert len(outputs[1].outputs[0].token_ids) == 12


def test_the_only_prompt_raises_its_error(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="no token id"):
        _generate(llm, [-1])
    with pytest.raises(InvalidRequestError, match="2 sampling_params for 1 prompts"):
        _generate(llm, "x", [GREEDY, GREEDY])
    with pytest.raises(ContextLengthError, match="max_tokens=300 does not fit"):
        next(llm.stream("x", SamplingParams(max_tokens=300)))


def test_a_stream_equals_generate_and_may_be_left(llm: LLM) -> None:
    (whole,) = _generate(llm, ["Hello"])
    deltas = [output.outputs[0] for output in llm.stream("Hello", GREEDY)]
    assert "".join(delta.text for delta in deltas) == whole.outputs[0].text
    assert [token for delta in deltas for token in delta.token_ids] == whole.outputs[0].token_ids
    stream = llm.stream("Hello", GREEDY)
    next(stream)
    stream.close()
    assert llm.get_metrics()["blocks_used"] == 0
    assert _tokens(_generate(llm, ["Hello"])) == _tokens([whole])


def test_chat_renders_the_model_s_template(llm: LLM) -> None:
    (output,) = llm.chat([{"role": "user", "content": " hi "}], GREEDY, use_tqdm=False)
    assert llm.get_tokenizer().decode(output.prompt_token_ids, skip_special_tokens=False) == (
        "<|start|>user\nhi<|end|>\n<|start|>assistant\n"
    )
    assert output.prompt_token_ids[0] == 258


def test_logprobs_and_ranks_equal_transformers(llm: LLM, reference: Any) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=4, prompt_logprobs=2, ignore_eos=True)
    (output,) = _generate(llm, [PROMPTS[0]], params)
    ids = [*output.prompt_token_ids, *output.outputs[0].token_ids]
    expected, count = _log_softmax(reference, ids), len(output.prompt_token_ids)
    assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == count
    rows = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
    for position, found in enumerate(rows, 1):
        row = expected[position - 1]
        assert ids[position] in found
        assert {token for token, entry in found.items() if entry.rank <= 2} >= set(np.argsort(-row)[:2].tolist())
        for token, entry in found.items():
            assert entry.logprob == pytest.approx(row[token], abs=1e-4)
            assert entry.rank == 1 + int((row > row[token]).sum())


def test_all_logprobs_of_the_vocabulary_can_be_had(llm: LLM) -> None:
    (output,) = _generate(llm, [PROMPTS[0]], SamplingParams(temperature=0, max_tokens=1, logprobs=-1))
    assert sorted(output.outputs[0].logprobs[0]) == list(range(260))


def test_beam_search_keeps_the_best_by_the_reference_s_probabilities(llm: LLM, reference: Any) -> None:
    width, length = 3, 6
    (found,) = llm.beam_search([PROMPTS[0]], BeamSearchParams(beam_width=width, max_tokens=length, ignore_eos=True))
    beams: list[tuple[list[int], float]] = [([], 0.0)]
    for _ in range(length):  # the definition, on transformers' logits
        grown = []
        for tokens, score in beams:
            row = _log_softmax(reference, PROMPTS[0] + tokens)[-1]
            grown += [([*tokens, int(token)], score + row[token]) for token in np.argsort(-row)[: 2 * width]]
        beams = sorted(grown, key=lambda beam: -beam[1])[:width]
    assert [list(beam.tokens) for beam in found] == [tokens for tokens, _ in beams]
    np.testing.assert_allclose([beam.score for beam in found], [score / length for _, score in beams], atol=1e-4)


def test_a_row_that_breaks_the_forward_fails_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = llm.engine.core.executor.worker.runner
    forward = runner.model.forward

    def breaks(batch: Any) -> Any:
        if (batch.input_ids == 13).any():
            raise RuntimeError("unlucky token")
        return forward(batch)

    good = [prompt for prompt in PROMPTS if 13 not in prompt][:3]
    calm = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, bad_words=["\r"])
    expected = _tokens(_generate(llm, good, calm))
    llm.reset_prefix_cache()
    monkeypatch.setattr(runner.model, "forward", breaks)
    outputs = _generate(llm, [good[0], [13] * 40, *good[1:]], calm)
    assert _tokens([outputs[0], *outputs[2:]]) == expected
    assert outputs[1].error is not None and "unlucky token" in outputs[1].error.message
    monkeypatch.undo()
    (again,) = _generate(llm, [[13] * 40])
    assert again.num_cached_tokens == 0
    assert llm.get_metrics()["blocks_used"] == 0


def test_logits_that_are_not_numbers_fail_their_request_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = llm.engine.core.executor.worker.runner
    logits = runner.model.logits
    monkeypatch.setattr(
        runner.model,
        "logits",
        lambda hidden: logits(hidden) * torch.where(torch.arange(len(hidden)) == 0, torch.nan, 1.0)[:, None],
    )
    first, second = _generate(llm, [PROMPTS[0], PROMPTS[1]], SamplingParams(temperature=0, max_tokens=1))
    assert first.error is not None
    assert second.error is None
    with pytest.raises(RequestFailedError):
        _generate(llm, PROMPTS[0])


class Shout:
    """Not a CustomProcessor."""


def test_a_wrong_logits_processor_is_refused(llama_folder: Path) -> None:
    with pytest.raises(ValueError, match="is no CustomProcessor"):
        LLM(str(llama_folder), logits_processors=["tests.test_llm_api:Shout"], threads=1)
