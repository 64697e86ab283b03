"""Text, stop strings, samples and kinds of output, over every chunking."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.engine.llm_engine import LLMEngine
from octavo.engine.messages import EngineOutput, EngineRequest, TokenLogprobs
from octavo.engine.mock import MockEngine
from octavo.engine.outputs import FlatLogprobs, ModelInfo, RequestOutput
from octavo.types import FinishReason, OutputKind, SamplingParams
from tests.engine.frontend import ids_of, make_info


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return make_info(tmp_path_factory.mktemp("mock"))


def _serve(info: ModelInfo, tokens: list[int], params: SamplingParams, chunk: int = 1) -> list[RequestOutput]:
    engine = LLMEngine(MockEngine(lambda _: tokens, chunk=chunk), info)
    engine.add_request("prompt", params)
    outputs = []
    while engine.has_unfinished:
        outputs += engine.step()
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    return outputs


def _params(kind: OutputKind, **fields: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=200, output_kind=kind, **fields)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(alphabet="ab🎉ď ", max_size=12),
    stop=st.lists(st.text(alphabet="ab🎉ď", min_size=1, max_size=3), max_size=2),
    chunk=st.integers(1, 5),
    interval=st.integers(1, 4),
    include=st.booleans(),
)
def test_every_kind_of_output_says_the_same(
    info: ModelInfo, text: str, stop: list[str], chunk: int, interval: int, include: bool
) -> None:
    tokens = ids_of(text)
    fields = {"stop": stop, "stream_interval": interval, "include_stop_str_in_output": include}
    runs = {kind: _serve(info, tokens, _params(kind, **fields), chunk) for kind in OutputKind}
    final = runs[OutputKind.FINAL_ONLY][-1].outputs[0]
    assert len(runs[OutputKind.FINAL_ONLY]) == 1
    last = runs[OutputKind.CUMULATIVE][-1].outputs[0]
    deltas = [output.outputs[0] for output in runs[OutputKind.DELTA]]
    assert "".join(delta.text for delta in deltas) == final.text == last.text
    assert [token for delta in deltas for token in delta.token_ids] == final.token_ids == last.token_ids
    matches = [(text.find(s) + len(s), text.find(s), s) for s in stop if s in text]
    if matches:
        end, start, matched = min(matches)
        assert (final.text, final.stop_reason) == (text[: end if include else start], matched)
    else:
        assert (final.text.removesuffix("<|end|>"), final.stop_reason) == (text, None)
    assert final.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("chunk", [1, 4, 20])
def test_a_stop_string_ends_the_request_in_the_engine_too(info: ModelInfo, chunk: int) -> None:
    core = MockEngine(lambda _: ids_of("ABCDEFGHIJKLMNOP"), chunk=chunk)
    engine = LLMEngine(core, info)
    engine.add_request("prompt", _params(OutputKind.DELTA, stop=["DEFGHIJ"]))
    outputs = []
    while engine.has_unfinished or core.has_work:
        outputs += engine.step()
    assert "".join(o.outputs[0].text for o in outputs) == "ABC"
    assert sum(o.finished for o in outputs) == 1
    last = outputs[-1].outputs[0]
    kept = [token for output in outputs for token in output.outputs[0].token_ids]
    assert kept == ids_of("ABCDEFGHIJ")
    assert last.num_discarded_tokens == (min(17, -(-10 // chunk) * chunk) - 10)
    assert bool(core.aborted) == (chunk < 17)


def test_streamed_text_never_shows_part_of_a_stop_string(info: ModelInfo) -> None:
    outputs = _serve(info, ids_of("The quick brown fox"), _params(OutputKind.DELTA, stop=["own fox"]))
    assert "".join(o.outputs[0].text for o in outputs) == "The quick br"


def test_an_emoji_split_over_tokens_is_one_delta(info: ModelInfo) -> None:
    outputs = _serve(info, ids_of("👨‍👩‍👧"), _params(OutputKind.DELTA))
    assert [o.outputs[0].text for o in outputs if o.outputs[0].text] == ["👨", "\u200d", "👩", "\u200d", "👧"]


def test_first_token_is_said_at_once_and_then_every_interval(info: ModelInfo) -> None:
    outputs = _serve(info, ids_of("abcdefgh"), _params(OutputKind.DELTA, stream_interval=3))
    assert [o.outputs[0].text for o in outputs] == ["a", "bcd", "efg", "h"]  # and the end


def test_samples_are_joined_in_one_output(info: ModelInfo) -> None:
    engine = LLMEngine(MockEngine(lambda r: ids_of("xyz"[r.sample_index] * (r.sample_index + 1))), info)
    engine.add_request("p", SamplingParams(n=3, seed=1, max_tokens=9, output_kind=OutputKind.FINAL_ONLY))
    outputs = []
    while engine.has_unfinished:
        outputs += engine.step()
    assert [[one.text for one in o.outputs] for o in outputs] == [["x", "yy", "zzz"]]


def test_token_limit_and_stop_token_are_reported(info: ModelInfo) -> None:
    (cut,) = _serve(info, ids_of("abcdef"), SamplingParams(max_tokens=3, output_kind=OutputKind.FINAL_ONLY))
    assert (cut.outputs[0].text, cut.outputs[0].finish_reason) == ("abc", FinishReason.LENGTH)
    params = _params(OutputKind.FINAL_ONLY, stop_token_ids=[99])
    (stopped,) = _serve(info, ids_of("abcdef"), params)
    assert (stopped.outputs[0].text, stopped.outputs[0].stop_reason) == ("ab", 99)
    assert stopped.outputs[0].token_ids == ids_of("abc")


def test_an_engine_error_is_told_and_ends_the_request(info: ModelInfo) -> None:
    def script(request: EngineRequest) -> list[int]:
        if request.prompt == ids_of("bad"):
            raise ValueError("broken row")
        return ids_of("ok")

    engine = LLMEngine(MockEngine(script), info)
    bad, good = (engine.add_request(p, _params(OutputKind.FINAL_ONLY)) for p in ("bad", "good"))
    done = {}
    while engine.has_unfinished:
        done |= {o.request_id: o for o in engine.step()}
    assert done[bad].error is not None and done[bad].error.message == "broken row"
    assert (done[good].outputs[0].text, done[good].error) == ("ok", None)


def test_an_aborted_request_gets_its_last_output(info: ModelInfo) -> None:
    engine = LLMEngine(MockEngine(lambda _: ids_of("abcdef")), info)
    name = engine.add_request("p", _params(OutputKind.CUMULATIVE))
    engine.step()
    engine.abort(name)
    outputs = engine.step()
    assert [(o.finished, o.outputs[0].text, o.outputs[0].finish_reason) for o in outputs] == [
        (True, "a", FinishReason.ABORT)
    ]
    assert not engine.has_unfinished


class _WithLogprobs(MockEngine):
    """Adds logprobs: the token itself, and one other."""

    def step(self) -> list[EngineOutput]:
        outputs = super().step()
        for output in outputs:
            output.logprobs = [TokenLogprobs([t, t + 1], [-0.5, -1.5], [1, 2]) for t in output.tokens]
        return outputs


def test_logprobs_have_an_entry_per_kept_token(info: ModelInfo) -> None:
    made = []
    for flat in (False, True):
        engine = LLMEngine(_WithLogprobs(lambda _: ids_of("abcXYZ"), chunk=6), info)
        params = _params(OutputKind.FINAL_ONLY, logprobs=1, stop=["cX"], flat_logprobs=flat)
        engine.add_request("p", params)
        (output,) = engine.step()
        made.append(output.outputs[0])
    plain, flat_one = made
    assert [list(position) for position in plain.logprobs] == [[97, 98], [98, 99], [99, 100], [88, 89]]
    assert plain.logprobs[0][97].decoded_token == "a"
    assert plain.cumulative_logprob == pytest.approx(-2.0)
    assert isinstance(flat_one.logprobs, FlatLogprobs)
    assert [flat_one.logprobs[i] for i in range(len(flat_one.logprobs))] == plain.logprobs


def test_five_hundred_streams_each_end_once(info: ModelInfo) -> None:
    engine = LLMEngine(MockEngine(lambda r: ids_of("x" * (len(r.prompt) % 17 + 1)), chunk=3), info)
    names = [engine.add_request("p" * (i % 23 + 1), _params(OutputKind.DELTA)) for i in range(500)]
    ends: dict[str, int] = {}
    while engine.has_unfinished:
        for output in engine.step():
            ends[output.request_id] = ends.get(output.request_id, 0) + output.finished
    assert ends == dict.fromkeys(names, 1)
