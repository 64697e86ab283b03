"""When a request ends: the checks after each token, in their order."""

from __future__ import annotations

from octavo.scheduler.request import Request
from octavo.types import FinishReason, RepetitionDetection

__all__ = ["repeats", "stop_of"]


def stop_of(request: Request, max_model_len: int) -> tuple[FinishReason, int | None] | None:
    """Return why the request's last token ends it, with the stop token id of a stop_token_ids match, or None.

    End of sequence, then stop ids, then length, then repetition; below min_tokens only length ends a request.
    """
    wire, params, token = request.wire, request.wire.params, request.tokens[-1]
    num_output = len(request.tokens) - request.num_prompt
    is_free = num_output >= params.min_tokens
    if is_free and not params.ignore_eos and token in wire.eos_token_ids:
        return FinishReason.STOP, None
    if is_free and token in params.stop_token_ids:
        return FinishReason.STOP, token
    if num_output >= wire.max_new_tokens or len(request.tokens) >= max_model_len:
        return FinishReason.LENGTH, None
    detection = params.repetition_detection
    if is_free and detection is not None and repeats(request.tokens, num_output, detection):
        return FinishReason.REPETITION, None
    return None


def repeats(tokens: list[int], num_output: int, detection: RepetitionDetection) -> bool:
    """Return whether the output ends with min_count repeats of one pattern of an allowed size, in tokens."""
    for size in range(max(1, detection.min_pattern_size), detection.max_pattern_size + 1):
        span = size * detection.min_count
        if span > num_output:
            return False
        pattern = tokens[-size:]
        if all(
            tokens[len(tokens) - k * size - size : len(tokens) - k * size] == pattern
            for k in range(1, detection.min_count)
        ):
            return True
    return False
