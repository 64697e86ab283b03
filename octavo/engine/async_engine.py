"""AsyncEngine: many streams over one engine. The engine steps in a thread of its own and sleeps when there is no work.

    event loop                       engine thread
    generate() -- inbox (a call) -->  LLMEngine.add_request
    stream  <-- call_soon_threadsafe  LLMEngine.step() -> outputs
A stream always ends once: with a finished output, or with an error that names the cause.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from octavo.config.engine import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.input_processor import Options, Prompt
from octavo.engine.llm_engine import Core, LLMEngine
from octavo.engine.outputs import CompletionOutput, FlatLogprobs, ModelInfo, RequestOutput
from octavo.errors import EngineDeadError
from octavo.log import configure_logging, get_logger
from octavo.types import OutputKind, SamplingParams

__all__ = ["AsyncEngine"]

T = TypeVar("T")
CLOSE_TIMEOUT_S = 30.0  # a step in progress is waited for


class _Stream:
    """Outputs of one request on their way to its consumer; what queues up while it is busy is merged."""

    def __init__(self, loop: asyncio.AbstractEventLoop, is_delta: bool) -> None:
        self._loop = loop
        self._is_delta = is_delta
        self._ready = asyncio.Event()
        self._lock = threading.Lock()
        self._output: RequestOutput | None = None
        self._error: BaseException | None = None

    def put(self, output: RequestOutput) -> None:
        """Hand an output over, from the engine thread."""
        with self._lock:
            waiting = self._output
            self._output = _merged(waiting, output) if waiting is not None and self._is_delta else output
        self._wake()

    def fail(self, error: BaseException) -> None:
        """End the stream with an error, from the engine thread."""
        with self._lock:
            self._error = error
        self._wake()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:
            if not self._loop.is_closed():
                raise  # a closed loop has no consumer left

    async def get(self) -> RequestOutput:
        """Return the next output.

        Raises the error the stream ended with.
        """
        while True:
            await self._ready.wait()
            self._ready.clear()
            with self._lock:
                output, self._output = self._output, None
                error = self._error
            if output is not None:
                if error is not None:
                    self._ready.set()
                return output
            if error is not None:
                raise error


def _merged(first: RequestOutput, second: RequestOutput) -> RequestOutput:
    """Return two deltas as one."""
    by_index: dict[int, CompletionOutput] = {one.index: one for one in first.outputs}
    for new in second.outputs:
        old = by_index.get(new.index)
        if old is not None:
            new.text = old.text + new.text
            new.token_ids = old.token_ids + new.token_ids
            if isinstance(old.logprobs, list) and isinstance(new.logprobs, list):
                new.logprobs = old.logprobs + new.logprobs
            elif isinstance(old.logprobs, FlatLogprobs) and isinstance(new.logprobs, FlatLogprobs):
                new.logprobs = old.logprobs.joined(new.logprobs)
        by_index[new.index] = new
    second.outputs = [by_index[index] for index in sorted(by_index)]
    return second


class AsyncEngine:
    """Thread-safe. Close it, or use it as an async context manager."""

    def __init__(self, core: Core, info: ModelInfo) -> None:
        self.info = info
        self._engine = LLMEngine(core, info)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}
        self._ids = itertools.count()
        self._death: BaseException | None = None
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)
        self._thread.start()

    @classmethod
    def from_config(cls, config: EngineConfig) -> AsyncEngine:
        """Build an engine and start it.

        Raises ModelNotFoundError, CheckpointError or ConfigError.
        """
        configure_logging(config.observability.log_level)
        return cls(*build_engine(config))

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        options: Options | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Generate for one prompt and yield outputs as params.output_kind says; leaving the loop aborts the request.

        Raises InvalidRequestError for a request that cannot be, EngineDeadError when the engine is gone.
        """
        if request_id is None:
            request_id = f"async-{next(self._ids)}"
        name, stream = request_id, _Stream(asyncio.get_running_loop(), params.output_kind is OutputKind.DELTA)

        def add() -> None:
            self._engine.add_request(prompt, params, request_id=name, options=options)
            self._streams[name] = stream

        await asyncio.wrap_future(self._submit(add))
        is_finished = False
        try:
            while not is_finished:
                output = await stream.get()
                is_finished = output.finished
                yield output
        finally:
            if not is_finished and self._death is None:
                self._inbox.put(lambda: self._drop(name))

    def _drop(self, request_id: str) -> None:
        """Abort a request whose consumer left; its last output goes nowhere."""
        self._streams.pop(request_id, None)
        self._engine.abort(request_id)

    async def abort(self, request_id: str) -> None:
        """End a request in whatever state it is; its stream gets a last output. Unknown ids are ignored.

        Raises EngineDeadError when the engine is gone.
        """
        await asyncio.wrap_future(self._submit(lambda: self._engine.abort(request_id)))

    async def call(self, name: str, *args: Any) -> Any:
        """Run an administrative method of the engine core between steps: stats, reset_prefix_cache.

        Raises EngineDeadError when the engine is gone.
        """
        return await asyncio.wrap_future(self._submit(lambda: self._engine.core.call(name, *args)))

    async def stats(self) -> dict[str, Any]:
        """Return counts of requests, KV blocks and prefix cache tokens."""
        found: Any = await self.call("stats")
        return dict(msgspec.structs.asdict(found))

    @property
    def is_alive(self) -> bool:
        """Whether the engine thread runs."""
        return self._death is None and self._thread.is_alive()

    def _submit(self, function: Callable[[], T]) -> Future[T]:
        """Have the engine thread call a function between steps."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except BaseException as error:  # the caller's thread is where it belongs
                future.set_exception(error)

        if self._death is not None:
            raise EngineDeadError(f"the engine is gone: {self._death}") from self._death
        self._inbox.put(run)
        if self._death is not None and not future.done():
            future.set_exception(EngineDeadError(f"the engine is gone: {self._death}"))
        return future

    def _run(self) -> None:
        """Serve until closed. Whatever ends the loop ends every stream."""
        try:
            while not self._is_closing:
                self._drain(wait=not self._engine.has_unfinished and not self._engine.core.has_work)
                for output in self._engine.step():
                    stream = self._streams.get(output.request_id)
                    if stream is not None:
                        if output.finished:
                            del self._streams[output.request_id]
                        stream.put(output)
            self._death = EngineDeadError("it was closed")
        except BaseException as error:  # the thread's boundary: users are told, whatever it is
            get_logger(__name__).error("the engine died", exc_info=error)
            self._death = error
        finally:
            for stream in self._streams.values():
                stream.fail(EngineDeadError(f"the engine is gone: {self._death}"))
            self._streams.clear()
            self._drain(wait=False)
            self._engine.close()

    def _drain(self, *, wait: bool) -> None:
        """Run the calls in the inbox; with `wait`, sleep until there is one."""
        if wait:
            self._inbox.get()()
        while not self._inbox.empty():
            self._inbox.get()()

    def close(self) -> None:
        """Stop the engine: requests in progress end with EngineDeadError."""
        self._is_closing = True
        self._inbox.put(lambda: None)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_TIMEOUT_S)

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.close)
