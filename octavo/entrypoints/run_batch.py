"""Run a file of requests in OpenAI's batch format, and resume where it was left.

Input lines have custom_id, method POST, url (/v1/chat/completions or /v1/completions) and body; output lines have id,
custom_id, response (status_code, request_id, body) and error.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from tqdm import tqdm

from octavo.config.cli import add_engine_arguments, engine_config_from_args
from octavo.engine.build import build_engine
from octavo.engine.llm_engine import LLMEngine
from octavo.engine.outputs import RequestOutput
from octavo.entrypoints import openai_bodies as bodies
from octavo.errors import InvalidRequestError, TemplateError
from octavo.log import configure_logging
from octavo.types import OutputKind, SamplingParams

__all__ = ["BatchRun", "add_arguments", "answered_ids", "run"]

MAX_LINE_BYTES = 16 << 20
URLS = ("/v1/chat/completions", "/v1/completions")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `octavo run-batch`."""
    parser.add_argument("input", type=Path, metavar="IN.jsonl", help="requests, one JSON object a line")
    parser.add_argument("output", type=Path, metavar="OUT.jsonl", help="answers, in the order they are done")
    parser.add_argument("--overwrite", action="store_true", help="begin anew instead of resuming an existing output")
    parser.add_argument("--max-inflight", type=int, metavar="N", help="requests given to the engine at once")
    add_engine_arguments(parser)


@dataclass(slots=True)
class _Line:
    """An accepted line: what is still to come for it."""

    custom_id: str
    url: str
    is_echo: bool
    warnings: list[str]
    request_ids: list[str]
    outputs: dict[str, RequestOutput] = field(default_factory=dict)


class BatchRun:
    """Feeds lines to an engine, a bounded number at a time, and writes each answer when it is done."""

    def __init__(self, engine: LLMEngine, out: BinaryIO, *, max_inflight: int, done: set[str]) -> None:
        self.engine = engine
        self.out = out
        self.max_inflight = max_inflight
        self.seen = set(done)
        self.done = done
        self.num_ok = self.num_failed = self.num_skipped = 0
        self.tokens_in = self.tokens_out = 0
        self._by_request: dict[str, _Line] = {}

    def run(self, lines: Iterator[tuple[int, bytes]], bar: Any) -> None:
        """Serve every line; `bar` is a tqdm bar."""
        begin = time.perf_counter()
        exhausted = False
        try:
            while not exhausted or self._by_request:
                while not exhausted and len(self._by_request) < self.max_inflight:
                    item = next(lines, None)
                    if item is None:
                        exhausted = True
                        break
                    self._accept(*item)
                    bar.total = self.num_ok + self.num_failed + self.num_skipped + len(self._lines())
                for output in self.engine.step():
                    self._take(output)
                seconds = time.perf_counter() - begin
                bar.n = self.num_ok + self.num_failed + self.num_skipped
                rates = f"in {self.tokens_in / seconds:.0f}, out {self.tokens_out / seconds:.0f} tok/s"
                bar.set_postfix_str(rates, refresh=False)
                bar.refresh() if bar.n == bar.total else bar.update(0)
        finally:
            for request_id in self._by_request:  # left over only when something ended the run early
                self.engine.abort(request_id)

    def _lines(self) -> set[int]:
        return {id(line) for line in self._by_request.values()}

    def _accept(self, number: int, raw: bytes) -> None:
        """Start a line, or write why it cannot be."""
        if not raw.strip():
            return
        custom_id: str | None = None
        try:
            entry = _parse(number, raw)
            custom_id = entry["custom_id"]
            if custom_id in self.done:
                self.num_skipped += 1
                self.done.discard(custom_id)
                return
            if custom_id in self.seen:
                raise InvalidRequestError(f"line {number}: custom_id {custom_id!r} was used before", "custom_id")
            self.seen.add(custom_id)
        except InvalidRequestError as error:
            self._write(custom_id, None, {"code": "invalid_line", "message": str(error)})
            self.num_failed += 1
            return
        try:
            self._start(custom_id, entry["url"], entry["body"])
        except (InvalidRequestError, TemplateError) as error:
            param = error.param if isinstance(error, InvalidRequestError) else "messages"
            self._respond(custom_id, *bodies.error_body(str(error), "invalid_request", param))

    def _start(self, custom_id: str, url: str, body: Mapping[str, Any]) -> None:
        params, warnings = bodies.read_params(url, body)
        params = msgspec.structs.replace(params, output_kind=OutputKind.FINAL_ONLY)
        if url == "/v1/chat/completions":
            messages = body.get("messages")
            if not isinstance(messages, list) or not messages:
                raise InvalidRequestError("messages must be a list of at least one message", param="messages")
            prompts: list[Any] = [{"prompt_token_ids": self.engine.inputs.render(messages)}]
        else:
            prompts = bodies.prompts_of(body)
        for prompt in prompts:
            self._check(prompt, params)
        line = _Line(custom_id, url, bool(body.get("echo")), warnings, [])
        for prompt in prompts:
            request_id = self.engine.add_request(prompt, params)
            line.request_ids.append(request_id)
            self._by_request[request_id] = line

    def _check(self, prompt: Any, params: SamplingParams) -> None:
        """Refuse a line before any of its prompts is started."""
        self.engine.inputs.process("check", prompt, params)

    def _take(self, output: RequestOutput) -> None:
        line = self._by_request.get(output.request_id)
        if line is None or not output.finished:
            return
        line.outputs[output.request_id] = output
        self.tokens_in += len(output.prompt_token_ids)
        self.tokens_out += sum(len(one.token_ids) for one in output.outputs)
        if len(line.outputs) < len(line.request_ids):
            return
        for request_id in line.request_ids:
            del self._by_request[request_id]
        outputs = [line.outputs[request_id] for request_id in line.request_ids]
        failed = next((o.error for o in outputs if o.error is not None), None)
        if failed is not None:
            self._respond(line.custom_id, *bodies.error_body(failed.message, failed.code, failed.param))
            return
        response_id = uuid.uuid4().hex
        if line.url == "/v1/chat/completions":
            body = bodies.chat_body(response_id, self.engine.info, outputs[0], line.warnings)
        else:
            body = bodies.completion_body(response_id, self.engine.info, outputs, line.warnings, is_echo=line.is_echo)
        self._respond(line.custom_id, 200, body)

    def _respond(self, custom_id: str, status: int, body: dict[str, Any]) -> None:
        self.num_ok += status == 200
        self.num_failed += status != 200
        self._write(custom_id, {"status_code": status, "request_id": f"req_{uuid.uuid4().hex}", "body": body}, None)

    def _write(self, custom_id: str | None, response: dict[str, Any] | None, error: dict[str, Any] | None) -> None:
        entry = {
            "id": f"batch_req_{uuid.uuid4().hex}",
            "custom_id": custom_id,
            "response": response,
            "error": error,
        }
        self.out.write(json.dumps(entry, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        self.out.flush()


def _parse(number: int, raw: bytes) -> dict[str, Any]:
    """Return a line's object.

    Raises InvalidRequestError that names the line.
    """
    if len(raw) > MAX_LINE_BYTES:
        raise InvalidRequestError(f"line {number} is longer than {MAX_LINE_BYTES >> 20} MiB")
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"line {number} is no JSON: {error}") from error
    if not isinstance(entry, dict):
        raise InvalidRequestError(f"line {number} is no JSON object")
    custom_id = entry.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise InvalidRequestError(f"line {number} has no custom_id", param="custom_id")
    if entry.get("method", "POST") != "POST":
        raise InvalidRequestError(f"line {number}: method must be POST, not {entry['method']!r}", param="method")
    if entry.get("url") not in URLS:
        raise InvalidRequestError(
            f"line {number}: url must be one of {', '.join(URLS)}, not {entry.get('url')!r}", "url"
        )
    if not isinstance(entry.get("body"), dict):
        raise InvalidRequestError(f"line {number} has no body object", param="body")
    return entry


def answered_ids(path: Path) -> set[str]:
    """Return the custom ids that an output file has answers for; a last line cut off by a crash is removed."""
    ids: set[str] = set()
    if not path.exists():
        return ids
    good = 0
    with path.open("rb") as file:
        for raw in file:
            try:
                entry = json.loads(raw)
            except ValueError:
                break
            if not raw.endswith(b"\n") or not isinstance(entry, dict):
                break
            good += len(raw)
            if entry.get("response") is not None and isinstance(entry.get("custom_id"), str):
                ids.add(entry["custom_id"])
    with path.open("r+b") as file:
        file.truncate(good)
    return ids


def _read_lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield numbered lines, each cut soon after the limit."""
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        yield number, raw
        while not raw.endswith(b"\n") and len(raw) > MAX_LINE_BYTES:
            raw = file.readline(MAX_LINE_BYTES + 1)
            if not raw:
                return


def run(args: argparse.Namespace) -> int:
    """Run the batch. Returns 0 when every line has its answer or error in the output.

    Raises ModelNotFoundError, CheckpointError, ConfigError or InvalidRequestError.
    """
    config = engine_config_from_args(args)
    configure_logging(config.observability.log_level)
    if not args.input.is_file():
        raise InvalidRequestError(f"{args.input} is no file", param="input")
    done = set() if args.overwrite else answered_ids(args.output)
    engine = LLMEngine(*build_engine(config))
    inflight = args.max_inflight or 2 * config.scheduler.max_num_seqs
    try:
        with (
            args.input.open("rb") as source,
            args.output.open("wb" if args.overwrite else "ab") as out,
            tqdm(desc="requests", dynamic_ncols=True, file=sys.stderr) as bar,
        ):
            batch = BatchRun(engine, out, max_inflight=inflight, done=done)
            batch.run(_read_lines(source), bar)
    finally:
        engine.close()
    print(
        f"{batch.num_ok} answered, {batch.num_failed} failed, {batch.num_skipped} skipped as answered before; "
        f"{batch.tokens_in} prompt and {batch.tokens_out} output tokens",
        file=sys.stderr,
    )
    return 0
