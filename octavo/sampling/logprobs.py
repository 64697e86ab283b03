"""Log probabilities of generated and of prompt tokens, with ranks.

Modes: raw_* are taken from the model's logits, processed_* after every processor, the temperature and the
truncations; *_logprobs are log_softmax values, *_logits the logits themselves. Prompt tokens were not sampled, so
for them processed_* is the same as raw_*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.engine.messages import TokenLogprobs
from octavo.errors import RequestFailedError
from octavo.ops.op import Ops, Tensor
from octavo.sampling.processor import TokenTable
from octavo.scheduler.plan import NewRow
from octavo.types import SamplingParams

__all__ = ["LogprobsMode", "PromptLogprobs", "Wanted", "collect", "parse_mode", "wanted"]

SLICE_BYTES = 32 << 20  # of float32 logits that prompt logprobs hold at a time


@dataclass(frozen=True, slots=True)
class LogprobsMode:
    """What logprobs are computed from.   processed: after processors.   normalized: log_softmax, not logits."""

    processed: bool
    normalized: bool


def parse_mode(mode: str) -> LogprobsMode:
    """Read raw_logprobs, raw_logits, processed_logprobs or processed_logits."""
    source, _, kind = mode.partition("_")
    assert source in ("raw", "processed") and kind in ("logprobs", "logits"), mode
    return LogprobsMode(source == "processed", kind == "logprobs")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which logprobs one position asks for, beside its own token's.

    count: the likeliest `count` tokens, -1 for all.   ids: these tokens instead, or None.
    """

    count: int
    ids: tuple[int, ...] | None = None


def wanted(params: SamplingParams) -> Wanted | None:
    """Return what a request asks for generated tokens, or None."""
    if params.logprob_token_ids is not None:
        return Wanted(0, params.logprob_token_ids)
    return None if params.logprobs is None else Wanted(params.logprobs)


def collect(
    ops: Ops, x: Tensor, tokens: Sequence[int], wishes: Sequence[Wanted], *, vocab_size: int, normalized: bool
) -> list[TokenLogprobs]:
    """Read logprobs off logits, one entry per row.

    x: [L, V] f32, not changed.   tokens: [L] the token of each row, which comes first in its entry.
    wishes: [L] what else; it follows by falling value, then rising id, the token itself not repeated.
    normalized: subtract each row's log-sum-exp.
    """
    own_ids = np.array(tokens, np.int64)[:, None]
    own = ops.row_gather(x, own_ids)
    own_ranks = ops.to_host(ops.row_rank(x, own)).tolist()
    own_values = ops.to_host(own)
    offsets = ops.to_host(ops.row_logsumexp(x)) if normalized else np.zeros(len(tokens), np.float32)
    others: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    for wish in dict.fromkeys(wishes):
        rows = [index for index, other in enumerate(wishes) if other == wish]
        if wish.count == 0 and wish.ids is None:
            continue
        part = x if len(rows) == len(wishes) else ops.take_rows(x, ops.from_host(np.array(rows, np.int64)))
        found = _likeliest(ops, part, wish.count, vocab_size) if wish.ids is None else _chosen(ops, part, wish.ids)
        others.update(zip(rows, zip(*found, strict=True), strict=True))
    out = []
    for index, token in enumerate(tokens):
        entry = TokenLogprobs([token], [float(own_values[index, 0] - offsets[index])], own_ranks[index])
        if index in others:
            values, ids, ranks = others[index]
            rest = ids != token
            entry.token_ids += ids[rest].tolist()
            entry.logprobs += (values[rest] - offsets[index]).tolist()
            entry.ranks += ranks[rest].tolist()
        out.append(entry)
    return out


def _likeliest(ops: Ops, x: Tensor, count: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values, ids and ranks of the `count` likeliest tokens of each row, [L, K] each."""
    top = ops.row_top_k(x, vocab_size if count == -1 else min(count, vocab_size))
    values, ids = ops.to_host(top[0]), ops.to_host(top[1])
    ranks = np.stack([np.searchsorted(-row, -row, side="left") + 1 for row in values])
    return values, ids, ranks


def _chosen(ops: Ops, x: Tensor, ids: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values, ids and ranks of given tokens in each row, by falling value then rising id, [L, M] each."""
    unique = np.unique(np.array(ids, np.int64))
    height = ops.to_host(x).shape[0]
    tensor = ops.row_gather(x, np.tile(unique, (height, 1)))
    ranks, values = ops.to_host(ops.row_rank(x, tensor)), ops.to_host(tensor)
    order = np.argsort(-values, axis=1, kind="stable")
    return np.take_along_axis(values, order, 1), unique[order], np.take_along_axis(ranks, order, 1)


class PromptLogprobs:
    """Scores prompt tokens from hidden states as chunks of the prompt are computed, a slice of rows at a time."""

    def __init__(self, ops: Ops, *, logprobs_mode: str, table: TokenTable, vocab_size: int) -> None:
        self.ops = ops
        self.mode = parse_mode(logprobs_mode)
        self.table = table
        self.vocab_size = vocab_size
        self.slice_rows = max(1, SLICE_BYTES // (4 * vocab_size))
        self._params: dict[int, SamplingParams] = {}
        self._first: dict[int, int] = {}

    def add(self, request: NewRow) -> None:
        """Take a request in, in place of what its row was before."""
        self.remove(request.row)
        if request.params.wants_prompt_logprobs:
            self._params[request.row] = request.params
            self._first[request.row] = max(1, request.params.prompt_logprob_start, request.prompt_logprobs_from)

    def remove(self, row: int) -> None:
        """Forget a row, if it is known."""
        self._params.pop(row, None)
        self._first.pop(row, None)

    def wants(self, row: int) -> bool:
        """Say whether the row asked for prompt logprobs."""
        return row in self._params

    def compute(
        self, row: int, begin: int, count: int, hidden: Tensor, logits: Callable[[Tensor], Tensor]
    ) -> list[TokenLogprobs]:
        """Score the prompt tokens that a chunk predicts.

        begin, count: the chunk's positions, begin .. begin + count - 1.   hidden: [count, D] of these.
        logits: hidden [S, D] -> [S, V]; it is asked for at most slice_rows rows at a time.
        Returns entries for positions begin + 1 .. begin + count that are in the prompt and not before
        prompt_logprob_start, nor before the request's prompt_logprobs_from; position 0 has no logprobs.
        Raises RequestFailedError when the model's logits are not finite.
        """
        params, prompt = self._params[row], self.table.prompt(row)
        first = max(begin + 1, self._first[row])
        end = min(begin + count + 1, len(prompt))
        out: list[TokenLogprobs] = []
        for start in range(first, end, self.slice_rows):
            positions = range(start, min(start + self.slice_rows, end))
            index = self.ops.from_host(np.arange(positions.start, positions.stop, dtype=np.int64) - 1 - begin)
            x = self.ops.to_f32(logits(self.ops.take_rows(hidden, index)))
            self._check(x, positions)
            wishes = [_prompt_wish(params, position) for position in positions]
            tokens = prompt[positions.start : positions.stop].tolist()
            out += collect(self.ops, x, tokens, wishes, vocab_size=self.vocab_size, normalized=self.mode.normalized)
        return out

    def _check(self, x: Tensor, positions: range) -> None:
        highest = self.ops.to_host(self.ops.row_argmax(x)[0])
        if not np.isfinite(highest).all():
            bad = positions[int(np.argmin(np.isfinite(highest)))]
            raise RequestFailedError(f"the model's logits after prompt position {bad - 1} are not finite")


def _prompt_wish(params: SamplingParams, position: int) -> Wanted:
    """Return what a request asks for one prompt position."""
    table = params.prompt_logprob_token_ids
    if table is None:
        return Wanted(params.prompt_logprobs or 0)
    return Wanted(0, table[0] if len(table) == 1 else table[position - params.prompt_logprob_start])
