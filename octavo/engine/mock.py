"""MockEngine: an engine core without a model, that replays token streams. The double of every front-end test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from octavo.engine.messages import EngineOutput, EngineRequest
from octavo.errors import ConfigError
from octavo.types import FinishReason

__all__ = ["MockEngine"]

Script = Callable[[EngineRequest], Sequence[int]]


@dataclass(slots=True)
class _Replay:
    """A request and what of its script is left."""

    request: EngineRequest
    tokens: list[int]
    num_sent: int = 0


class MockEngine:
    """Replays `script(request)`, `chunk` tokens at each step; ends as a scheduler does.

    A script that raises ValueError fails its request alone. Behind a script comes the end-of-sequence token.
    """

    def __init__(self, script: Script, *, chunk: int = 1) -> None:
        self.script = script
        self.chunk = chunk
        self.added: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.is_closed = False
        self.death: BaseException | None = None
        self._replays: dict[str, _Replay] = {}
        self._outbox: list[EngineOutput] = []

    @property
    def has_work(self) -> bool:
        """Whether step() has anything to say."""
        return bool(self._outbox or self._replays)

    def add(self, request: EngineRequest) -> None:
        """Queue a request."""
        self.added.append(request)
        try:
            tokens = [*self.script(request), *request.eos_token_ids[:1]]
        except ValueError as error:
            self._outbox.append(EngineOutput(request.id, [], FinishReason.ERROR, error=str(error)))
            return
        self._replays[request.id] = _Replay(request, tokens)

    def abort(self, ids: Iterable[str]) -> None:
        """End requests; unknown ids are ignored."""
        for request_id in ids:
            if self._replays.pop(request_id, None) is not None:
                self.aborted.append(request_id)
                self._outbox.append(EngineOutput(request_id, [], FinishReason.ABORT))

    def step(self) -> list[EngineOutput]:
        """Return the next chunk of every request.

        Raises what `death` is set to.
        """
        if self.death is not None:
            raise self.death
        outputs, self._outbox = self._outbox, []
        for replay in list(self._replays.values()):
            outputs.append(self._next(replay))
            if outputs[-1].finish is not None:
                del self._replays[replay.request.id]
        return outputs

    def _next(self, replay: _Replay) -> EngineOutput:
        request, made = replay.request, EngineOutput(replay.request.id, [])
        for token in replay.tokens[replay.num_sent : replay.num_sent + self.chunk]:
            replay.num_sent += 1
            made.tokens.append(token)
            if token in request.eos_token_ids and not request.params.ignore_eos:
                made.finish = FinishReason.STOP
            elif token in request.params.stop_token_ids:
                made.finish, made.stop_reason = FinishReason.STOP, token
            elif replay.num_sent >= request.max_new_tokens:
                made.finish = FinishReason.LENGTH
            if made.finish is not None:
                return made
        if replay.num_sent >= len(replay.tokens):
            made.finish = FinishReason.STOP
        return made

    def call(self, name: str, *args: object) -> object:
        """Answer "stats" with nothing; there is nothing else to administer."""
        if name != "stats":
            raise ConfigError(f"the mock engine has no method named {name}")
        return {}

    def close(self) -> None:
        """Note that it was closed."""
        self.is_closed = True
