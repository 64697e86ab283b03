"""Talk to a model: a conversation in the terminal, or one turn per line of a pipe."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TextIO

from octavo.config.cli import add_engine_arguments, engine_config_from_args
from octavo.engine.build import build_engine
from octavo.engine.llm_engine import LLMEngine
from octavo.engine.outputs import RequestOutput
from octavo.entrypoints.sampling_arguments import add_sampling_arguments, sampling_params_from_args
from octavo.errors import InvalidRequestError, TemplateError
from octavo.llm import LLM
from octavo.log import configure_logging
from octavo.types import FinishReason, SamplingParams

__all__ = ["Conversation", "add_arguments", "run"]

HELP = """\
/reset        forget the conversation
/system TEXT  set the system message and forget the conversation
/stats        show the speed of the last answer
/help         show this
/exit         leave (or Ctrl-D); Ctrl-C stops an answer"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `octavo chat`."""
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("-q", "--quick", metavar="TEXT", help="answer this one message and leave")
    parser.add_argument("--stats", action="store_true", help="show the speed of each answer on stderr")
    add_sampling_arguments(parser)
    add_engine_arguments(parser)


@dataclass(slots=True)
class Conversation:
    """The turns so far, and the last answer's figures."""

    llm: LLM
    params: SamplingParams
    out: TextIO
    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)
    stats: str = "no answer yet"

    def say(self, text: str) -> None:
        """Answer a user's message on `out`; Ctrl-C stops the answer and keeps what there is of it.

        Raises InvalidRequestError or TemplateError; the conversation is then as before.
        """
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        turns = [*self.turns, {"role": "user", "content": text}]
        ids = self.llm.engine.inputs.render([*system, *turns])
        answer: list[str] = []
        begin, first, count, finish = time.perf_counter(), 0.0, 0, None
        stream: Iterator[RequestOutput] = self.llm.stream({"prompt_token_ids": ids}, self.params)
        try:
            for output in stream:
                first = first or time.perf_counter()
                for one in output.outputs:
                    count += len(one.token_ids)
                    finish = one.finish_reason
                    answer.append(one.text)
                    self.out.write(one.text)
                    self.out.flush()
        except KeyboardInterrupt:
            self.out.write(" [stopped]")
        self.out.write("\n")
        self.out.flush()
        self.turns = [*turns, {"role": "assistant", "content": "".join(answer)}]
        end = time.perf_counter()
        rate = (count - 1) / (end - first) if count > 1 else 0.0
        self.stats = (
            f"{len(ids)} prompt tokens, {count} output tokens, first after {1000 * (first - begin):.0f} ms, "
            f"then {rate:.1f} tok/s" + (", cut at the token limit" if finish is FinishReason.LENGTH else "")
        )

    def reset(self) -> None:
        """Forget all turns."""
        self.turns = []


def run(args: argparse.Namespace) -> int:
    """Chat until the input ends. Returns 0, or 1 when a piped turn could not be answered.

    Raises ModelNotFoundError, CheckpointError or ConfigError.
    """
    config = engine_config_from_args(args)
    configure_logging(config.observability.log_level)
    is_terminal = sys.stdin.isatty() and args.quick is None
    if is_terminal:
        print("loading...", end="\r", file=sys.stderr, flush=True)
    with LLM.from_engine(LLMEngine(*build_engine(config))) as llm:
        params = sampling_params_from_args(args, llm.get_default_sampling_params())
        conversation = Conversation(llm, params, sys.stdout, args.system)
        if args.quick is not None:
            return _answer(conversation, args.quick, args.stats)
        return _converse(conversation, args.stats) if is_terminal else _pipe(conversation, args.stats)


def _answer(conversation: Conversation, text: str, is_showing_stats: bool) -> int:
    """Answer one message; an error of the message is told on stderr. Returns 0, or 1 for an error."""
    try:
        conversation.say(text)
    except (InvalidRequestError, TemplateError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if is_showing_stats:
        print(f"({conversation.stats})", file=sys.stderr)
    return 0


def _pipe(conversation: Conversation, is_showing_stats: bool) -> int:
    """Answer each line of stdin as one turn."""
    status = 0
    for line in sys.stdin:
        if line.strip():
            status |= _answer(conversation, line.rstrip("\n"), is_showing_stats)
    return status


def _converse(conversation: Conversation, is_showing_stats: bool) -> int:
    """Talk with a person at a terminal."""
    _enable_line_editing()
    print(f"{conversation.llm.engine.info.model}: /help for commands, Ctrl-D to leave", file=sys.stderr)
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            print(file=sys.stderr)
            return 0
        except KeyboardInterrupt:
            print(file=sys.stderr)
            continue
        command, _, rest = text.partition(" ")
        match command:
            case "":
                continue
            case "/exit" | "/quit":
                return 0
            case "/help":
                print(HELP, file=sys.stderr)
            case "/reset":
                conversation.reset()
            case "/system":
                conversation.system = rest or None
                conversation.reset()
            case "/stats":
                print(conversation.stats, file=sys.stderr)
            case _ if command.startswith("/") and command[1:].isalpha():
                print(f"no command {command}; /help lists them", file=sys.stderr)
            case _:
                _answer(conversation, text, is_showing_stats)


def _enable_line_editing() -> None:
    """Use line editing and history where this Python has them."""
    try:
        import readline
    except ImportError:
        return
    readline.parse_and_bind("tab: self-insert")
