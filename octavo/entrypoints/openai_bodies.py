"""OpenAI request bodies to sampling parameters, and outputs to OpenAI response bodies (chat and completions).

A known field that cannot be honoured is refused; an unknown one is reported in the response's warnings.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.engine.input_processor import Prompt
from octavo.engine.outputs import CompletionOutput, ModelInfo, RequestOutput
from octavo.errors import InvalidRequestError
from octavo.hf.tokenizer import Tokenizer
from octavo.types import FinishReason, Logprob, SamplingParams

__all__ = ["chat_body", "completion_body", "error_body", "prompts_of", "read_params", "usage_of"]

SAMPLING = (
    "n",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "max_tokens",
    "min_tokens",
    "prompt_logprobs",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
)
HARMLESS = ("model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
OWN = {
    "/v1/chat/completions": ("messages", "max_completion_tokens", "top_logprobs"),
    "/v1/completions": ("prompt", "echo"),
}
REFUSED: Mapping[str, tuple[Any, ...]] = {  # field -> values that ask for nothing
    "stream": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "best_of": (1,),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": (),
    "structured_outputs": (),
}
MOST_LOGIT_BIAS = 1024
FINISH = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
    FinishReason.ERROR: "error",
    FinishReason.REPETITION: "repetition",
}


def read_params(url: str, body: Mapping[str, Any]) -> tuple[SamplingParams, list[str]]:
    """Return the sampling parameters of a body, and a warning for each field that is not known. null means absent.

    Raises InvalidRequestError whose `param` names the field.
    """
    given = {name: value for name, value in body.items() if value is not None}
    for name, harmless in REFUSED.items():
        if name in given and given[name] not in harmless:
            raise InvalidRequestError(f"{name} is not supported yet; leave it out", param=name)
    known = {*SAMPLING, *HARMLESS, *OWN[url], *REFUSED, "logprobs"}
    warnings = [f"unknown field {name!r} has no effect" for name in given if name not in known]
    fields = {name: given[name] for name in SAMPLING if name in given}
    if "logit_bias" in fields:
        fields["logit_bias"] = _logit_bias(fields["logit_bias"])
    if url == "/v1/chat/completions":
        fields["max_tokens"] = given.get("max_completion_tokens", given.get("max_tokens"))
        fields["logprobs"] = _chat_logprobs(given)
    elif "logprobs" in given:
        fields["logprobs"] = given["logprobs"]
    if given.get("echo") and fields.get("logprobs") is not None:
        fields["prompt_logprobs"] = fields["logprobs"]
    return SamplingParams(**fields), warnings


def _logit_bias(given: Any) -> dict[int, Any]:
    if not isinstance(given, Mapping) or len(given) > MOST_LOGIT_BIAS:
        raise InvalidRequestError(f"logit_bias must map at most {MOST_LOGIT_BIAS} token ids to numbers", "logit_bias")
    bias = {}
    for key, value in given.items():
        if not str(key).lstrip("-").isascii() or not str(key).lstrip("-").isdigit():
            raise InvalidRequestError(f"logit_bias has the key {key!r}, which is no token id", param="logit_bias")
        bias[int(key)] = value
    return bias


def _chat_logprobs(given: Mapping[str, Any]) -> int | None:
    wanted, top = given.get("logprobs", False), given.get("top_logprobs")
    if not isinstance(wanted, bool):
        raise InvalidRequestError(f"logprobs must be true or false in a chat, not {wanted!r}", param="logprobs")
    if top is not None and not wanted:
        raise InvalidRequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    if not wanted:
        return None
    if top is not None and (not isinstance(top, int) or isinstance(top, bool)):
        raise InvalidRequestError(f"top_logprobs must be a whole number, not {top!r}", param="top_logprobs")
    return top or 0


def prompts_of(body: Mapping[str, Any]) -> list[Prompt]:
    """Return a completion body's prompts: one text, one list of ids, or a list of either.

    Raises InvalidRequestError.
    """
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise InvalidRequestError("prompt must be text, a list of token ids, or a list of these", param="prompt")
    if all(isinstance(item, int) for item in prompt):
        return [prompt]
    if all(isinstance(item, str) for item in prompt) or all(isinstance(item, list) for item in prompt):
        return list(prompt)
    raise InvalidRequestError("prompt mixes texts and token ids; give one kind", param="prompt")


def usage_of(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """Return OpenAI's usage object over a body's requests."""
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    made = sum(len(one.token_ids) for output in outputs for one in output.outputs)
    cached = sum(output.num_cached_tokens for output in outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def chat_body(response_id: str, info: ModelInfo, output: RequestOutput, warnings: list[str]) -> dict[str, Any]:
    """Return a chat.completion object."""
    choices = [
        {
            "index": one.index,
            "message": {"role": "assistant", "content": one.text, "refusal": None},
            "logprobs": _chat_logprobs_of(one, info.tokenizer),
            "finish_reason": FINISH[one.finish_reason] if one.finish_reason else None,
            "stop_reason": one.stop_reason,
        }
        for one in output.outputs
    ]
    name = f"chatcmpl-{response_id}"
    return _body(name, "chat.completion", info=info, choices=choices, outputs=[output], warnings=warnings)


def completion_body(
    response_id: str, info: ModelInfo, outputs: Sequence[RequestOutput], warnings: list[str], *, is_echo: bool = False
) -> dict[str, Any]:
    """Return a text_completion object over the outputs of a body's prompts, in their order."""
    choices = []
    for output in outputs:
        prefix = ""
        if is_echo:
            prefix = output.prompt if output.prompt is not None else info.tokenizer.decode(output.prompt_token_ids)
        for one in output.outputs:
            choices.append(
                {
                    "index": len(choices),
                    "text": prefix + one.text,
                    "logprobs": _completion_logprobs(one, output, info.tokenizer, is_echo),
                    "finish_reason": FINISH[one.finish_reason] if one.finish_reason else None,
                    "stop_reason": one.stop_reason,
                }
            )
    name = f"cmpl-{response_id}"
    return _body(name, "text_completion", info=info, choices=choices, outputs=outputs, warnings=warnings)


def _body(
    response_id: str,
    kind: str,
    *,
    info: ModelInfo,
    choices: list[dict[str, Any]],
    outputs: Sequence[RequestOutput],
    warnings: list[str],
) -> dict[str, Any]:
    body = {
        "id": response_id,
        "object": kind,
        "created": int(time.time()),
        "model": info.model,
        "choices": choices,
        "usage": usage_of(outputs),
        "seed": outputs[0].seed if outputs else None,
    }
    return body | ({"warnings": warnings} if warnings else {})


def _finite(logprob: float) -> float:
    return max(logprob, -9999.0)  # JSON has no -inf


def _token(tokenizer: Tokenizer, token: int, entry: Logprob) -> dict[str, Any]:
    data = tokenizer.token_bytes(token)
    return {"token": data.decode(errors="replace"), "logprob": _finite(entry.logprob), "bytes": list(data)}


def _chat_logprobs_of(one: CompletionOutput, tokenizer: Tokenizer) -> dict[str, Any] | None:
    if one.logprobs is None:
        return None
    content = []
    for token, position in zip(one.token_ids, one.logprobs, strict=True):
        top = [_token(tokenizer, other, entry) for other, entry in position.items()]
        ranked = [item for item, entry in zip(top, position.values(), strict=True) if entry.rank <= len(position) - 1]
        content.append({**_token(tokenizer, token, position[token]), "top_logprobs": ranked})
    return {"content": content, "refusal": None}


def _completion_logprobs(
    one: CompletionOutput, output: RequestOutput, tokenizer: Tokenizer, is_echo: bool
) -> dict[str, Any] | None:
    if one.logprobs is None:
        return None
    tokens: list[int] = list(one.token_ids)
    positions: list[dict[int, Logprob] | None] = list(one.logprobs)
    if is_echo and output.prompt_logprobs is not None:
        tokens = output.prompt_token_ids + tokens
        positions = output.prompt_logprobs + positions
    texts = [tokenizer.token_bytes(token).decode(errors="replace") for token in tokens]
    offsets, at = [], 0
    for text in texts:
        offsets.append(at)
        at += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [
            None if position is None else _finite(position[token].logprob)
            for token, position in zip(tokens, positions, strict=True)
        ],
        "top_logprobs": [
            None
            if position is None
            else {
                tokenizer.token_bytes(other).decode(errors="replace"): _finite(entry.logprob)
                for other, entry in position.items()
            }
            for position in positions
        ],
        "text_offset": offsets,
    }


def error_body(message: str, code: str, param: str | None) -> tuple[int, dict[str, Any]]:
    """Return the status and OpenAI error object of a failed request.   code: as in RequestError."""
    status = {"invalid_request": 400, "capacity": 429, "deadline": 408}.get(code, 500)
    kind = "invalid_request_error" if status == 400 else "rate_limit_error" if status == 429 else "server_error"
    return status, {"error": {"message": message, "type": kind, "param": param, "code": code}}
