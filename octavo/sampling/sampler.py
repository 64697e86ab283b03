"""Sampler: one token for each row of logits.

Order: raw logprobs are set aside; stages RESTRICT to FORCE edit the logits; greedy rows take the argmax; random rows
are divided by their temperature, narrowed, truncated and drawn from; logprobs are read. A row that fails, fails alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from octavo.engine.messages import TokenLogprobs
from octavo.ops.op import Ops, Tensor
from octavo.sampling.custom import CustomAdapter, CustomProcessor
from octavo.sampling.logprobs import Wanted, collect, parse_mode, wanted
from octavo.sampling.processor import LogitsProcessor, Setting, Stage, TokenTable, discover
from octavo.sampling.rng import draw_key
from octavo.scheduler.plan import NewRow, RowError

__all__ = ["SampledRows", "Sampler"]

_NOT_FINITE = "the model's logits are not finite (NaN or infinity): the weights or the kernels are at fault"
_ALL_MASKED = (
    "every token is masked: allowed_token_ids, bad_words, logit_bias, min_tokens or a custom processor leave none"
)


@dataclass(slots=True)
class SampledRows:
    """What one call sampled; lists are parallel to its rows.

    tokens: ids, -1 for a row that failed.   logprobs: one entry per row, None where not asked for or failed.
    """

    tokens: list[int]
    logprobs: list[TokenLogprobs | None]
    failed: list[RowError] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Row:
    """What the sampler itself keeps of a row. A plain row is greedy and wants nothing else."""

    seed: int
    sample_index: int
    temperature: float
    logprobs: Wanted | None
    users: tuple[LogitsProcessor, ...]
    is_plain: bool


@dataclass(slots=True)
class _Live:
    """Rows still alive in a call.   logits: [L, V].   places: [L] where each stands in the call.   rows: [L]."""

    logits: Tensor
    places: list[int]
    rows: list[int]


class Sampler:
    """Samples rows; keeps per-row state between add and remove."""

    def __init__(
        self,
        ops: Ops,
        *,
        vocab_size: int,
        logprobs_mode: str,
        table: TokenTable,
        custom: Sequence[CustomProcessor] = (),
    ) -> None:
        setting = Setting(ops=ops, table=table, vocab_size=vocab_size)
        adapters = [CustomAdapter(setting, processor) for processor in custom]
        self.ops = ops
        self.table = table
        self.vocab_size = vocab_size
        self.logprobs_mode = logprobs_mode
        self.mode = parse_mode(logprobs_mode)
        self.processors = sorted([*discover(setting), *adapters], key=lambda processor: processor.stage)
        self._rows: dict[int, _Row] = {}

    def add(self, request: NewRow) -> None:
        """Take a request in, in place of what its row was before."""
        self.remove(request.row)
        params = request.params
        users = tuple(processor for processor in self.processors if processor.wants(params))
        for processor in users:
            processor.add(request.row, request)
        edits = any(processor.stage < Stage.TEMPERATURE for processor in users)
        wish = wanted(params)
        self._rows[request.row] = _Row(
            request.seed,
            request.sample_index,
            params.temperature,
            wish,
            users,
            is_plain=params.is_greedy and wish is None and not edits,
        )

    def remove(self, row: int) -> None:
        """Forget a row, if it is known."""
        known = self._rows.pop(row, None)
        if known is not None:
            for processor in known.users:
                processor.remove(row)

    def sample(self, logits: Tensor, rows: Sequence[int]) -> SampledRows:
        """Sample one token for each row.

        logits: [L, V] bf16/f16/f32, the model's; may be edited in place.   rows: [L] row indices, each added before.
        """
        out = SampledRows([-1] * len(rows), [None] * len(rows))
        live = _Live(logits, list(range(len(rows))), list(rows))
        values, ids = (self.ops.to_host(part) for part in self.ops.row_argmax(logits))
        is_sound = np.isfinite(values).tolist()
        failed = [RowError(row, _NOT_FINITE) for row, sound in zip(rows, is_sound, strict=True) if not sound]
        if all(self._rows[row].is_plain for row in rows):
            out.tokens = [token if sound else -1 for token, sound in zip(ids.tolist(), is_sound, strict=True)]
            out.failed = failed
            return out
        live.logits = self.ops.to_f32(logits)
        self._fail(out, live, failed)
        raw = None if self.mode.processed else self._keep_raw(live)
        self._process(live, out, Stage.RESTRICT, Stage.FORCE)
        self._choose(live, out)
        if raw is not None:
            self._report(raw, out)
        return out

    def _fail(self, out: SampledRows, live: _Live, failed: list[RowError]) -> None:
        """Record failed rows and drop them from `live`."""
        if failed:
            out.failed.extend(failed)
            bad = {error.row for error in failed}
            kept = self._subset(live, [index for index, row in enumerate(live.rows) if row not in bad])
            live.logits, live.places, live.rows = kept.logits, kept.places, kept.rows

    def _subset(self, live: _Live, indices: list[int]) -> _Live:
        """Return some of the rows: the same tensor where it is all of them, a copy otherwise."""
        return live if len(indices) == len(live.rows) else self._copy(live, indices)

    def _copy(self, live: _Live, indices: list[int]) -> _Live:
        logits = self.ops.take_rows(live.logits, self.ops.from_host(np.array(indices, np.int64)))
        return _Live(logits, [live.places[index] for index in indices], [live.rows[index] for index in indices])

    def _keep_raw(self, live: _Live) -> _Live | None:
        """Copy the logits of rows that want raw logprobs before anything edits them."""
        indices = [index for index, row in enumerate(live.rows) if self._rows[row].logprobs is not None]
        return self._copy(live, indices) if indices else None

    def _process(self, live: _Live, out: SampledRows, first: Stage, last: Stage) -> None:
        """Run the processors of some stages that any live row uses."""
        used = {id(processor) for row in live.rows for processor in self._rows[row].users}
        for processor in self.processors:
            if first <= processor.stage <= last and id(processor) in used and live.rows:
                self._fail(out, live, processor.apply(live.logits, live.rows))

    def _choose(self, live: _Live, out: SampledRows) -> None:
        """Take the argmax of greedy rows, and draw for the others."""
        is_greedy = [self._rows[row].temperature == 0 for row in live.rows]
        greedy = self._subset(live, [index for index, yes in enumerate(is_greedy) if yes])
        random = self._subset(live, [index for index, yes in enumerate(is_greedy) if not yes])
        if greedy.rows:
            values, ids = (self.ops.to_host(part) for part in self.ops.row_argmax(greedy.logits))
            self._settle(greedy, np.where(values == -np.inf, -1, ids), out)
        if random.rows:
            factors = np.array([1 / self._rows[row].temperature for row in random.rows], np.float32)
            if (factors != 1).any():
                self.ops.scale_rows(random.logits, factors)
            self._process(random, out, Stage.NARROW, Stage.TRUNCATE)
        if random.rows:
            keys = np.array([self._key(row) for row in random.rows], np.uint64)
            self._settle(random, self.ops.to_host(self.ops.gumbel_argmax(random.logits, keys)), out)

    def _key(self, row: int) -> int:
        known = self._rows[row]
        return draw_key(known.seed, known.sample_index, self.table.num_tokens(row))

    def _settle(self, live: _Live, ids: np.ndarray, out: SampledRows) -> None:
        """Write tokens down; rows without one fail. In processed modes, read logprobs."""
        for place, token in zip(live.places, ids.tolist(), strict=True):
            out.tokens[place] = token
        masked = [row for row, token in zip(live.rows, ids.tolist(), strict=True) if token == -1]
        out.failed.extend(RowError(row, _ALL_MASKED) for row in masked)
        if self.mode.processed:
            self._report(live, out)

    def _report(self, live: _Live, out: SampledRows) -> None:
        """Read the logprobs of rows that want them and have a token."""
        indices = [
            index
            for index, (place, row) in enumerate(zip(live.places, live.rows, strict=True))
            if out.tokens[place] != -1 and self._rows[row].logprobs is not None
        ]
        if not indices:
            return
        part = self._subset(live, indices)
        wishes = [wish for row in part.rows if (wish := self._rows[row].logprobs) is not None]
        entries = collect(
            self.ops,
            part.logits,
            [out.tokens[place] for place in part.places],
            wishes,
            vocab_size=self.vocab_size,
            normalized=self.mode.normalized,
        )
        for place, entry in zip(part.places, entries, strict=True):
            out.logprobs[place] = entry
