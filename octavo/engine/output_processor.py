"""OutputProcessor: engine outputs become what users hold: text, stop strings, logprobs, samples joined.

Every request ends with exactly one output that has `finished` set; the deltas of a sequence concatenate to its text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from octavo.engine.input_processor import Submission
from octavo.engine.messages import EngineOutput, RequestTiming, TokenLogprobs
from octavo.engine.outputs import CompletionOutput, FlatLogprobs, ModelInfo, RequestError, RequestOutput
from octavo.hf.detokenizer import Detokenizer
from octavo.hf.tokenizer import Tokenizer
from octavo.types import FinishReason, Logprob, OutputKind, SamplingParams

__all__ = ["OutputProcessor", "Processed"]


@dataclass(slots=True)
class Processed:
    """What a batch of engine outputs brought.   aborts: engine ids that matched a stop string and need not go on."""

    outputs: list[RequestOutput] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)


class _Sequence:
    """One sample while it is generated. sent_*: what deltas have carried so far."""

    def __init__(self, index: int, params: SamplingParams, tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> None:
        self.index = index
        self.params = params
        self.tokenizer = tokenizer
        self.token_ids: list[int] = []
        self.text = ""
        self.logprobs: list[dict[int, Logprob]] = []
        self.cumulative = 0.0
        self.finish: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.num_discarded = 0
        self.sent_tokens = 0
        self.sent_text = 0
        self.detokenizer: Detokenizer | None = None
        if params.detokenize:
            self.detokenizer = Detokenizer(
                tokenizer,
                prompt_ids,
                skip_special_tokens=params.skip_special_tokens,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
                stop=params.stop,
                include_stop_str=params.include_stop_str_in_output,
                min_tokens=params.min_tokens,
            )

    def push(self, output: EngineOutput) -> bool:
        """Take new tokens in. Returns whether a stop string ended the sequence before the engine did."""
        self.token_ids.extend(output.tokens)
        for found in output.logprobs or ():
            self.logprobs.append(_by_id(found, self.tokenizer))
            self.cumulative += found.logprobs[0]
        self.finish, self.stop_reason = output.finish, output.stop_reason
        if self.detokenizer is None:
            return False
        visible = output.tokens
        is_stop_token = output.finish is FinishReason.STOP and not self.params.include_stop_str_in_output
        if is_stop_token:
            visible = visible[:-1]
        matched = self.detokenizer.push(visible)
        if matched is not None:
            self._stop_at(matched)
        self.text += self.detokenizer.take(finished=self.finish is not None)
        return matched is not None and output.finish is None

    def _stop_at(self, matched: str) -> None:
        """Cut tokens and logprobs behind a stop string."""
        assert self.detokenizer is not None
        kept = self.detokenizer.num_kept_tokens
        self.num_discarded = len(self.token_ids) - kept
        for dropped in self.logprobs[kept:]:
            self.cumulative -= next(iter(dropped.values())).logprob
        del self.token_ids[kept:]
        del self.logprobs[kept:]
        self.finish, self.stop_reason = FinishReason.STOP, matched

    def end(self, finish: FinishReason) -> None:
        """End without new tokens."""
        if self.finish is None:
            self.finish = finish
            if self.detokenizer is not None:
                self.text += self.detokenizer.take(finished=True)

    def output(self, *, is_delta: bool) -> CompletionOutput:
        """Return all so far, or what is new since the last time."""
        first, begin = (self.sent_tokens, self.sent_text) if is_delta else (0, 0)
        logprobs = None
        if self.params.wants_logprobs:
            logprobs = self.logprobs[first:]
        made = CompletionOutput(
            self.index,
            self.text[begin:],
            self.token_ids[first:],
            self.cumulative if self.params.wants_logprobs else None,
            _flatten(logprobs) if logprobs is not None and self.params.flat_logprobs else logprobs,
            self.finish,
            self.stop_reason,
            self.num_discarded,
        )
        self.sent_tokens, self.sent_text = max(first, len(self.token_ids)), len(self.text)
        return made


class _State:
    """One request: its samples and what has been said of it."""

    def __init__(self, submission: Submission, tokenizer: Tokenizer) -> None:
        self.submission = submission
        params, ids = submission.params, submission.prompt_token_ids
        self.sequences = [_Sequence(i, params, tokenizer, ids) for i in range(params.n)]
        self.num_open = params.n
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        if params.wants_prompt_logprobs:
            self.prompt_logprobs = [None] * max(1, params.prompt_logprob_start)
        self.num_cached = 0
        self.timing = RequestTiming(arrival=submission.requests[0].arrival)
        self.error: RequestError | None = None

    def output(self, changed: Iterable[_Sequence]) -> RequestOutput:
        """Return the request's output: with changed sequences only in a delta, else with all."""
        is_delta = self.submission.params.output_kind is OutputKind.DELTA
        return RequestOutput(
            self.submission.request_id,
            self.submission.prompt,
            self.submission.prompt_token_ids,
            [s.output(is_delta=is_delta) for s in (changed if is_delta else self.sequences)],
            self.num_open == 0,
            self.prompt_logprobs,
            self.num_cached,
            self.submission.seed,
            self.timing,
            self.error,
        )


class OutputProcessor:
    """Joins engine outputs by request."""

    def __init__(self, info: ModelInfo) -> None:
        self.tokenizer = info.tokenizer
        self._states: dict[str, _State] = {}
        self._by_engine_id: dict[str, tuple[_State, _Sequence]] = {}

    def add(self, submission: Submission) -> None:
        """Expect outputs for a request."""
        state = _State(submission, self.tokenizer)
        self._states[submission.request_id] = state
        for request, sequence in zip(submission.requests, state.sequences, strict=True):
            self._by_engine_id[request.id] = (state, sequence)

    def knows(self, request_id: str) -> bool:
        """Return whether a request is unfinished."""
        return request_id in self._states

    @property
    def num_unfinished(self) -> int:
        """Requests without their last output."""
        return len(self._states)

    @property
    def unfinished_ids(self) -> list[str]:
        """Ids of the requests without their last output."""
        return list(self._states)

    def engine_ids(self, request_id: str) -> list[str]:
        """Return the engine ids of a request's open samples."""
        state = self._states.get(request_id)
        if state is None:
            return []
        pairs = zip(state.submission.requests, state.sequences, strict=True)
        return [request.id for request, sequence in pairs if sequence.finish is None]

    def process(self, outputs: Sequence[EngineOutput]) -> Processed:
        """Take a step's outputs in."""
        processed = Processed()
        touched: dict[str, list[_Sequence]] = {}
        for output in outputs:
            known = self._by_engine_id.get(output.id)
            if known is None:
                continue  # generated behind a stop string, before the engine heard of it
            state, sequence = known
            self._take(state, sequence, output, processed)
            touched.setdefault(state.submission.request_id, []).append(sequence)
        for request_id, sequences in touched.items():
            state = self._states[request_id]
            if self._is_due(state, sequences):
                processed.outputs.append(state.output(sequences))
            if state.num_open == 0:
                del self._states[request_id]
        return processed

    def _take(self, state: _State, sequence: _Sequence, output: EngineOutput, processed: Processed) -> None:
        state.num_cached = max(state.num_cached, output.num_cached_tokens)
        if output.timing is not None:
            _merge_timing(state.timing, output.timing)
        if state.prompt_logprobs is not None and sequence.index == 0:
            state.prompt_logprobs += [_by_id(found, self.tokenizer) for found in output.prompt_logprobs or ()]
        if output.error is not None:
            code = "internal" if output.finish is FinishReason.ERROR else "deadline"
            state.error = state.error or RequestError(code, output.error)
        if sequence.push(output):
            processed.aborts.append(output.id)
        if sequence.finish is not None:
            state.num_open -= 1
            del self._by_engine_id[output.id]

    def _is_due(self, state: _State, sequences: list[_Sequence]) -> bool:
        """Return whether something is to be said now, by output kind and stream interval."""
        params = state.submission.params
        if state.num_open == 0:
            return True
        if params.output_kind is OutputKind.FINAL_ONLY:
            return False
        for sequence in sequences:
            count = len(sequence.token_ids)
            if sequence.finish is not None or (count and not sequence.sent_tokens):
                return True
            if count - sequence.sent_tokens >= params.stream_interval:
                return True
        return False

    def fail(self, request_id: str, error: RequestError) -> RequestOutput:
        """End a request that the engine refused or lost."""
        state = self._states.pop(request_id)
        for request in state.submission.requests:
            self._by_engine_id.pop(request.id, None)
        for sequence in state.sequences:
            sequence.end(FinishReason.ERROR)
        state.num_open, state.error = 0, error
        return state.output(state.sequences)


def _merge_timing(into: RequestTiming, timing: RequestTiming) -> None:
    """Keep the earliest start and first token, and the latest last token, over a request's samples."""
    for name in ("scheduled", "first_token"):
        old, new = getattr(into, name), getattr(timing, name)
        setattr(into, name, min(old, new) if old and new else old or new)
    into.last_token = max(into.last_token, timing.last_token)
    into.num_preemptions = max(into.num_preemptions, timing.num_preemptions)


def _by_id(found: TokenLogprobs, tokenizer: Tokenizer) -> dict[int, Logprob]:
    rows = zip(found.token_ids, found.logprobs, found.ranks, strict=True)
    return {token: Logprob(logprob, rank, tokenizer.token_text(token)) for token, logprob, rank in rows}


def _flatten(positions: list[dict[int, Logprob]]) -> FlatLogprobs:
    flat = FlatLogprobs()
    for position in positions:
        flat.start_indices.append(len(flat.token_ids))
        for token, entry in position.items():
            flat.token_ids.append(token)
            flat.logprobs.append(entry.logprob)
            flat.ranks.append(entry.rank)
            flat.decoded_tokens.append(entry.decoded_token or "")
        flat.end_indices.append(len(flat.token_ids))
    return flat
