"""Batch files: each line gets its answer or its error, and an interrupted run goes on."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tqdm import tqdm

from octavo.engine.llm_engine import LLMEngine
from octavo.engine.messages import EngineOutput, TokenLogprobs
from octavo.engine.mock import MockEngine
from octavo.engine.outputs import ModelInfo
from octavo.entrypoints.run_batch import BatchRun, answered_ids
from tests.engine.frontend import ids_of, make_info

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return make_info(tmp_path_factory.mktemp("mock"))


class _WithLogprobs(MockEngine):
    """Adds logprobs to every token: itself, and the next id."""

    def step(self) -> list[EngineOutput]:
        outputs = super().step()
        for output in outputs:
            output.logprobs = [TokenLogprobs([t, t + 1], [-0.5, float("-inf")], [1, 2]) for t in output.tokens]
        return outputs


def _line(custom_id: str, url: str, **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def _lines(texts: list[str]) -> Iterator[tuple[int, bytes]]:
    return ((number, text.encode() + b"\n") for number, text in enumerate(texts, 1))


def _run(info: ModelInfo, texts: list[str], done: set[str] | None = None, inflight: int = 4) -> dict[Any, Any]:
    out = io.BytesIO()
    engine = LLMEngine(_WithLogprobs(lambda r: ids_of("answer"), chunk=2), info)
    batch = BatchRun(engine, out, max_inflight=inflight, done=done or set())
    with tqdm(disable=True) as bar:
        batch.run(_lines(texts), bar)
    entries = [json.loads(raw) for raw in out.getvalue().splitlines()]
    return {entry["custom_id"]: entry for entry in entries}


def _error(entry: dict[str, Any]) -> tuple[int, str, str | None]:
    error = entry["response"]["body"]["error"]
    return entry["response"]["status_code"], error["message"], error["param"]


def test_chat_and_completions_get_their_bodies(info: ModelInfo) -> None:
    found = _run(
        info,
        [
            _line("a", CHAT, messages=[{"role": "user", "content": "hi"}], max_completion_tokens=3, temperature=0),
            _line("b", COMPLETIONS, prompt=["x", "yy"], max_tokens=50, temperature=0),
        ],
    )
    chat = found["a"]["response"]["body"]
    assert (chat["object"], chat["choices"][0]["message"]["content"]) == ("chat.completion", "ans")
    assert (chat["choices"][0]["finish_reason"], chat["usage"]["completion_tokens"]) == ("length", 3)
    text = found["b"]["response"]["body"]
    assert [(c["index"], c["text"], c["finish_reason"]) for c in text["choices"]] == [
        (0, "answer", "stop"),
        (1, "answer", "stop"),
    ]
    assert text["usage"]["prompt_tokens"] == 3
    assert found["a"]["response"]["status_code"] == 200


def test_logprobs_have_openai_s_shapes_and_are_finite(info: ModelInfo) -> None:
    found = _run(
        info,
        [
            _line("a", CHAT, messages=[{"role": "user", "content": "hi"}], max_tokens=2, logprobs=True, top_logprobs=1),
            _line("b", COMPLETIONS, prompt="x", max_tokens=2, logprobs=1),
        ],
    )
    (first, _) = found["a"]["response"]["body"]["choices"][0]["logprobs"]["content"]
    assert (first["token"], first["logprob"], first["bytes"]) == ("a", -0.5, [97])
    assert [top["token"] for top in first["top_logprobs"]] == ["a"]
    legacy = found["b"]["response"]["body"]["choices"][0]["logprobs"]
    assert (legacy["tokens"], legacy["token_logprobs"], legacy["text_offset"]) == (["a", "n"], [-0.5, -0.5], [0, 1])
    assert legacy["top_logprobs"][0] == {"a": -0.5, "b": -9999.0}


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"prompt": "x", "tools": [{"type": "function"}]}, "tools", "not supported yet"),
        ({"prompt": "x", "stream": True}, "stream", "not supported yet"),
        ({"prompt": "x", "response_format": {"type": "json_object"}}, "response_format", "not supported yet"),
        ({"prompt": "x", "logit_bias": {"AI": 1}}, "logit_bias", "'AI'"),
        ({"prompt": "x", "temperature": "hot"}, "temperature", "hot"),
        ({"prompt": [-1]}, "prompt", "no token id"),
        ({"prompt": ["x", 1]}, "prompt", "mixes"),
        ({}, "prompt", "prompt must be"),
    ],
)
def test_a_body_that_cannot_be_honoured_is_a_400(info: ModelInfo, body: Any, param: str, message: str) -> None:
    found = _run(info, [_line("bad", COMPLETIONS, **body), _line("good", COMPLETIONS, prompt="x")])
    status, text, named = _error(found["bad"])
    assert (status, named) == (400, param)
    assert message in text
    assert found["good"]["response"]["status_code"] == 200


def test_unknown_fields_are_reported_and_null_means_absent(info: ModelInfo) -> None:
    found = _run(info, [_line("a", COMPLETIONS, prompt="x", temperature=None, tools=None, frobnicate=1)])
    assert found["a"]["response"]["body"]["warnings"] == ["unknown field 'frobnicate' has no effect"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 2 is no JSON"),
        ("[1]", "line 2 is no JSON object"),
        ('{"method": "POST"}', "line 2 has no custom_id"),
        (_line("b", "/v1/embeddings"), "line 2: url must be one of"),
        (_line("a", COMPLETIONS, prompt="x"), "line 2: custom_id 'a' was used before"),
        ('{"custom_id": "b", "url": "/v1/completions"}', "line 2 has no body"),
    ],
)
def test_a_malformed_line_is_an_error_line_with_its_number(info: ModelInfo, text: str, message: str) -> None:
    out = io.BytesIO()
    batch = BatchRun(LLMEngine(MockEngine(lambda _: []), info), out, max_inflight=1, done=set())
    with tqdm(disable=True) as bar:
        batch.run(_lines([_line("a", COMPLETIONS, prompt="x"), text]), bar)
    errors = [json.loads(raw)["error"] for raw in out.getvalue().splitlines()]
    assert [message in error["message"] for error in errors if error] == [True]
    assert (batch.num_ok, batch.num_failed) == (1, 1)


def test_answered_requests_are_not_run_again(info: ModelInfo, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    texts = [_line(name, COMPLETIONS, prompt="x") for name in "abc"]
    answer = json.dumps({"custom_id": "a", "response": {"status_code": 200}, "error": None})
    path.write_text(answer + "\n" + '{"custom_id": "b", "resp')
    done = answered_ids(path)
    assert done == {"a"}
    assert path.read_text() == answer + "\n"  # the line that was cut off is gone
    assert set(_run(info, texts, done)) == {"b", "c"}


def test_requests_in_flight_are_bounded(info: ModelInfo) -> None:
    most = 0

    class Watching(MockEngine):
        def step(self) -> list[EngineOutput]:
            nonlocal most
            most = max(most, len(self._replays))
            return super().step()

    batch = BatchRun(LLMEngine(Watching(lambda _: ids_of("x")), info), io.BytesIO(), max_inflight=3, done=set())
    with tqdm(disable=True) as bar:
        batch.run(_lines([_line(str(i), COMPLETIONS, prompt="x") for i in range(20)]), bar)
    assert (most, batch.num_ok) == (3, 20)
