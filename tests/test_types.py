"""Request parameters: every field has a range, errors name the field, values are normalised and wire-safe."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError
from octavo.types import BeamSearchParams, OutputKind, RepetitionDetection, SamplingParams, verify

NAN, INF, HUGE = math.nan, math.inf, 10**5000

NUMBERS: dict[str, tuple[list[Any], list[Any]]] = {
    # field: (allowed, refused)
    "n": ([1, 2, 64], [0, -1, 65, 10_000_000, 1.0, True, "2", None]),
    "presence_penalty": ([-2, 2.0, 0.5], [-2.1, 2.1, NAN, INF, "1", None, True]),
    "frequency_penalty": ([-2, 2.0, 0.5], [-2.1, 2.1, NAN, -INF, "1", None]),
    "repetition_penalty": ([0.01, 1, 100.0], [0, -1, 101, NAN, INF, None]),
    "temperature": ([0, 1e-9, 0.7, 2], [-0.1, 2.1, NAN, INF, "hot", None, True, HUGE]),
    "top_p": ([1e-9, 0.5, 1], [0, -0.1, 1.1, NAN, None, "0.5"]),
    "top_k": ([-1, 0, 1, 10**6], [-2, 1.5, 2**31, NAN, None, True]),
    "min_p": ([0, 0.5, 1], [-0.1, 1.1, NAN, None]),
    "seed": ([None, -1, 0, 2**63 - 1, -(2**63)], [2**63, 1.5, "1", False, HUGE]),
    "max_tokens": ([None, 1, 10**6], [0, -1, 1.5, True, "5", HUGE]),
    "min_tokens": ([0, 16], [-1, 17, 1.5, None]),
    "logprobs": ([None, 0, 20, -1], [-2, 1.5, True, "3"]),
    "prompt_logprobs": ([None, 0, 20, -1], [-2, 1.5, True]),
    "stream_interval": ([1, 100], [0, -1, 1.5, None]),
    "prompt_logprob_start": ([0], [-1, 3, 1.5, None]),  # 3 starts nothing without prompt_logprobs
}
FLAGS = [
    *("ignore_eos", "flat_logprobs", "detokenize", "skip_special_tokens"),
    *("spaces_between_special_tokens", "include_stop_str_in_output"),
]


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, (good, _) in NUMBERS.items() for value in good])
def test_numbers_in_range_are_taken(field: str, value: Any) -> None:
    SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param(field, value, id=f"{field}-{str(value)[:20] if value is not HUGE else 'huge'}")
        for field, (_, bad) in NUMBERS.items()
        for value in bad
    ],
)
def test_numbers_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    """B1, B2, B9, B10."""
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field
    assert str(caught.value).startswith(f"{field}=")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("field", FLAGS)
@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_flags_are_booleans(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="give true or false") as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("given", "param", "message"),
    [
        ({"stop": ["a", ""]}, "stop[1]", "non-empty strings"),
        ({"stop": [1]}, "stop[0]", "non-empty strings"),
        ({"stop": 5}, "stop", "non-empty strings"),
        ({"stop": ["x"] * 17}, "stop", "has 17 entries: give at most 16"),
        ({"stop": "x" * 257}, "stop[0]", "at most 256 characters"),
        ({"stop": "\ud83d"}, "stop[0]", "lone surrogate"),
        ({"stop": "x", "detokenize": False}, "stop", "stop strings need text"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "integers from 0"),
        ({"stop_token_ids": [1.0]}, "stop_token_ids", "integers from 0"),
        ({"stop_token_ids": "12"}, "stop_token_ids", "a list of"),
        ({"stop_token_ids": 12}, "stop_token_ids", "a list of"),
        ({"stop_token_ids": range(257)}, "stop_token_ids", "has 257 token ids"),
        ({"bad_words": [""]}, "bad_words[0]", "non-empty"),
        ({"bad_words": ["x"] * 129}, "bad_words", "has 129 entries"),
        ({"logit_bias": {"AI": 1}}, "logit_bias", "has the key 'AI'"),
        ({"logit_bias": {-1: 1}}, "logit_bias", "has the key -1"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "has the key '-1'"),
        ({"logit_bias": {1.5: 1}}, "logit_bias", "has the key 1.5"),
        ({"logit_bias": {True: 1}}, "logit_bias", "has the key True"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "has the key '999"),
        ({"logit_bias": {"5": 1, 5: 2}}, "logit_bias", "token id 5 twice"),
        ({"logit_bias": {5: NAN}}, "logit_bias[5]", "nan"),
        ({"logit_bias": {5: "1"}}, "logit_bias[5]", "'1'"),
        ({"logit_bias": {5: HUGE}}, "logit_bias[5]", "more than 256 bits"),
        ({"logit_bias": [1]}, "logit_bias", "a map from token id"),
        ({"logit_bias": dict.fromkeys(range(4097), 1)}, "logit_bias", "has 4097 entries"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "has 0 token ids: give 1"),
        ({"allowed_token_ids": [-3]}, "allowed_token_ids", "integers from 0"),
        ({"trace_decode_token_ids": []}, "trace_decode_token_ids", "has 0 token ids"),
        ({"logprob_token_ids": range(129)}, "logprob_token_ids", "has 129 token ids"),
        ({"logprob_token_ids": [1, 2], "logprobs": 3}, "logprobs", "length of logprob_token_ids, which is 2"),
        ({"prompt_logprob_token_ids": []}, "prompt_logprob_token_ids", "non-empty"),
        ({"prompt_logprob_token_ids": [[1], [1, 2]]}, "prompt_logprob_token_ids", "different lengths"),
        ({"prompt_logprob_token_ids": [[]]}, "prompt_logprob_token_ids", "has 0 token ids"),
        ({"prompt_logprob_token_ids": [[1]], "prompt_logprobs": 2}, "prompt_logprobs", "which is 1"),
        ({"prompt_logprobs": 1, "skip_reading_prefix_cache": False}, "skip_reading_prefix_cache", "contradicts"),
        ({"skip_reading_prefix_cache": 1}, "skip_reading_prefix_cache", "true or false"),
        ({"temperature": 0, "n": 2}, "n", "2 equal answers"),
        ({"temperature": 1e-9, "n": 2}, "n", "2 equal answers"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "at most max_tokens, which is 4"),
        ({"output_kind": "all"}, "output_kind", "one of cumulative, delta, final_only"),
        ({"output_kind": 1}, "output_kind", "one of"),
        ({"repetition_detection": {"max_pattern_size": 3}}, "repetition_detection", "a RepetitionDetection"),
        ({"extra_args": []}, "extra_args", "a map with string keys"),
        ({"extra_args": {"a": 2**64}}, "extra_args.a", "18446744073709551615"),
        ({"extra_args": {"a": [NAN]}}, "extra_args.a", "finite"),
        ({"extra_args": {"a": {1: 2}}}, "extra_args", "keys are strings"),
        ({"extra_args": {"a": (1,)}}, "extra_args.a", "JSON values"),
        ({"extra_args": {"a": object()}}, "extra_args.a", "JSON values"),
        ({"extra_args": {"a": "x" * 70000, "b": 1}}, "extra_args", "too large"),
        ({"extra_args": {"a": list(range(5000))}}, "extra_args", "too large"),
    ],
    ids=lambda value: str(value)[:40] if not isinstance(value, dict) else ",".join(value),
)
def test_wrong_values_are_refused_by_name(given: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**given)
    assert caught.value.param == param
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


def test_deeply_nested_extra_args_are_refused() -> None:
    nested: dict[str, Any] = {}
    for _ in range(10_000):
        nested = {"a": nested}
    with pytest.raises(InvalidRequestError, match="too large"):
        SamplingParams(extra_args=nested)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"stop": "x"}, {"stop": ("x",)}),
        ({"stop": None}, {"stop": ()}),
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"stop_token_ids": np.array([3, 4])}, {"stop_token_ids": (3, 4)}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": np.int64(7)}, {"top_k": 7}),
        ({"seed": -1}, {"seed": None}),
        ({"temperature": 1}, {"temperature": 1.0}),
        ({"temperature": np.float32(0.5)}, {"temperature": 0.5}),
        ({"temperature": 0.009}, {"temperature": 0.01}),
        (
            {"temperature": 9e-6, "top_p": 0.5, "top_k": 3, "min_p": 0.1},
            {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0},
        ),
        ({"logit_bias": {"5": 1000, 6: -1000, 7: 1}}, {"logit_bias": {5: 100.0, 6: -100.0, 7: 1.0}}),
        ({"bad_words": "x"}, {"bad_words": ("x",)}),
        ({"allowed_token_ids": [1, 1]}, {"allowed_token_ids": (1, 1)}),
        ({"prompt_logprob_token_ids": [[1, 2], [3, 4]]}, {"prompt_logprob_token_ids": ((1, 2), (3, 4))}),
        ({"prompt_logprobs": 1}, {"skip_reading_prefix_cache": True}),
        ({"output_kind": "delta"}, {"output_kind": OutputKind.DELTA}),
        ({}, {"skip_reading_prefix_cache": None}),
    ],
    ids=str,
)
def test_values_are_normalised(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    params = msgspec.structs.asdict(SamplingParams(**given))
    for field, value in wanted.items():
        assert params[field] == value
        assert type(params[field]) in (type(value), float, int)


FULL = SamplingParams(
    n=3,
    presence_penalty=0.1,
    frequency_penalty=0.2,
    repetition_penalty=1.1,
    temperature=0.3,
    top_p=0.9,
    top_k=7,
    min_p=0.1,
    seed=-5,
    stop=["a", "b"],
    stop_token_ids=[1],
    ignore_eos=True,
    max_tokens=None,
    min_tokens=2,
    logprobs=2,
    prompt_logprobs=2,
    prompt_logprob_token_ids=[[1, 2]],
    prompt_logprob_start=1,
    logprob_token_ids=[3, 4],
    flat_logprobs=True,
    detokenize=True,
    skip_special_tokens=False,
    spaces_between_special_tokens=False,
    include_stop_str_in_output=True,
    output_kind=OutputKind.DELTA,
    stream_interval=3,
    logit_bias={5: 1.5},
    allowed_token_ids=[1, 5],
    bad_words=["no"],
    extra_args={"a": [1, {"b": None, "c": 2**64 - 1}], "d": 0.5, "e": True},
    skip_reading_prefix_cache=True,
    repetition_detection=RepetitionDetection(max_pattern_size=8, min_pattern_size=2, min_count=4),
    trace_decode_token_ids=[9, 8],
)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0), SamplingParams(seed=-1), FULL])
def test_params_survive_the_wire(params: SamplingParams) -> None:
    data = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(data, type=SamplingParams) == params


def test_the_full_example_sets_every_field() -> None:
    default = msgspec.structs.asdict(SamplingParams())
    same = {name for name, value in msgspec.structs.asdict(FULL).items() if value == default[name]}
    assert same == {"detokenize"}  # stop strings need it


def test_hostile_wire_bytes_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="top_p=7.0 is not allowed"):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"top_p": 7.0}), type=SamplingParams)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(SamplingParams.__struct_fields__), JSON)
def test_any_value_is_taken_or_refused_and_what_is_taken_survives_the_wire(field: str, value: Any) -> None:
    try:
        params = SamplingParams(**{field: value})
    except InvalidRequestError as error:
        assert error.param is not None
        assert error.param.startswith(field)
        return
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


@pytest.mark.parametrize(
    ("given", "param", "message"),
    [
        ({"logit_bias": {101: 1}}, "logit_bias", "has token id 101: the model's ids run from 0 to 99"),
        ({"stop_token_ids": [100]}, "stop_token_ids", "token id 100"),
        ({"allowed_token_ids": [5, 100]}, "allowed_token_ids", "token id 100"),
        ({"logprob_token_ids": [100]}, "logprob_token_ids", "token id 100"),
        ({"prompt_logprob_token_ids": [[1], [100]]}, "prompt_logprob_token_ids", "token id 100"),
        ({"logprobs": 21}, "logprobs", "logprobs=21 is above the limit of 20"),
        ({"logprobs": -1}, "logprobs", "-1 (the whole vocabulary, 100) is above the limit of 20"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "above the limit"),
        ({"trace_decode_token_ids": [1]}, "trace_decode_token_ids", "start with enable_trace_replay"),
        ({"prompt_logprobs": 1, "prompt_logprob_start": 8}, "prompt_logprob_start", "from 0 to 7"),
        ({"prompt_logprob_token_ids": [[1]] * 3}, "prompt_logprob_token_ids", "has 3 rows: give 1 row"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_request_that_does_not_suit_the_model_is_refused(given: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        verify(SamplingParams(**given), vocab_size=100, num_prompt_tokens=8)
    assert caught.value.param == param
    assert message in str(caught.value)


def test_a_request_that_suits_the_model_passes() -> None:
    verify(SamplingParams(logit_bias={99: 1}, stop_token_ids=[99], logprobs=20, prompt_logprobs=0), vocab_size=100)
    verify(SamplingParams(logprobs=-1), vocab_size=100, max_logprobs=-1)
    verify(SamplingParams(logprobs=-1), vocab_size=100, max_logprobs=100)
    verify(SamplingParams(trace_decode_token_ids=[1]), vocab_size=100, allow_trace=True)
    for rows in (1, 5):
        params = SamplingParams(prompt_logprob_token_ids=[[1]] * rows, prompt_logprob_start=3)
        verify(params, vocab_size=100, num_prompt_tokens=8)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"max_pattern_size": 0}, "max_pattern_size"),
        ({"max_pattern_size": 3, "min_pattern_size": 4}, "min_pattern_size"),
        ({"max_pattern_size": 3, "min_count": 1}, "min_count"),
        ({"max_pattern_size": 10**6}, "max_pattern_size"),
        ({"max_pattern_size": 2.0}, "max_pattern_size"),
    ],
)
def test_repetition_detection_has_ranges(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        RepetitionDetection(**given)
    assert caught.value.param == f"repetition_detection.{field}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("beam_width", value) for value in (0, 65, True, 1.5)),
        *(("max_tokens", value) for value in (0, None)),
        *(("temperature", value) for value in (-1, NAN, 3)),
        *(("length_penalty", value) for value in (NAN, 11, "1")),
        *((name, 1) for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")),
    ],
)
def test_beam_search_fields_have_ranges(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, field: value})
    assert caught.value.param == field
