"""A conversation keeps its turns, and a pipe gets answers on stdout and nothing else."""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import pytest

from octavo.engine.llm_engine import LLMEngine
from octavo.engine.mock import MockEngine
from octavo.engine.outputs import ModelInfo
from octavo.entrypoints import chat, complete
from octavo.errors import InvalidRequestError
from octavo.llm import LLM
from octavo.types import SamplingParams
from tests.engine.frontend import ids_of, make_info

PARAMS = SamplingParams(temperature=0, max_tokens=50)


@pytest.fixture
def info(tmp_path: Path) -> ModelInfo:
    return make_info(tmp_path)


def _prompt(core: MockEngine) -> str:
    return bytes(i for i in core.added[-1].prompt if i < 256).decode()


def test_a_conversation_carries_its_turns(info: ModelInfo) -> None:
    core, out = MockEngine(lambda r: ids_of(f"answer {len(r.prompt)}")), io.StringIO()
    conversation = chat.Conversation(LLM.from_engine(LLMEngine(core, info)), PARAMS, out, "be brief")
    conversation.say("one")
    first = out.getvalue().strip()
    conversation.say("two")
    assert _prompt(core) == f"system:be briefuser:oneassistant:{first}user:twoassistant:"
    conversation.reset()
    conversation.say("three")
    assert _prompt(core) == "system:be briefuser:threeassistant:"
    assert "output tokens" in conversation.stats


def test_a_wrong_message_leaves_the_conversation_as_it_was(info: ModelInfo) -> None:
    core = MockEngine(lambda _: ids_of("ok"))
    conversation = chat.Conversation(LLM.from_engine(LLMEngine(core, info)), PARAMS, io.StringIO())
    with pytest.raises(InvalidRequestError, match="surrogate"):
        conversation.say("\ud800")
    assert conversation.turns == []


def _run(command: Any, info: ModelInfo, arguments: list[str], stdin: str, monkeypatch: pytest.MonkeyPatch) -> int:
    core = MockEngine(lambda r: ids_of(f"[{len(r.prompt)}]"))

    def build(_: Any) -> Any:
        return core, info

    monkeypatch.setattr(command, "build_engine", build)
    monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return int(command.run(parser.parse_args(arguments)))


def test_each_line_of_a_pipe_is_a_turn(
    info: ModelInfo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(chat, info, [], "hi\n\nyou\n", monkeypatch) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert len(lines) == 2 and all(line.startswith("[") for line in lines)
    assert captured.err == ""


def test_quick_answers_one_message(
    info: ModelInfo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(chat, info, ["--quick", "hi", "--stats"], "", monkeypatch) == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    assert "tok/s" in captured.err


def test_complete_continues_a_prompt_or_stdin(
    info: ModelInfo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(complete, info, ["abc", "--echo"], "", monkeypatch) == 0
    assert capsys.readouterr().out == "abc[3]\n"
    assert _run(complete, info, [], "abcd", monkeypatch) == 0
    assert capsys.readouterr().out == "[4]\n"


def test_complete_tells_what_is_wrong(
    info: ModelInfo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(complete, info, [""], "", monkeypatch) == 1
    assert "the prompt is empty" in capsys.readouterr().err
