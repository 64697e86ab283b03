"""LLMEngine: front end and engine core in one thread: add requests, step, take outputs."""

from __future__ import annotations

import itertools
from typing import Protocol

from octavo.engine.input_processor import InputProcessor, Options, Prompt
from octavo.engine.messages import EngineOutput, EngineRequest
from octavo.engine.output_processor import OutputProcessor
from octavo.engine.outputs import ModelInfo, RequestError, RequestOutput
from octavo.errors import CapacityError, InvalidRequestError
from octavo.types import SamplingParams

__all__ = ["Core", "LLMEngine"]


class Core(Protocol):
    """What the front end needs of an engine core; MockEngine is another one."""

    @property
    def has_work(self) -> bool:
        """Whether step() has anything to do or to say."""
        ...

    def add(self, request: EngineRequest) -> None:
        """Queue a request."""
        ...

    def abort(self, ids: list[str]) -> None:
        """End requests; their last outputs come with the next step."""
        ...

    def step(self) -> list[EngineOutput]:
        """Do at most one round of work."""
        ...

    def call(self, name: str, *args: object) -> object:
        """Run an administrative method."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class LLMEngine:
    """Owned by one thread."""

    def __init__(self, core: Core, info: ModelInfo) -> None:
        self.core = core
        self.info = info
        self.inputs = InputProcessor(info)
        self.outputs = OutputProcessor(info)
        self._refused: list[RequestOutput] = []
        self._ids = itertools.count()

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        options: Options | None = None,
    ) -> str:
        """Queue a request and return its id.

        Raises InvalidRequestError for a request that cannot be; one that the engine refuses ends with an error output.
        """
        if request_id is None:
            request_id = f"req-{next(self._ids)}"
        if self.outputs.knows(request_id):
            raise InvalidRequestError(f"request id {request_id!r} is in use; choose another", param="request_id")
        submission = self.inputs.process(request_id, prompt, params, options=options)
        self.outputs.add(submission)
        added: list[str] = []
        try:
            for request in submission.requests:
                self.core.add(request)
                added.append(request.id)
        except (CapacityError, InvalidRequestError) as error:
            self.core.abort(added)
            code = "capacity" if isinstance(error, CapacityError) else "invalid_request"
            param = error.param if isinstance(error, InvalidRequestError) else None
            self._refused.append(self.outputs.fail(request_id, RequestError(code, str(error), param)))
        return request_id

    def abort(self, request_id: str) -> None:
        """End a request; its last output comes with a next step. An unknown or finished id is ignored."""
        self.core.abort(self.outputs.engine_ids(request_id))

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has not had its last output."""
        return bool(self._refused or self.outputs.num_unfinished)

    def step(self) -> list[RequestOutput]:
        """Do one round of work and return the outputs that are due."""
        processed = self.outputs.process(self.core.step())
        if processed.aborts:
            self.core.abort(processed.aborts)
        refused, self._refused = self._refused, []
        return refused + processed.outputs

    def close(self) -> None:
        """Free the engine."""
        self.core.close()
