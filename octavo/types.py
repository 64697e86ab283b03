"""What crosses every boundary: request parameters and the values they are made of.

Frozen msgspec structs, safe on a wire. Validation happens once, on construction: every number has a range, every
list a longest length. `verify` then compares a request with the model that is to serve it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

import msgspec
from msgspec.structs import force_setattr

from octavo.errors import InvalidRequestError

__all__ = [
    "BeamSearchParams",
    "FinishReason",
    "Logprob",
    "OutputKind",
    "RepetitionDetection",
    "SamplingParams",
    "verify",
]

GREEDY_BELOW = 1e-5  # a temperature below this is greedy
MIN_TEMPERATURE = 0.01  # a smaller one that is not greedy is raised to this
MAX_N = 64  # samples of one request
MAX_STOP_STRINGS = 16
MAX_STRING_CHARS = 256  # of one stop string or bad word
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 4096  # entries
MAX_NUMBER = 1e9  # of a number that is clamped afterwards
MAX_BIAS = 100.0  # logit biases are clamped to this magnitude
MAX_BAD_WORDS = 128
MAX_LOGPROB_TOKEN_IDS = 128
MAX_TOKEN_LIST = 1 << 18  # ids of a whitelist or of a trace
MAX_INT = (1 << 31) - 1  # of a token id or a token count
MAX_EXTRA_NODES = 4096  # values in extra_args, counting nested ones
MAX_EXTRA_DEPTH = 16
MAX_EXTRA_CHARS = 65536

T = TypeVar("T")


class FinishReason(enum.Enum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


class OutputKind(enum.Enum):
    """What each streamed output carries: all so far, only what is new, or one final output."""

    CUMULATIVE = "cumulative"
    DELTA = "delta"
    FINAL_ONLY = "final_only"


def _shown(value: Any) -> str:
    """Quote a rejected value, shortened to 80 characters."""
    if isinstance(value, int) and value.bit_length() > 256:
        return "an integer of more than 256 bits"
    if not isinstance(value, (str, bytes, int, float, type(None))):
        return f"<{type(value).__name__}>"
    text = repr(value[:80] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _reject(param: str, value: Any, allowed: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param}={_shown(value)} is not allowed: give {allowed}", param)


def _integer(param: str, value: Any, low: int, high: int, allowed: str | None = None) -> int:
    """Return value as an int in [low, high]; bool and float are refused."""
    if type(value) is not int:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise _reject(param, value, allowed or f"an integer from {low} to {high}")
    number = int(value)
    if not low <= number <= high:
        raise _reject(param, value, allowed or f"an integer from {low} to {high}")
    return number


def _number(param: str, value: Any, low: float, high: float, *, above: bool = False) -> float:
    """Return value as a finite float in [low, high], or in (low, high] where `above`."""
    allowed = f"a number {'above' if above else 'from'} {low:g} {'up ' if above else ''}to {high:g}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _reject(param, value, allowed)
    try:
        number = float(value)
    except OverflowError:
        raise _reject(param, value, allowed) from None
    if not math.isfinite(number) or not low <= number <= high or (above and number == low):
        raise _reject(param, value, allowed)
    return number


def _flag(param: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _reject(param, value, "true or false")
    return value


def _strings(param: str, value: Any, most: int) -> tuple[str, ...]:
    """Return one string or a list of them as a tuple of non-empty, encodable strings."""
    if value is None:
        return ()
    if isinstance(value, str):
        value = (value,)
    allowed = f"at most {most} non-empty strings of at most {MAX_STRING_CHARS} characters"
    if not isinstance(value, (list, tuple)):
        raise _reject(param, value, allowed)
    if len(value) > most:
        raise InvalidRequestError(f"{param} has {len(value)} entries: give {allowed}", param)
    for index, text in enumerate(value):
        if not isinstance(text, str) or not text or len(text) > MAX_STRING_CHARS:
            raise _reject(f"{param}[{index}]", text, allowed)
        _encodable(f"{param}[{index}]", text)
    return tuple(value)


def _encodable(param: str, text: str) -> None:
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise InvalidRequestError(f"{param} holds a lone surrogate: give text that UTF-8 can encode", param)


def _ids(param: str, value: Any, most: int, *, least: int = 0) -> tuple[int, ...]:
    """Return a list of token ids as a tuple of ints."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise _reject(param, value, f"a list of {least} to {most} token ids")
    ids = tuple(value)
    if not least <= len(ids) <= most:
        raise InvalidRequestError(f"{param} has {len(ids)} token ids: give {least} to {most}", param)
    return tuple(_integer(param, entry, 0, MAX_INT, "token ids, integers from 0") for entry in ids)


def _bias(value: Any) -> dict[int, float]:
    """Return a bias map with integer keys and values clamped to +-MAX_BIAS."""
    param = "logit_bias"
    if not isinstance(value, Mapping):
        raise _reject(param, value, "a map from token id to bias")
    if len(value) > MAX_LOGIT_BIAS:
        raise InvalidRequestError(f"{param} has {len(value)} entries: give at most {MAX_LOGIT_BIAS}", param)
    out: dict[int, float] = {}
    for key, bias in value.items():
        digits = isinstance(key, str) and key.isascii() and key.removeprefix("-").isdigit() and len(key) <= 20
        token = int(key) if digits or (isinstance(key, Integral) and not isinstance(key, bool)) else -1
        if not 0 <= token <= MAX_INT:
            raise InvalidRequestError(
                f"{param} has the key {_shown(key)}: keys are token ids, integers from 0 to vocabulary size - 1", param
            )
        if token in out:
            raise InvalidRequestError(f"{param} has token id {token} twice: give each id once", param)
        number = _number(f"{param}[{token}]", bias, -MAX_NUMBER, MAX_NUMBER)
        out[token] = max(-MAX_BIAS, min(MAX_BIAS, number))
    return out


def _extra(value: Any) -> dict[str, Any]:
    """Return extra_args after checking that it is small and JSON-like, with integers that a wire can carry."""
    if not isinstance(value, dict):
        raise _reject("extra_args", value, "a map with string keys and JSON values")
    pending: list[tuple[str, Any, int]] = [("extra_args", value, 0)]
    nodes = chars = 0
    while pending:
        path, node, depth = pending.pop()
        nodes += 1
        if isinstance(node, dict):
            for key, child in node.items():
                if not isinstance(key, str):
                    raise InvalidRequestError(f"{path} has the key {_shown(key)}: keys are strings", "extra_args")
                _encodable("extra_args", key)
                chars += len(key)
                pending.append((f"{path}.{key[:40]}", child, depth + 1))
        elif isinstance(node, list):
            pending.extend((path, child, depth + 1) for child in node)
        elif isinstance(node, str):
            _encodable(path, node)
            chars += len(node)
        elif isinstance(node, int) and not isinstance(node, bool):
            _integer(path, node, -(1 << 63), (1 << 64) - 1)
        elif isinstance(node, float) and not math.isfinite(node):
            raise _reject(path, node, "finite numbers")
        elif not isinstance(node, (float, bool, type(None))):
            raise _reject(path, node, "JSON values: maps, lists, strings, numbers, booleans or null")
        if nodes > MAX_EXTRA_NODES or depth > MAX_EXTRA_DEPTH or chars > MAX_EXTRA_CHARS:
            raise InvalidRequestError(
                f"extra_args is too large: give at most {MAX_EXTRA_NODES} values, {MAX_EXTRA_DEPTH} levels and "
                f"{MAX_EXTRA_CHARS} characters",
                "extra_args",
            )
    return value


class RepetitionDetection(msgspec.Struct, frozen=True, kw_only=True):
    """Stop when the last tokens repeat one pattern: pattern sizes in tokens, count in repeats."""

    max_pattern_size: int
    min_pattern_size: int = 1
    min_count: int = 2

    def __post_init__(self) -> None:
        """Check ranges. Raises InvalidRequestError naming the field."""
        path = "repetition_detection"
        largest = _integer(f"{path}.max_pattern_size", self.max_pattern_size, 1, 1024)
        smallest = _integer(f"{path}.min_pattern_size", self.min_pattern_size, 1, 1024)
        force_setattr(self, "max_pattern_size", largest)
        force_setattr(self, "min_pattern_size", smallest)
        force_setattr(self, "min_count", _integer(f"{path}.min_count", self.min_count, 2, 1024))
        if smallest > largest:
            raise _reject(f"{path}.min_pattern_size", smallest, f"at most max_pattern_size, which is {largest}")


def _detection(param: str, value: Any) -> RepetitionDetection:
    if not isinstance(value, RepetitionDetection):
        raise _reject(param, value, "a RepetitionDetection")
    return value


def _kind(param: str, value: Any) -> OutputKind:
    if isinstance(value, OutputKind):
        return value
    kinds = {kind.value: kind for kind in OutputKind}
    if not isinstance(value, str) or value not in kinds:
        raise _reject(param, value, f"one of {', '.join(kinds)}")
    return kinds[value]


def _seed(param: str, value: Any) -> int | None:
    seed = _integer(param, value, -(1 << 63), (1 << 63) - 1, "a 64-bit signed integer; -1 is the same as none")
    return None if seed == -1 else seed


def _id_table(param: str, value: Any) -> tuple[tuple[int, ...], ...]:
    """Return a rectangular list of lists of token ids."""
    if not isinstance(value, (list, tuple)) or not value:
        raise _reject(param, value, "a non-empty list of equally long lists of token ids")
    if len(value) * MAX_LOGPROB_TOKEN_IDS > MAX_TOKEN_LIST * 8:
        raise InvalidRequestError(f"{param} has {len(value)} rows: give one, or one per prompt position", param)
    rows = tuple(_ids(param, row, MAX_LOGPROB_TOKEN_IDS, least=1) for row in value)
    if len({len(row) for row in rows}) > 1:
        raise InvalidRequestError(f"{param} has rows of different lengths: give equally long ones", param)
    return rows


def _optional(check: Callable[[str, Any], T]) -> Callable[[str, Any], T | None]:
    return lambda param, value: None if value is None else check(param, value)


def _logprob_count(param: str, value: Any) -> int:
    return _integer(param, value, -1, MAX_INT, "an integer from 0, or -1 for the whole vocabulary")


# Field -> check that returns the normalised value. Cross-field rules are in SamplingParams._check_together.
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "n": lambda p, v: _integer(p, v, 1, MAX_N),
    "presence_penalty": lambda p, v: _number(p, v, -2, 2),
    "frequency_penalty": lambda p, v: _number(p, v, -2, 2),
    "repetition_penalty": lambda p, v: _number(p, v, 0.01, 100),
    "temperature": lambda p, v: _number(p, v, 0, 2),
    "top_p": lambda p, v: _number(p, v, 0, 1, above=True),
    "top_k": lambda p, v: _integer(p, v, -1, MAX_INT, f"an integer from 1 to {MAX_INT}, or 0 or -1 for no limit"),
    "min_p": lambda p, v: _number(p, v, 0, 1),
    "seed": _optional(_seed),
    "stop": lambda p, v: _strings(p, v, MAX_STOP_STRINGS),
    "stop_token_ids": lambda p, v: _ids(p, v, MAX_STOP_TOKEN_IDS),
    "ignore_eos": _flag,
    "max_tokens": _optional(lambda p, v: _integer(p, v, 1, MAX_INT)),
    "min_tokens": lambda p, v: _integer(p, v, 0, MAX_INT),
    "logprobs": _optional(_logprob_count),
    "prompt_logprobs": _optional(_logprob_count),
    "prompt_logprob_token_ids": _optional(_id_table),
    "prompt_logprob_start": lambda p, v: _integer(p, v, 0, MAX_INT),
    "logprob_token_ids": _optional(lambda p, v: _ids(p, v, MAX_LOGPROB_TOKEN_IDS, least=1)),
    "flat_logprobs": _flag,
    "detokenize": _flag,
    "skip_special_tokens": _flag,
    "spaces_between_special_tokens": _flag,
    "include_stop_str_in_output": _flag,
    "output_kind": _kind,
    "stream_interval": lambda p, v: _integer(p, v, 1, 65536),
    "logit_bias": _optional(lambda _, v: _bias(v)),
    "allowed_token_ids": _optional(lambda p, v: _ids(p, v, MAX_TOKEN_LIST, least=1)),
    "bad_words": lambda p, v: _strings(p, v, MAX_BAD_WORDS),
    "extra_args": _optional(lambda _, v: _extra(v)),
    "skip_reading_prefix_cache": _optional(_flag),
    "repetition_detection": _optional(_detection),
    "trace_decode_token_ids": _optional(lambda p, v: _ids(p, v, MAX_TOKEN_LIST, least=1)),
}


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one request is sampled. Field meanings, ranges and order of effects: docs/sampling.md.

    Values are normalised on construction: lists become tuples, a single stop string a tuple of one, top_k -1
    becomes 0 (off), seed -1 becomes None, a temperature below 1e-5 becomes 0 with top_p, top_k and min_p off.
    Raises InvalidRequestError whose `param` names the field.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: tuple[tuple[int, ...], ...] | None = None
    prompt_logprob_start: int = 0
    logprob_token_ids: tuple[int, ...] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: OutputKind = OutputKind.CUMULATIVE
    stream_interval: int = 1
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    extra_args: dict[str, Any] | None = None
    skip_reading_prefix_cache: bool | None = None
    repetition_detection: RepetitionDetection | None = None
    trace_decode_token_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Check and normalise every field, then the fields together."""
        given = msgspec.structs.asdict(self)
        for name, check in _CHECKS.items():
            value = given[name]
            if value is not _DEFAULTS[name]:
                force_setattr(self, name, check(name, value))
        self._normalise()
        self._check_together()

    def _normalise(self) -> None:
        if self.temperature < GREEDY_BELOW:
            for name, value in (("temperature", 0.0), ("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
                force_setattr(self, name, value)
        elif self.temperature < MIN_TEMPERATURE:
            force_setattr(self, "temperature", MIN_TEMPERATURE)
        if self.top_k == -1:
            force_setattr(self, "top_k", 0)
        if self.wants_prompt_logprobs and self.skip_reading_prefix_cache is None:
            force_setattr(self, "skip_reading_prefix_cache", True)

    def _check_together(self) -> None:
        if self.is_greedy and self.n > 1:
            raise InvalidRequestError(
                f"n={self.n} with temperature 0 would give {self.n} equal answers: set n to 1 or raise temperature", "n"
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _reject("min_tokens", self.min_tokens, f"at most max_tokens, which is {self.max_tokens}")
        if self.stop and not self.detokenize:
            raise InvalidRequestError(
                "stop strings need text, and detokenize is false: set detokenize, or use stop_token_ids", "stop"
            )
        ids, table = self.logprob_token_ids, self.prompt_logprob_token_ids
        if ids is not None and self.logprobs is not None and self.logprobs != len(ids):
            raise _reject("logprobs", self.logprobs, f"none, or the length of logprob_token_ids, which is {len(ids)}")
        if table is not None and self.prompt_logprobs is not None and self.prompt_logprobs != len(table[0]):
            length = len(table[0])
            allowed = f"none, or the row length of prompt_logprob_token_ids, which is {length}"
            raise _reject("prompt_logprobs", self.prompt_logprobs, allowed)
        if self.wants_prompt_logprobs and self.skip_reading_prefix_cache is False:
            raise InvalidRequestError(
                "skip_reading_prefix_cache=False contradicts prompt logprobs, which need the whole prompt computed: "
                "leave it out",
                "skip_reading_prefix_cache",
            )
        if self.prompt_logprob_start and not self.wants_prompt_logprobs:
            raise InvalidRequestError(
                f"prompt_logprob_start={self.prompt_logprob_start} has nothing to start: set prompt_logprobs too",
                "prompt_logprob_start",
            )

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken at every step."""
        return self.temperature == 0.0

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether log probabilities of prompt tokens are asked for."""
        return self.prompt_logprobs is not None or self.prompt_logprob_token_ids is not None

    @property
    def wants_logprobs(self) -> bool:
        """Whether log probabilities of generated tokens are asked for."""
        return self.logprobs is not None or self.logprob_token_ids is not None


_DEFAULTS: dict[str, Any] = dict(zip(SamplingParams.__struct_fields__, SamplingParams.__struct_defaults__, strict=True))


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True):
    """How one prompt is beam-searched. Field meanings: docs/sampling.md.

    Raises InvalidRequestError whose `param` names the field.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        """Check and normalise every field."""
        force_setattr(self, "beam_width", _integer("beam_width", self.beam_width, 1, MAX_N))
        force_setattr(self, "max_tokens", _integer("max_tokens", self.max_tokens, 1, MAX_INT))
        force_setattr(self, "temperature", _number("temperature", self.temperature, 0, 2))
        force_setattr(self, "length_penalty", _number("length_penalty", self.length_penalty, -10, 10))
        _flag("ignore_eos", self.ignore_eos)
        _flag("include_stop_str_in_output", self.include_stop_str_in_output)
        _flag("skip_special_tokens", self.skip_special_tokens)


class Logprob(msgspec.Struct, frozen=True):
    """One token's log probability at one position; rank 1 is the most likely token."""

    logprob: float
    rank: int
    decoded_token: str | None = None


def verify(
    params: SamplingParams,
    *,
    vocab_size: int,
    max_logprobs: int = 20,
    num_prompt_tokens: int | None = None,
    allow_trace: bool = False,
) -> None:
    """Check a request against the model and the server that are to run it.

    vocab_size: ids run from 0 to vocab_size - 1.   max_logprobs: most a request may ask for; -1 is no limit.
    num_prompt_tokens: of the tokenised prompt, where it is known already.
    allow_trace: whether trace_decode_token_ids is enabled (enable_trace_replay).
    Raises InvalidRequestError whose `param` names the field.
    """
    _verify_ids(params, vocab_size)
    limit = vocab_size if max_logprobs == -1 else max_logprobs
    for name, count in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        wanted = vocab_size if count == -1 else count or 0
        if wanted > limit:
            shown = f"-1 (the whole vocabulary, {vocab_size})" if count == -1 else str(count)
            advice = "ask for fewer, or start with a higher max_logprobs"
            raise InvalidRequestError(f"{name}={shown} is above the limit of {limit}: {advice}", name)
    if params.trace_decode_token_ids is not None and not allow_trace:
        name = "trace_decode_token_ids"
        raise InvalidRequestError(f"{name} is off: leave it out, or start with enable_trace_replay", name)
    if num_prompt_tokens is not None:
        _verify_prompt(params, num_prompt_tokens)


def _verify_ids(params: SamplingParams, vocab_size: int) -> None:
    """Refuse ids outside the vocabulary, and a request that leaves no token to choose."""
    tables = params.prompt_logprob_token_ids or ()
    for name, ids in (
        ("stop_token_ids", params.stop_token_ids),
        ("logit_bias", params.logit_bias),
        ("allowed_token_ids", params.allowed_token_ids),
        ("logprob_token_ids", params.logprob_token_ids),
        ("trace_decode_token_ids", params.trace_decode_token_ids),
        *(("prompt_logprob_token_ids", row) for row in tables),
    ):
        if ids and (largest := max(ids)) >= vocab_size:
            raise InvalidRequestError(
                f"{name} has token id {largest}: the model's ids run from 0 to {vocab_size - 1}; remove it", name
            )


def _verify_prompt(params: SamplingParams, num_prompt_tokens: int) -> None:
    """Refuse prompt logprob options that do not fit the prompt's length."""
    start = params.prompt_logprob_start
    if params.wants_prompt_logprobs and start >= num_prompt_tokens:
        allowed = f"a position of the prompt, from 0 to {num_prompt_tokens - 1}"
        raise _reject("prompt_logprob_start", start, allowed)
    table = params.prompt_logprob_token_ids
    if table is not None and len(table) not in (1, num_prompt_tokens - start):
        name = "prompt_logprob_token_ids"
        allowed = f"1 row for all positions, or {num_prompt_tokens - start}: one per prompt position from {start}"
        raise InvalidRequestError(f"{name} has {len(table)} rows: give {allowed}", name)
