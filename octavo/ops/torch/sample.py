"""Reference implementations of ops/sample.py.

Rows are worked on one by one: a row fits the cache, a batch does not. Searches look at the maxima of blocks of a row
first, and then only into blocks that can hold what is sought; the answers are exact.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from octavo.ops import sample

_INF = math.inf
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_NOISE_RANGE = 26.02  # from the least to the greatest noise of gumbel_argmax, -3.14 and 22.88
_FEW = 2048  # contenders whose scores are computed without a first selection
_LEAST = torch.finfo(torch.float32).min
_BLOCK = 64  # tokens whose maximum is looked at first
_CHUNK = 32768  # token ids hashed at a time: their int64 values fit the second-level cache
_FIRST_NUCLEUS = 256  # tokens that a nucleus is first looked for in
_BINS = 2048  # of the histogram that a nucleus is searched with
_BINS_PER_NAT = 64.0


def _index(array: np.ndarray, x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, np.int64)).to(x.device)


def _values(array: np.ndarray, x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, np.float32)).to(x.device)


@sample.to_f32.impl("torch")
def to_f32(x: torch.Tensor) -> torch.Tensor:
    """Return x as float32."""
    return x.float()


@sample.row_argmax.impl("torch")
def row_argmax(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the first greatest block of each row, then the first greatest entry in it."""
    count = x.shape[1] // _BLOCK
    if count == 0:
        return torch.max(x, dim=1)
    blocks, tail = x[:, : count * _BLOCK].reshape(len(x), count, _BLOCK), x[:, count * _BLOCK :]
    values, block = blocks.amax(2).max(1)
    ids = block * _BLOCK + blocks[torch.arange(len(x), device=x.device), block].max(1).indices
    if tail.shape[1]:
        tail_values, tail_ids = tail.max(1)
        in_tail = (tail_values > values) | tail_values.isnan()
        values = torch.where(in_tail, tail_values, values)
        ids = torch.where(in_tail, tail_ids + count * _BLOCK, ids)
    return values, ids


def _block_maxima(row: torch.Tensor) -> torch.Tensor:
    """Return the maximum of each whole block of one row; entries after the last whole block follow as they are."""
    whole = len(row) // _BLOCK * _BLOCK
    return torch.cat([row[:whole].reshape(-1, _BLOCK).amax(1), row[whole:]])


def _ids_from(row: torch.Tensor, maxima: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """Return the ids whose value is at least a threshold, rising.   maxima: of _block_maxima(row)."""
    count = len(row) // _BLOCK
    block = torch.nonzero(maxima[:count] >= threshold)
    ids = (block * _BLOCK + torch.arange(_BLOCK, device=row.device)).flatten()
    if count * _BLOCK < len(row):
        ids = torch.cat([ids, torch.arange(count * _BLOCK, len(row), device=row.device)])
    return ids[row[ids] >= threshold]


def _keep(row: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
    """Mask a row but for some ids, whose values are given."""
    row.fill_(-_INF)
    row.index_copy_(0, ids, values)


@sample.row_logsumexp.impl("torch")
def row_logsumexp(x: torch.Tensor) -> torch.Tensor:
    """Return each row's log-sum-exp."""
    return torch.stack([torch.logsumexp(row, 0) for row in x])


@sample.row_top_k.impl("torch")
def row_top_k(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Select with topk, then settle ties by id."""
    parts = [_top_k(row, k) for row in x]
    return torch.stack([values for values, _ in parts]), torch.stack([ids for _, ids in parts])


def _top_k(row: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k greatest of one row, by falling value then rising id: values [k], ids [k]."""
    values, ids = _at_least(row, k)
    return values[:k], ids[:k]


def _at_least(row: torch.Tensor, k: int, floor: float = -_INF) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all entries that are not below the k-th greatest nor below `floor`, by falling value then rising id.

    The k-th greatest block maximum is not above the k-th greatest entry, so it bounds the search.
    """
    if k >= len(row):
        return torch.sort(row, descending=True, stable=True)
    maxima = _block_maxima(row)
    if k <= len(maxima):
        ids = _ids_from(row, maxima, _kth(maxima, k).clamp(min=floor))
    else:
        ids = torch.arange(len(row), device=row.device)
    values = row[ids]
    if k < len(ids):
        enough = values >= _kth(values, k)
        ids, values = ids[enough], values[enough]
    values, order = torch.sort(values, descending=True, stable=True)
    return values, ids[order]


def _kth(values: torch.Tensor, k: int) -> torch.Tensor:
    """Return the k-th greatest value, a scalar."""
    return torch.topk(values, k, sorted=False).values.min()


@sample.row_gather.impl("torch")
def row_gather(x: torch.Tensor, ids: np.ndarray) -> torch.Tensor:
    """Gather along the vocabulary."""
    return x.gather(1, _index(ids, x))


@sample.row_rank.impl("torch")
def row_rank(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Count greater entries, one column of values at a time."""
    counts = [torch.stack([(row > value).sum() for value in theirs]) for row, theirs in zip(x, values, strict=True)]
    return torch.stack(counts) + 1


@sample.add_at.impl("torch")
def add_at(x: torch.Tensor, rows: np.ndarray, ids: np.ndarray, values: np.ndarray) -> torch.Tensor:
    """Add at index pairs."""
    x[_index(rows, x), _index(ids, x)] += _values(values, x)
    return x


@sample.fill_at.impl("torch")
def fill_at(x: torch.Tensor, rows: np.ndarray, ids: np.ndarray, value: float) -> torch.Tensor:
    """Assign at index pairs."""
    x[_index(rows, x), _index(ids, x)] = value
    return x


@sample.keep_only.impl("torch")
def keep_only(x: torch.Tensor, rows: np.ndarray, ids: np.ndarray) -> torch.Tensor:
    """Save the pairs, mask their rows, and put them back."""
    pairs = _index(rows, x), _index(ids, x)
    kept = x[pairs]
    x[_index(np.unique(rows), x)] = -_INF
    x[pairs] = kept
    return x


@sample.put_row.impl("torch")
def put_row(x: torch.Tensor, row: int, values: np.ndarray) -> torch.Tensor:
    """Copy a host row in."""
    x[row] = _values(values, x)
    return x


@sample.penalize.impl("torch")
def penalize(
    x: torch.Tensor,
    rows: np.ndarray,
    ids: np.ndarray,
    counts: np.ndarray,
    repetition: np.ndarray,
    frequency: np.ndarray,
    presence: np.ndarray,
) -> torch.Tensor:
    """Compute on the gathered entries alone."""
    pairs = _index(rows, x), _index(ids, x)
    times = _values(counts, x)
    factor = _values(repetition[rows], x)
    value = x[pairs]
    value = torch.where(value > 0, value / factor, value * factor)
    value -= _values(frequency[rows], x) * times
    value -= _values(presence[rows], x) * (times > 0)
    x[pairs] = value
    return x


@sample.scale_rows.impl("torch")
def scale_rows(x: torch.Tensor, factors: np.ndarray) -> torch.Tensor:
    """Multiply rows."""
    return x.mul_(_values(factors, x)[:, None])


@sample.mask_min_p.impl("torch")
def mask_min_p(x: torch.Tensor, rows: np.ndarray, min_p: np.ndarray) -> torch.Tensor:
    """Mask below a threshold relative to the maximum."""
    for row, share in zip(rows.tolist(), min_p.tolist(), strict=True):
        maxima = _block_maxima(x[row])
        ids = _ids_from(x[row], maxima, maxima.max() + math.log(share))
        _keep(x[row], ids, x[row][ids])
    return x


@sample.mask_top_k_top_p.impl("torch")
def mask_top_k_top_p(x: torch.Tensor, rows: np.ndarray, top_k: np.ndarray, top_p: np.ndarray) -> torch.Tensor:
    """Find the survivors of each row, mask the row, and put them back."""
    for row, k, p in zip(rows.tolist(), top_k.tolist(), top_p.tolist(), strict=True):
        if 0 < k < x.shape[1]:
            values, ids = _at_least(x[row], k, _LEAST)
            size = _nucleus_size(values, p, _mass(values).sum()) if p < 1 else len(values)
            _keep(x[row], ids[:size], values[:size])
        elif p < 1:
            values, ids = _nucleus(x[row], p)
            _keep(x[row], ids, values)
    return x


def _mass(values: torch.Tensor) -> torch.Tensor:
    """Return exp(values - first), float64.   values: falling."""
    return (values - values[0]).double().exp_()


def _nucleus_size(values: torch.Tensor, p: float, total: torch.Tensor) -> int:
    """Count the leading values (falling) whose preceding mass is below p of the total."""
    mass = _mass(values)
    return max(1, int((mass.cumsum(0) - mass < p * total).sum()))


def _nucleus(row: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values and ids of one row's nucleus: among its greatest few, where they hold the mass p."""
    shares = (row - row.amax()).exp_()
    total = shares.sum(dtype=torch.float64)
    values, ids = _at_least(row, _FIRST_NUCLEUS, _LEAST)
    if _mass(values).sum() < p * total * (1 + 1e-6):
        values, ids = _down_to_mass(row, shares, p)
    size = _nucleus_size(values, p, total)
    return values[:size], ids[:size]


def _down_to_mass(row: torch.Tensor, shares: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the greatest entries of a row, enough of them to hold the mass p, by falling value then rising id.

    shares: exp(row - maximum). A histogram of it over the distance from the maximum says how far down to go.
    """
    bins = (row.amax() - row).mul_(_BINS_PER_NAT).clamp_(max=_BINS - 1).int()
    mass = torch.bincount(bins, weights=shares.double(), minlength=_BINS).cumsum(0)
    last = int((mass < p * (1 + 1e-6) * mass[-1]).sum())
    ids = torch.nonzero(bins <= last).flatten()
    values, order = torch.sort(row[ids], descending=True, stable=True)
    return values, ids[order]


@sample.gumbel_argmax.impl("torch")
def gumbel_argmax(x: torch.Tensor, keys: np.ndarray) -> torch.Tensor:
    """Race each row's tokens, computing logarithms only for those that can still win."""
    row_keys = torch.from_numpy(np.ascontiguousarray(keys).view(np.int64)).to(x.device)[:, None]
    if x.shape[1] <= _FEW:
        ids = torch.arange(x.shape[1], device=x.device).expand(x.shape)
    else:
        contenders = [_contenders(row, key) for row, key in zip(x, row_keys, strict=True)]
        ids = torch.nn.utils.rnn.pad_sequence(contenders, batch_first=True, padding_value=-1)
    scores = x.gather(1, ids.clamp(min=0)).double() + _gumbel(_bits(ids, row_keys))
    scores, winners = scores.masked_fill_(ids < 0, -_INF).max(1)
    return ids.gather(1, winners[:, None]).flatten().masked_fill_(scores == -_INF, -1)


def _contenders(row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return the ids of one row that may win, rising; at least one.   key: [1] int64.

    The likeliest token's own score bounds the winner's from below. A token whose logit is further below it than noise
    reaches is out; where many are left, so is one without w <= -log1p(-w) <= exp(logit - bound).
    """
    maxima = _block_maxima(row)
    top = maxima.max()
    first = _ids_from(row, maxima, top)[:1]
    if top == -_INF:
        return first
    dense = int((maxima >= top - _NOISE_RANGE).sum()) * 4 > len(maxima)
    ids = torch.arange(len(row), device=row.device) if dense else _ids_from(row, maxima, top - _NOISE_RANGE)
    if len(ids) <= _FEW:
        return ids
    bound = top.double() + _gumbel(_bits(first, key))
    # The lower limit keeps exp out of slow denormals; 0.001 covers the rounding of float32.
    chances = ((row if dense else row[ids]) - bound.float()).clamp_(min=-30.0).add_(0.001).exp_().mul_(2.0**32)
    parts = zip(ids.split(_CHUNK), chances.split(_CHUNK), strict=True)
    return torch.cat([part[_bits(part, key) <= chance] for part, chance in parts])


def _bits(ids: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return h of the op's docstring, int64 from 0 to 2**32 - 1.   ids: [..., N].   keys: [..., 1] int64."""
    z = (ids + 1).mul_(_signed(_GOLDEN)).add_(keys)
    z ^= _shift(z, 30)
    z *= _signed(_MIX_1)
    z ^= _shift(z, 27)
    z *= _signed(_MIX_2)
    z ^= _shift(z, 31)
    return _shift(z, 32)


def _gumbel(bits: torch.Tensor) -> torch.Tensor:
    """Return the noise g that belongs to h, float64."""
    w = bits.double().add_(0.5).mul_(2.0**-32)
    return w.neg_().log1p_().neg_().log_().neg_()


def _shift(z: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift the bits of an int64 right, bringing zeros in."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """Return the int64 that has a uint64's bits."""
    return value - (1 << 64) if value >> 63 else value
