"""LLM: the offline API. Give it a model; generate, chat, stream, search with beams."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec
from tqdm import tqdm

from octavo.config.engine import EngineConfig
from octavo.engine.beam_search import BeamSearch
from octavo.engine.build import build_engine
from octavo.engine.input_processor import Messages, Options, Prompt, default_sampling_params
from octavo.engine.llm_engine import LLMEngine
from octavo.engine.outputs import RequestError, RequestOutput
from octavo.errors import CapacityError, InvalidRequestError, OctavoError, RequestFailedError
from octavo.hf.tokenizer import Tokenizer
from octavo.log import configure_logging
from octavo.types import BeamSearchParams, OutputKind, SamplingParams

__all__ = ["LLM"]


class LLM:
    """A model loaded in this process. Not thread-safe: use AsyncEngine to serve many users.

    model: folder, GGUF file or hub name; None is the installed demo model.   fields: any field of docs/config.md.
    Raises ModelNotFoundError, CheckpointError or ConfigError.
    """

    def __init__(self, model: str | None = None, **fields: Any) -> None:
        config = EngineConfig.from_flat(model=model, **fields)
        configure_logging(config.observability.log_level)
        self.engine = LLMEngine(*build_engine(config))

    @classmethod
    def from_engine(cls, engine: LLMEngine) -> LLM:
        """Use an engine that is built already (a MockEngine behind it, for instance)."""
        llm = cls.__new__(cls)
        llm.engine = engine
        return llm

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int = 0,
    ) -> list[RequestOutput]:
        """Generate for each prompt and return the outputs in order.

        prompts: one or many of: text, token ids, {"prompt": text}, {"prompt_token_ids": ids}.
        sampling_params: one for all, or one each; None uses the model's own recommendations.
        Among many, a request that cannot be served fails alone: its output carries `error`.
        Raises InvalidRequestError when the only prompt is invalid, or when the counts differ.
        """
        many = _as_prompts(prompts)
        outputs = self._run(many, self._params_for(len(many), sampling_params), use_tqdm, Options(priority=priority))
        if len(many) == 1 and not _is_list_of_prompts(prompts):
            _raise_if_failed(outputs[0])
        return outputs

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of many, through the model's chat template.

        messages: dicts with role and content.   chat_template_kwargs: variables the template declares.
        Raises InvalidRequestError for messages that are wrong, TemplateError for a template that fails.
        """
        single = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = [messages] if single else messages
        prompts = [
            {
                "prompt_token_ids": self.engine.inputs.render(
                    conversation,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    variables=chat_template_kwargs,
                )
            }
            for conversation in conversations
        ]
        outputs = self._run(prompts, self._params_for(len(prompts), sampling_params), use_tqdm, Options())
        if single:
            _raise_if_failed(outputs[0])
        return outputs

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Generate for one prompt and yield what is new with each token; leaving the loop early ends the request.

        Raises InvalidRequestError, CapacityError or RequestFailedError.
        """
        params = msgspec.structs.replace(
            sampling_params or self.get_default_sampling_params(), output_kind=OutputKind.DELTA
        )
        request_id = self.engine.add_request(prompt, params)
        is_finished = False
        try:
            while not is_finished:
                for output in self.engine.step():
                    if output.request_id == request_id:
                        is_finished = output.finished
                        _raise_if_failed(output)
                        yield output
        finally:
            if not is_finished:
                self._abort_all()

    def beam_search(
        self, prompts: Sequence[Prompt], params: BeamSearchParams, *, use_tqdm: bool = False
    ) -> list[list[Any]]:
        """Return the best sequences of each prompt, the best first: octavo.engine.beam_search.BeamSequence each.

        Raises InvalidRequestError.
        """
        bar = tqdm(total=len(prompts), desc="beam search", disable=not use_tqdm)
        found = []
        for prompt in prompts:
            found.append(BeamSearch(self.engine, params).run(prompt))
            bar.update()
        bar.close()
        return found

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self.engine.info.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters used where none are given: the model's own recommendations."""
        return default_sampling_params(self.engine.info)

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; refused (False) while requests run."""
        return bool(self.engine.core.call("reset_prefix_cache"))

    def get_metrics(self) -> dict[str, Any]:
        """Return counts of requests, KV blocks and prefix cache tokens."""
        stats: Any = self.engine.core.call("stats")
        return dict(msgspec.structs.asdict(stats))

    def close(self) -> None:
        """Free the model."""
        self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _params_for(self, count: int, given: SamplingParams | Sequence[SamplingParams] | None) -> list[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        if isinstance(given, SamplingParams):
            return [given] * count
        if len(given) != count:
            raise InvalidRequestError(f"{len(given)} sampling_params for {count} prompts: give one, or one each")
        return list(given)

    def _run(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams], use_tqdm: bool, options: Options
    ) -> list[RequestOutput]:
        """Serve all prompts and return their last outputs in order."""
        done: dict[str, RequestOutput] = {}
        ids: list[str] = []
        for index, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
            final = msgspec.structs.replace(one, output_kind=OutputKind.FINAL_ONLY)
            try:
                ids.append(self.engine.add_request(prompt, final, options=options))
            except InvalidRequestError as error:
                ids.append(f"refused-{index}")
                done[ids[-1]] = _refused(ids[-1], prompt, error)
        with tqdm(total=len(ids), initial=len(done), desc="requests", disable=not use_tqdm, dynamic_ncols=True) as bar:
            begin, tokens_in, tokens_out = time.perf_counter(), 0, 0
            is_complete = False
            try:
                while len(done) < len(ids):
                    for output in self.engine.step():
                        done[output.request_id] = output
                        tokens_in += len(output.prompt_token_ids)
                        tokens_out += sum(len(one.token_ids) for one in output.outputs)
                        seconds = time.perf_counter() - begin
                        bar.set_postfix_str(f"in {tokens_in / seconds:.1f}, out {tokens_out / seconds:.1f} tok/s")
                        bar.update()
                is_complete = True
            finally:
                if not is_complete:
                    self._abort_all()
        return [done[request_id] for request_id in ids]

    def _abort_all(self) -> None:
        """End every request and take its last output, so that the next call begins afresh."""
        for request_id in self.engine.outputs.unfinished_ids:
            self.engine.abort(request_id)
        while self.engine.has_unfinished:
            self.engine.step()


def _is_list_of_prompts(prompts: Any) -> bool:
    return not isinstance(prompts, str | Mapping) and not (prompts and isinstance(prompts[0], int))


def _as_prompts(prompts: Any) -> list[Prompt]:
    """Return a list of prompts of one prompt or many."""
    if not isinstance(prompts, str | Mapping | Sequence):
        raise InvalidRequestError(
            f"a prompt is text, token ids or a dict, not {type(prompts).__name__}", param="prompt"
        )
    return list(prompts) if _is_list_of_prompts(prompts) else [prompts]


def _refused(request_id: str, prompt: Prompt, error: InvalidRequestError) -> RequestOutput:
    """Return the output of a request that was refused at the door."""
    text = prompt if isinstance(prompt, str) else None
    failure = RequestError("invalid_request", str(error), error.param)
    return RequestOutput(request_id, text, [], [], True, error=failure)


def _raise_if_failed(output: RequestOutput) -> None:
    """Raise the error that a request ended with."""
    error = output.error
    if error is None:
        return
    kinds: dict[str, type[OctavoError]] = {"capacity": CapacityError}
    if error.code == "invalid_request":
        raise InvalidRequestError(error.message, error.param)
    raise kinds.get(error.code, RequestFailedError)(error.message)
