"""Reference implementations of ops/attention.py.

Shapes: T tokens, B requests, N query heads, K kv heads, G = N / K, H head dim, L key lanes, W blocks.
Requests with one query are batched over padded block tables; each longer chunk is attended by itself.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from octavo.ops import attention
from octavo.ops.torch.elementwise import DTYPES

QUERY_TILE = 512  # queries per tile of a chunk: bounds the mask at QUERY_TILE x L floats
PADDING = 1.5  # a decode joins a bucket whose longest request has at most this many times its blocks


@dataclass(frozen=True, slots=True)
class Decodes:
    """Requests with one query each, padded to one number of blocks.

    tokens: [B] query rows, or None when they are all rows in order.   blocks: [B * W] block ids, 0 is padding.
    stale: lanes of the flat [B * L] that belong to no token, inside last blocks.
    mask: [B, 1, 1, L], 0 or -inf, or None.
    """

    tokens: torch.Tensor | None
    num_reqs: int
    blocks: torch.Tensor
    stale: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries [start, stop) of the batch over key lanes [first, last) of their request's gathered keys."""

    start: int
    stop: int
    first: int
    last: int
    mask: (
        torch.Tensor | None
    )  # [queries, lanes], or None: plainly causal over an equal number of lanes (or one query over all)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One request's queries, tile by tile.   run: first block id when its blocks are consecutive, else None."""

    run: int | None
    blocks: torch.Tensor
    num_keys: int
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What paged_attention does for a batch, the same for all layers of a group."""

    decodes: tuple[Decodes, ...]
    chunks: tuple[Chunk, ...]


@attention.new_kv_cache.impl("torch")
def new_kv_cache(num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: str) -> torch.Tensor:
    """Map anonymous memory: zero pages come as they are first written (torch.zeros would touch them all)."""
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    count = math.prod(shape)
    pages = mmap.mmap(-1, count * DTYPES[dtype].itemsize)
    return torch.frombuffer(pages, dtype=DTYPES[dtype], count=count).view(shape)


@attention.write_kv.impl("torch")
def write_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """Copy rows into slots."""
    for values, cache in ((k, k_cache), (v, v_cache)):
        rows = cache.view(-1, cache.shape[2] * cache.shape[3])
        rows.index_copy_(0, slots, values.to(cache.dtype))


@attention.plan_attention.impl("torch")
def plan_attention(
    query_start: np.ndarray, seq_lens: np.ndarray, block_table: np.ndarray, block_size: int, window: int | None
) -> Plan:
    """Sort requests into padded decode buckets and chunks."""
    query_lens = np.diff(query_start)
    first_visible = np.maximum(0, seq_lens - query_lens + 1 - window) if window else np.zeros_like(seq_lens)
    first_block = first_visible // block_size
    num_blocks = -(-seq_lens // block_size) - first_block
    single = np.flatnonzero(query_lens == 1)
    chunked = np.flatnonzero(query_lens > 1)
    if len(single) == 1:  # alone: exact lanes, no padding, no mask
        chunked, single = np.concatenate([single, chunked]), single[:0]
    chunks = []
    for b in chunked:
        table = block_table[b, first_block[b] : first_block[b] + num_blocks[b]]
        chunks.append(
            _plan_chunk(query_start[b], query_start[b + 1], seq_lens[b] - first_block[b] * block_size, table, window)
        )
    decodes = []
    order = single[np.argsort(num_blocks[single], kind="stable")]
    while len(order):
        cut = int(np.searchsorted(num_blocks[order] * PADDING, num_blocks[order[-1]]))
        bucket, order = np.sort(order[cut:]), order[:cut]
        every = len(bucket) == int(query_start[-1])
        decodes.append(
            _plan_decodes(
                None if every else query_start[bucket],
                block_table[bucket],
                first_block[bucket],
                num_blocks[bucket],
                np.stack([first_visible[bucket], seq_lens[bucket]]) - first_block[bucket] * block_size,
                block_size=block_size,
            )
        )
    return Plan(tuple(decodes), tuple(chunks))


def _plan_decodes(
    tokens: np.ndarray | None,
    table: np.ndarray,
    first_block: np.ndarray,
    num_blocks: np.ndarray,
    visible: np.ndarray,
    *,
    block_size: int,
) -> Decodes:
    """Pad block tables and mark lanes.   visible: [2, B], first and one past last key lane of each request."""
    width = int(num_blocks.max())
    column = np.arange(width)
    used = column < num_blocks[:, None]
    source = np.minimum(first_block[:, None] + column, table.shape[1] - 1)
    blocks = np.where(used, np.take_along_axis(table, source, axis=1), 0).astype(np.int64)
    lane = np.arange(width * block_size)
    inside = (lane >= visible[0][:, None]) & (lane < visible[1][:, None])
    stale = np.flatnonzero(np.repeat(used, block_size, axis=1) & (lane >= visible[1][:, None]))
    mask = None
    if not inside.all():
        mask = torch.zeros(inside.shape).masked_fill_(torch.from_numpy(~inside), -torch.inf)[:, None, None, :]
    return Decodes(
        None if tokens is None else torch.from_numpy(tokens.astype(np.int64)),
        len(table),
        torch.from_numpy(blocks.reshape(-1)),
        torch.from_numpy(stale),
        mask,
    )


def _plan_chunk(start: int, stop: int, num_keys: int, table: np.ndarray, window: int | None) -> Chunk:
    """Cut one request's queries into tiles; the last query sees key lane num_keys - 1."""
    offset = num_keys - (stop - start)  # lane of the first query's own key
    tiles = []
    for tile_start in range(start, stop, QUERY_TILE):
        tile_stop = min(tile_start + QUERY_TILE, stop)
        lanes = np.arange(offset + tile_start - start, offset + tile_stop - start)  # each query's own lane
        first = max(0, lanes[0] + 1 - window) if window else 0
        last = int(lanes[-1]) + 1
        mask = None
        plain = (len(lanes) == 1 or len(lanes) == last - first) and not (window and last - first > window)
        if not plain:
            key = np.arange(first, last)
            hidden = key > lanes[:, None]
            if window:
                hidden |= key <= lanes[:, None] - window
            mask = torch.zeros(hidden.shape).masked_fill_(torch.from_numpy(hidden), -torch.inf)
        tiles.append(Tile(int(tile_start), int(tile_stop), int(first), last, mask))
    consecutive = bool((np.diff(table) == 1).all())
    return Chunk(
        int(table[0]) if consecutive else None, torch.from_numpy(table.astype(np.int64)), int(num_keys), tuple(tiles)
    )


@attention.paged_attention.impl("torch")
def paged_attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, plan: Plan, scale: float, softcap: float | None
) -> torch.Tensor:
    """Attend bucket by bucket and chunk by chunk."""
    num_kv_heads, head_dim = k_cache.shape[2:]
    q_TKGH = q.view(q.shape[0], num_kv_heads, -1, head_dim)
    out = torch.empty_like(q_TKGH)
    for decodes in plan.decodes:
        _attend_decodes(q_TKGH, k_cache, v_cache, decodes, scale=scale, softcap=softcap, out=out)
    for chunk in plan.chunks:
        k_LKH, v_LKH = (_gather_chunk(cache, chunk, q.dtype) for cache in (k_cache, v_cache))
        for tile in chunk.tiles:
            # [K, G, Q, H] over [K, G, L, H]: a group's queries share its keys through a stride of zero
            q_KGQH = q_TKGH[tile.start : tile.stop].permute(1, 2, 0, 3)
            k_KGLH, v_KGLH = (
                x[tile.first : tile.last].permute(1, 0, 2).unsqueeze(1).expand(-1, q_KGQH.shape[1], -1, -1)
                for x in (k_LKH, v_LKH)
            )
            causal = tile.mask is None and tile.stop - tile.start > 1
            attended = _attend(q_KGQH, k_KGLH, v_KGLH, tile.mask, causal=causal, scale=scale, softcap=softcap)
            out[tile.start : tile.stop] = attended.permute(2, 0, 1, 3)
    return out.view(q.shape)


def _gather_chunk(cache: torch.Tensor, chunk: Chunk, dtype: torch.dtype) -> torch.Tensor:
    """Return a request's [L, K, H] keys or values: a view where its blocks are consecutive and of q's dtype."""
    if chunk.run is None:
        blocks = cache.index_select(0, chunk.blocks)
    else:
        blocks = cache[chunk.run : chunk.run + len(chunk.blocks)]
    return blocks.view(-1, *cache.shape[2:])[: chunk.num_keys].to(dtype)


def _attend_decodes(
    q_TKGH: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    decodes: Decodes,
    *,
    scale: float,
    softcap: float | None,
    out: torch.Tensor,
) -> None:
    """Attend one padded bucket; writes its rows of out."""
    q_BKGH = q_TKGH if decodes.tokens is None else q_TKGH.index_select(0, decodes.tokens)
    gathered = []
    for cache in (k_cache, v_cache):
        lanes = cache.view(cache.shape[0], -1).index_select(0, decodes.blocks).view(-1, cache.shape[2] * cache.shape[3])
        lanes.index_fill_(0, decodes.stale, 0)
        gathered.append(lanes.view(decodes.num_reqs, -1, *cache.shape[2:]).to(q_TKGH.dtype).transpose(1, 2))
    attended = _attend(q_BKGH, gathered[0], gathered[1], decodes.mask, causal=False, scale=scale, softcap=softcap)
    if decodes.tokens is None:
        out.copy_(attended)
    else:
        out.index_copy_(0, decodes.tokens, attended)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    causal: bool,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Return softmax(q k^T scale + mask) v over [.., Q, H] x [.., L, H]."""
    if softcap is None:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=None if mask is None else mask.to(q.dtype), is_causal=causal, scale=scale
        )
    scores = torch.matmul(q.float(), k.float().transpose(-1, -2)).mul_(scale / softcap).tanh_().mul_(softcap)
    if mask is not None:
        scores += mask
    if causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool).triu_(1), -torch.inf)
    return torch.matmul(scores.softmax(-1).to(q.dtype), v)
