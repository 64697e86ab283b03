"""Beam search over the engine: each step asks for the next token of every live beam; shared prefixes are cache hits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from octavo.engine.input_processor import Prompt
from octavo.engine.llm_engine import LLMEngine
from octavo.engine.outputs import FlatLogprobs
from octavo.errors import InvalidRequestError, RequestFailedError
from octavo.types import BeamSearchParams, FinishReason, Logprob, SamplingParams

__all__ = ["BeamSearch", "BeamSequence"]


@dataclass(frozen=True, slots=True)
class BeamSequence:
    """One hypothesis.   tokens: of the output, its end of sequence included.   score: cumulative / length ^ penalty."""

    tokens: tuple[int, ...] = ()
    cumulative_logprob: float = 0.0
    logprobs: tuple[dict[int, Logprob], ...] = ()
    text: str = ""
    score: float = 0.0
    finish_reason: FinishReason | None = None
    prompt_token_ids: list[int] = field(default_factory=list)


class BeamSearch:
    """One search. Hypotheses that end leave the beam; the best of them and of what remains are the result."""

    def __init__(self, engine: LLMEngine, params: BeamSearchParams) -> None:
        if params.temperature not in (0.0, 1.0):
            raise InvalidRequestError(
                f"temperature={params.temperature} has no meaning in beam search, which ranks by the model's own "
                "probabilities; leave it at 0",
                param="temperature",
            )
        self.engine = engine
        self.params = params
        self.ends = frozenset() if params.ignore_eos else frozenset(engine.info.eos_token_ids)

    def run(self, prompt: Prompt) -> list[BeamSequence]:
        """Return at most beam_width sequences, the best first.

        Raises InvalidRequestError or RequestFailedError.
        """
        _, ids = self.engine.inputs.tokenize(prompt)
        self.engine.inputs.max_new_tokens(len(ids), self.params.max_tokens)
        width = self.params.beam_width
        live, done = [BeamSequence(prompt_token_ids=ids)], []
        for _ in range(self.params.max_tokens):
            grown = sorted(self._grow(live), key=lambda beam: beam.cumulative_logprob, reverse=True)
            live = []
            for beam in grown[: 2 * width]:
                if beam.tokens[-1] in self.ends:
                    done.append(replace(beam, finish_reason=FinishReason.STOP))
                elif len(live) < width:
                    live.append(beam)
            if not live:
                break
        done += [replace(beam, finish_reason=FinishReason.LENGTH) for beam in live]
        scored = [replace(beam, score=self._score(beam), text=self._text(beam)) for beam in done]
        return sorted(scored, key=lambda beam: beam.score, reverse=True)[:width]

    def _grow(self, beams: list[BeamSequence]) -> list[BeamSequence]:
        """Return every continuation of each beam by its 2 * width most likely tokens."""
        params = SamplingParams(
            temperature=0.0, max_tokens=1, logprobs=2 * self.params.beam_width, ignore_eos=True, detokenize=False
        )
        waiting = {self._ask(beam, params): beam for beam in beams}
        grown = []
        while waiting:
            for output in self.engine.step():
                if not output.finished or output.request_id not in waiting:
                    continue
                beam = waiting.pop(output.request_id)
                logprobs = output.outputs[0].logprobs if output.outputs else None
                if output.error is not None or not logprobs:
                    raise RequestFailedError(output.error.message if output.error else "the engine gave no logprobs")
                assert not isinstance(logprobs, FlatLogprobs)
                for token, entry in logprobs[0].items():
                    grown.append(
                        replace(
                            beam,
                            tokens=(*beam.tokens, token),
                            cumulative_logprob=beam.cumulative_logprob + entry.logprob,
                            logprobs=(*beam.logprobs, {token: entry}),
                        )
                    )
        return grown

    def _ask(self, beam: BeamSequence, params: SamplingParams) -> str:
        ids = [*beam.prompt_token_ids, *beam.tokens]
        return self.engine.add_request({"prompt_token_ids": ids}, params)

    def _score(self, beam: BeamSequence) -> float:
        length = len(beam.tokens) - (beam.finish_reason is FinishReason.STOP)
        return beam.cumulative_logprob / float(max(1, length) ** self.params.length_penalty)

    def _text(self, beam: BeamSequence) -> str:
        tokens = beam.tokens
        if beam.finish_reason is FinishReason.STOP and not self.params.include_stop_str_in_output:
            tokens = tokens[:-1]
        return self.engine.info.tokenizer.decode(tokens, skip_special_tokens=self.params.skip_special_tokens)
