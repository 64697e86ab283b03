"""Streams over one engine thread: all end once, whatever happens to the consumer or the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from octavo.engine.async_engine import AsyncEngine
from octavo.engine.messages import EngineOutput
from octavo.engine.mock import MockEngine
from octavo.engine.outputs import ModelInfo, RequestOutput
from octavo.errors import EngineDeadError, InvalidRequestError
from octavo.types import FinishReason, OutputKind, SamplingParams
from tests.engine.frontend import ids_of, make_info

DELTA = SamplingParams(temperature=0, max_tokens=100, output_kind=OutputKind.DELTA)
FOREVER = SamplingParams(temperature=0, max_tokens=2000, output_kind=OutputKind.DELTA)


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return make_info(tmp_path_factory.mktemp("mock"))


class _Endless(MockEngine):
    """Sends three tokens and then nothing, until the request is aborted."""

    def __init__(self) -> None:
        super().__init__(lambda _: ids_of("xxx"))

    def _next(self, replay: Any) -> EngineOutput:
        return EngineOutput(replay.request.id) if replay.num_sent == 3 else super()._next(replay)


async def _text(stream: AsyncIterator[RequestOutput]) -> str:
    return "".join([output.outputs[0].text async for output in stream])


def test_many_streams_at_once_get_their_own_text(info: ModelInfo) -> None:
    async def main() -> None:
        async with AsyncEngine(MockEngine(lambda r: [*r.prompt, *r.prompt]), info) as engine:
            prompts = [f"prompt {i} é🎉" for i in range(50)]
            texts = await asyncio.gather(*(_text(engine.generate(p, DELTA)) for p in prompts))
            assert texts == [p + p for p in prompts]

    asyncio.run(main())


def test_leaving_a_stream_aborts_its_request(info: ModelInfo) -> None:
    async def main() -> None:
        core = _Endless()
        async with AsyncEngine(core, info) as engine:
            async with aclosing(engine.generate("p", FOREVER, request_id="left")) as stream:
                async for _ in stream:
                    break
            assert await _text(engine.generate("q", SamplingParams(temperature=0, max_tokens=3))) != ""
            await engine.call("stats")
            assert core.aborted == ["left"]

    asyncio.run(main())


def test_abort_ends_a_stream_with_a_last_output(info: ModelInfo) -> None:
    async def main() -> None:
        async with AsyncEngine(_Endless(), info) as engine:
            last = None
            async for output in engine.generate("p", FOREVER, request_id="r"):
                last = output
                await engine.abort("r")
            assert last is not None and last.outputs[0].finish_reason is FinishReason.ABORT
            await engine.abort("r")  # finished: ignored

    asyncio.run(main())


def test_an_invalid_request_fails_alone(info: ModelInfo) -> None:
    async def main() -> None:
        async with AsyncEngine(MockEngine(lambda _: ids_of("ok")), info) as engine:
            with pytest.raises(InvalidRequestError, match="empty"):
                await _text(engine.generate("", DELTA))
            assert await _text(engine.generate("p", DELTA)) == "ok"

    asyncio.run(main())


def test_an_id_in_use_is_refused(info: ModelInfo) -> None:
    async def main() -> None:
        engine = AsyncEngine(_Endless(), info)
        async with engine, aclosing(engine.generate("p", FOREVER, request_id="same")) as stream:
            await anext(stream)
            with pytest.raises(InvalidRequestError, match="'same' is in use"):
                await _text(engine.generate("q", DELTA, request_id="same"))

    asyncio.run(main())


def test_the_engine_s_death_ends_every_stream_with_its_cause(info: ModelInfo) -> None:
    async def main() -> None:
        core = _Endless()
        engine = AsyncEngine(core, info)
        streams = [engine.generate(f"p{i}", FOREVER) for i in range(3)]
        for stream in streams:
            await anext(stream)
        core.death = RuntimeError("out of luck")
        for stream in streams:
            with pytest.raises(EngineDeadError, match="out of luck"):
                await _text(stream)
        assert not engine.is_alive
        with pytest.raises(EngineDeadError, match="out of luck"):
            await _text(engine.generate("late", DELTA))
        engine.close()
        assert core.is_closed

    asyncio.run(main())


def test_closing_ends_streams_and_frees_the_engine(info: ModelInfo) -> None:
    async def main() -> None:
        core = _Endless()
        engine = AsyncEngine(core, info)
        stream = engine.generate("p", FOREVER)
        await anext(stream)
        await asyncio.get_running_loop().run_in_executor(None, engine.close)
        with pytest.raises(EngineDeadError):
            await _text(stream)
        assert core.is_closed

    asyncio.run(main())


def test_a_slow_consumer_gets_merged_deltas(info: ModelInfo) -> None:
    class Counting(MockEngine):
        steps = 0

        def step(self) -> list[EngineOutput]:
            self.steps += 1
            return super().step()

    async def main() -> None:
        core = Counting(lambda _: ids_of("abcdefghij"))
        async with AsyncEngine(core, info) as engine:
            stream = engine.generate("p", DELTA)
            first = await anext(stream)
            while core.has_work:  # the consumer is busy meanwhile
                await asyncio.sleep(0.001)
            rest = [output async for output in stream]
            texts = [first.outputs[0].text, *(o.outputs[0].text for o in rest)]
            assert "".join(texts) == "abcdefghij"
            assert sum(o.finished for o in [first, *rest]) == 1
            assert len(rest) <= 2

    asyncio.run(main())
