"""InputProcessor: what a user gives becomes engine requests, or an error that names the parameter at fault."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from octavo.engine.messages import EngineRequest
from octavo.engine.outputs import ModelInfo
from octavo.errors import ContextLengthError, InvalidRequestError
from octavo.hf.chat_template import ChatTemplate, normalize_messages
from octavo.types import SamplingParams, verify

__all__ = ["InputProcessor", "Messages", "Options", "Prompt", "Submission", "default_sampling_params"]

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
Messages: TypeAlias = Sequence[Mapping[str, Any]]

MAX_BAD_WORD_SEQUENCES = 256  # each of at most 128 words is encoded twice: with and without a leading space
MAX_BAD_WORD_TOKENS = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """A request at the door: its prompt, and one engine request per sample."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    requests: list[EngineRequest]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What a request carries beside prompt and sampling. deadline: seconds of time.monotonic()."""

    priority: int = 0
    cache_salt: str = ""
    deadline: float | None = None


class InputProcessor:
    """Validates, tokenises and numbers requests. Stateless but for its clock."""

    def __init__(self, info: ModelInfo, clock: Callable[[], float] = time.monotonic) -> None:
        self.info = info
        self.clock = clock

    def process(
        self, request_id: str, prompt: Prompt, params: SamplingParams, *, options: Options | None = None
    ) -> Submission:
        """Make the engine requests of one prompt.

        Raises InvalidRequestError (its `param` names the field) or ContextLengthError.
        """
        options = options or Options()
        arrival = self.clock()
        text, ids = self.tokenize(prompt)
        info = self.info
        allow_trace = info.config.model.enable_trace_replay
        verify(
            params,
            vocab_size=info.vocab_size,
            max_logprobs=info.config.model.max_logprobs,
            num_prompt_tokens=len(ids),
            allow_trace=allow_trace,
        )
        seed = secrets.randbits(63) if params.seed is None else params.seed
        first = EngineRequest(
            id=request_id,
            prompt=ids,
            params=params,
            arrival=arrival,
            seed=seed,
            max_new_tokens=self.max_new_tokens(len(ids), params.max_tokens),
            eos_token_ids=list(info.eos_token_ids),
            bad_words=self._bad_words(params.bad_words),
            priority=options.priority,
            cache_salt=options.cache_salt,
            deadline=options.deadline,
        )
        requests = [first]
        if params.n > 1:
            requests = [
                msgspec.structs.replace(first, id=f"{request_id}:{index}", sample_index=index)
                for index in range(params.n)
            ]
        return Submission(
            request_id=request_id, prompt=text, prompt_token_ids=ids, params=params, seed=seed, requests=requests
        )

    def tokenize(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """Return a prompt's text, where it has one, and its ids.

        prompt: text, token ids, {"prompt": text} or {"prompt_token_ids": ids}.
        Raises InvalidRequestError.
        """
        if isinstance(prompt, Mapping):
            given = [key for key in ("prompt", "prompt_token_ids") if prompt.get(key) is not None]
            unknown = sorted(set(prompt) - {"prompt", "prompt_token_ids"})
            if len(given) != 1 or unknown:
                raise InvalidRequestError(
                    f"a prompt needs either prompt or prompt_token_ids, and nothing else; given: {sorted(prompt)}",
                    param="prompt",
                )
            prompt = prompt[given[0]]
        if isinstance(prompt, str):
            ids = self.info.tokenizer.encode(prompt)
            text: str | None = prompt
        else:
            ids, text = self._check_ids(prompt), None
        if not ids:
            raise InvalidRequestError("the prompt is empty: give at least one character or token", param="prompt")
        if len(ids) >= self.info.max_model_len:
            raise ContextLengthError(
                f"the prompt has {len(ids)} tokens, but the context is {self.info.max_model_len} tokens and at least "
                "one must be left to generate; shorten the prompt",
                param="prompt",
            )
        return text, ids

    def _check_ids(self, prompt: Any) -> list[int]:
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
            raise InvalidRequestError(f"a prompt is text or a list of token ids, not {type(prompt).__name__}", "prompt")
        top = self.info.vocab_size - 1
        for position, token in enumerate(prompt):
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= top:
                shown = repr(token)[:40]
                raise InvalidRequestError(
                    f"prompt[{position}]={shown} is no token id of this model: ids run from 0 to {top}", param="prompt"
                )
        return [int(token) for token in prompt]

    def max_new_tokens(self, num_prompt: int, max_tokens: int | None) -> int:
        """Return how many tokens may be generated.

        Raises ContextLengthError when max_tokens does not fit behind the prompt.
        """
        limit = self.info.max_model_len
        left = limit - num_prompt
        if max_tokens is None:
            return left
        if max_tokens > left:
            raise ContextLengthError(
                f"max_tokens={max_tokens} does not fit: {left} tokens are left of the {limit}-token context after a "
                f"{num_prompt}-token prompt; lower max_tokens or shorten the prompt",
                param="max_tokens",
            )
        return max_tokens

    def _bad_words(self, words: Sequence[str]) -> list[list[int]]:
        """Encode each word as it stands at the beginning of a text and after a space."""
        sequences: list[list[int]] = []
        for word in words:
            for text in (word, f" {word.lstrip()}"):
                ids = self.info.tokenizer.encode(text, add_special_tokens=False)
                if ids and ids not in sequences:
                    sequences.append(ids)
        if len(sequences) > MAX_BAD_WORD_SEQUENCES or sum(map(len, sequences)) > MAX_BAD_WORD_TOKENS:
            raise InvalidRequestError(
                f"bad_words makes {len(sequences)} token sequences of {sum(map(len, sequences))} tokens; at most "
                f"{MAX_BAD_WORD_SEQUENCES} and {MAX_BAD_WORD_TOKENS} are allowed",
                param="bad_words",
            )
        return sequences

    def render(
        self,
        messages: Messages,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the token ids of a conversation; text that users wrote never becomes a control token.

        Raises InvalidRequestError for wrong messages, TemplateError for a template that fails.
        """
        template = self.info.chat_template or ChatTemplate.fallback()
        normal = normalize_messages(messages, template.profile(has_tools=bool(tools)))
        pieces = template.render(
            normal,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
        )
        tokenizer = self.info.tokenizer
        ids = tokenizer.encode_pieces(pieces, control_texts=self.info.control_texts)
        return ids


def default_sampling_params(info: ModelInfo) -> SamplingParams:
    """Return the parameters used where none are given: the model's own recommendations."""
    names = {
        "temperature": "temperature",
        "top_p": "top_p",
        "top_k": "top_k",
        "min_p": "min_p",
        "repetition_penalty": "repetition_penalty",
        "max_new_tokens": "max_tokens",
    }
    given = {ours: info.sampling_defaults.get(theirs) for theirs, ours in names.items()}
    fields = {name: value for name, value in given.items() if value is not None}
    if "max_tokens" in fields:
        fields["max_tokens"] = min(int(fields["max_tokens"]), info.max_model_len - 1)
    return SamplingParams(**fields)
