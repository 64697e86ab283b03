"""Every sampling op equals its formula, written again here in float64 or in plain Python integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from octavo.ops import op as op_module
from octavo.ops import sample

op_module.load("torch")
OPS = op_module.bind(["torch"])
MASK = (1 << 64) - 1
Arrays = dict[str, Any]


def _argmax(x: np.ndarray) -> list[np.ndarray]:
    return [x.max(1), x.argmax(1)]


def _top_k(x: np.ndarray, k: int) -> list[np.ndarray]:
    ids = np.array([sorted(range(x.shape[1]), key=lambda v: (-row[v], v))[:k] for row in x])
    return [np.take_along_axis(x, ids, 1), ids]


def _rank(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.array([[1 + sum(x[i] > value) for value in theirs] for i, theirs in enumerate(values)])


def _keep_only(x: np.ndarray, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
    listed = set(zip(rows.tolist(), ids.tolist(), strict=True))
    for i, v in np.ndindex(*x.shape):
        if i in rows and (i, v) not in listed:
            x[i, v] = -np.inf
    return x


def _edit(x: np.ndarray, rows: np.ndarray, ids: np.ndarray, change: Callable[[int, float], float]) -> np.ndarray:
    for i, (row, token) in enumerate(zip(rows, ids, strict=True)):
        x[row, token] = change(i, x[row, token])
    return x


def _penalize(x: np.ndarray, rows: np.ndarray, ids: np.ndarray, counts: np.ndarray, **penalties: Any) -> np.ndarray:
    def change(i: int, value: float) -> float:
        repetition, frequency, presence = (penalties[name][rows[i]] for name in ("repetition", "frequency", "presence"))
        value = value / repetition if value > 0 else value * repetition
        return value - frequency * counts[i] - presence * (counts[i] > 0)

    return _edit(x, rows, ids, change)


def _min_p(x: np.ndarray, rows: np.ndarray, min_p: np.ndarray) -> np.ndarray:
    for row, share in zip(rows, min_p, strict=True):
        probabilities = special.softmax(x[row])
        x[row, probabilities < share * probabilities.max() * (1 - 1e-7)] = -np.inf
    return x


def _truncate(x: np.ndarray, rows: np.ndarray, top_k: np.ndarray, top_p: np.ndarray) -> np.ndarray:
    for row, k, p in zip(rows, top_k, top_p, strict=True):
        if k:
            x[row, x[row] < np.sort(x[row])[-k]] = -np.inf
        probabilities = special.softmax(x[row])
        before = 0.0
        for rank, token in enumerate(sorted(range(x.shape[1]), key=lambda v: (-x[row, v], v))):
            if p < 1 and rank > 0 and before >= p:
                x[row, token] = -np.inf
            before += probabilities[token]
    return x


def mix64(z: int) -> int:
    """SplitMix64's output function."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def noise(key: int, token: int) -> float:
    """Gumbel noise of one token, from the op's docstring."""
    h = mix64((key + (token + 1) * 0x9E3779B97F4A7C15) & MASK) >> 32
    return -np.log(-np.log1p(-(h + 0.5) * 2.0**-32))


def _draw(x: np.ndarray, keys: np.ndarray) -> np.ndarray:
    return np.array(
        [
            np.argmax([value + noise(key, token) for token, value in enumerate(row.tolist())])
            for row, key in zip(x, keys.tolist(), strict=True)
        ]
    )


FORMULAS: dict[str, Callable[..., Any]] = {
    "row_argmax": _argmax,
    "row_logsumexp": lambda x: special.logsumexp(x, axis=1),
    "row_top_k": _top_k,
    "row_gather": lambda x, ids: np.take_along_axis(x, ids, 1),
    "row_rank": _rank,
    "add_at": lambda x, rows, ids, values: _edit(x, rows, ids, lambda i, value: value + values[i]),
    "fill_at": lambda x, rows, ids, value: _edit(x, rows, ids, lambda *_: value),
    "keep_only": _keep_only,
    "put_row": lambda x, row, values: np.concatenate([x[:row], values[None], x[row + 1 :]]),
    "penalize": _penalize,
    "scale_rows": lambda x, factors: x * factors[:, None],
    "mask_min_p": _min_p,
    "mask_top_k_top_p": _truncate,
    "gumbel_argmax": _draw,
}
EDITS = set(FORMULAS) - {name for name in FORMULAS if name.startswith("row_")} - {"gumbel_argmax"}


def _tensors(name: str, args: Arrays) -> Arrays:
    """Make tensors of the arguments that are tensors by the op's schema."""
    annotations = op_module.registered()[name].signature.parameters
    return {
        key: OPS.from_host(value.copy()) if annotations[key].annotation == "Tensor" else value
        for key, value in args.items()
    }


def _cases() -> list[Any]:
    rng = np.random.default_rng(0)
    return [
        pytest.param(name, case, id=f"{name}-{case.name}")
        for name in FORMULAS
        for case in op_module.registered()[name].make_cases(rng)
    ]


@pytest.mark.parametrize(("name", "case"), _cases())
def test_reference_equals_its_formula(name: str, case: op_module.Case) -> None:
    exact = {
        key: value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype == np.float32 else value
        for key, value in case.args.items()
    }
    tensors = _tensors(name, dict(case.args))
    results = getattr(OPS, name)(**tensors)
    expected = FORMULAS[name](**exact)
    pairs = zip(results, expected, strict=True) if isinstance(expected, list) else [(results, expected)]
    for result, wanted in pairs:
        np.testing.assert_allclose(OPS.to_host(result), wanted, rtol=case.rtol, atol=case.atol)
    if name in EDITS:
        np.testing.assert_array_equal(OPS.to_host(tensors["x"]), OPS.to_host(results), "an edit is in place")


def test_every_op_of_the_family_has_a_formula_and_cases() -> None:
    rng = np.random.default_rng(0)
    assert set(FORMULAS) == set(sample.__all__) - {"to_f32"}
    assert all(list(op_module.registered()[name].make_cases(rng)) for name in FORMULAS)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_argmax_works_on_the_models_own_dtype(dtype: str) -> None:
    x = OPS.from_host(np.random.default_rng(1).standard_normal((5, 700), dtype=np.float32), dtype)
    exact = OPS.to_host(OPS.to_f32(x))
    np.testing.assert_array_equal(OPS.to_host(OPS.row_argmax(x)[1]), exact.argmax(1))


@pytest.mark.parametrize("vocab", [3, 63, 64, 65, 128, 700, 20011])
def test_argmax_takes_the_first_of_equals_wherever_they_are(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    x = rng.integers(0, 3, (20, vocab)).astype(np.float32)
    np.testing.assert_array_equal(OPS.to_host(OPS.row_argmax(OPS.from_host(x))[1]), x.argmax(1))


@pytest.mark.parametrize("place", [0, 64, 130])
def test_argmax_reports_a_nan_and_only_in_its_row(place: int) -> None:
    x = np.zeros((2, 131), np.float32)
    x[0, place] = np.nan
    values = OPS.to_host(OPS.row_argmax(OPS.from_host(x))[0])
    assert np.isnan(values[0])
    assert values[1] == 0


@pytest.mark.parametrize("vocab", [5, 64, 200, 1000])
@pytest.mark.parametrize("k", [1, 2, 5, 64])
def test_top_k_settles_ties_by_id_at_every_size(vocab: int, k: int) -> None:
    rng = np.random.default_rng(vocab * k)
    x = rng.integers(0, 6, (10, vocab)).astype(np.float32)
    k = min(k, vocab)
    values, ids = OPS.row_top_k(OPS.from_host(x), k)
    expected = _top_k(x, k)
    np.testing.assert_array_equal(OPS.to_host(values), expected[0])
    np.testing.assert_array_equal(OPS.to_host(ids), expected[1])


@pytest.mark.parametrize("seed", range(30))
def test_truncation_equals_its_formula_on_random_limits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocab = int(rng.choice([6, 70, 300, 1000]))
    x = (rng.standard_normal((4, vocab)) * rng.choice([0.1, 2, 8])).astype(np.float32)
    x[:, rng.random(vocab) < 0.3] = np.round(x[:, 1:2])  # ties
    x[:, rng.random(vocab) < 0.2] = -np.inf
    x[:, 0] = 1
    top_k = rng.integers(0, vocab + 2, 4)
    top_p = rng.choice([1.0, 0.999, 0.9, 0.5, 0.1], 4)
    got = OPS.to_host(OPS.mask_top_k_top_p(OPS.from_host(x.copy()), np.arange(4), top_k, top_p))
    np.testing.assert_array_equal(got, _truncate(x.astype(np.float64), np.arange(4), np.minimum(top_k, vocab), top_p))


def test_ties_on_the_top_k_border_are_all_kept() -> None:
    x = OPS.from_host(np.array([[2, 1, 1, 1, 0]], np.float32))
    out = OPS.to_host(OPS.mask_top_k_top_p(x, np.array([0]), np.array([2]), np.array([1.0])))
    assert np.isfinite(out[0]).tolist() == [True, True, True, True, False]


def test_a_nucleus_of_equals_takes_the_lowest_ids() -> None:
    x = OPS.from_host(np.zeros((1, 8), np.float32))
    out = OPS.to_host(OPS.mask_top_k_top_p(x, np.array([0]), np.array([0]), np.array([0.5])))
    assert np.isfinite(out[0]).tolist() == [True] * 4 + [False] * 4


def test_the_draw_skips_nothing_that_could_win() -> None:
    """Long flat rows, where thousands contend: the selection of contenders loses no winner."""
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((6, 9000)) * np.array([[0.01], [0.5], [1], [2], [4], [9]])).astype(np.float32)
    x[:, ::7] = -np.inf
    keys = rng.integers(0, 1 << 64, 6, np.uint64)
    ids = np.arange(9000)
    with np.errstate(over="ignore"):
        z = keys[:, None] + (ids + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    w = ((z >> np.uint64(32)).astype(np.float64) + 0.5) * 2.0**-32
    expected = (x.astype(np.float64) - np.log(-np.log1p(-w))).argmax(1)
    np.testing.assert_array_equal(OPS.to_host(OPS.gumbel_argmax(OPS.from_host(x), keys)), expected)


def test_a_row_without_any_token_gives_minus_one() -> None:
    x = np.array([[-np.inf] * 4, [0, -np.inf, -np.inf, -np.inf]], np.float32)
    out = OPS.to_host(OPS.gumbel_argmax(OPS.from_host(x), np.array([1, 2], np.uint64)))
    assert out.tolist() == [-1, 0]


def test_the_draw_follows_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.1, 0.02, 0.005], np.float32))
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 1 << 64, 20000, np.uint64)
    drawn = OPS.to_host(OPS.gumbel_argmax(OPS.from_host(np.tile(logits, (len(keys), 1))), keys))
    expected = special.softmax(logits.astype(np.float64)) * len(keys)
    assert stats.chisquare(np.bincount(drawn, minlength=6), expected).pvalue > 1e-4


def test_a_draw_does_not_depend_on_the_other_rows() -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((8, 500), dtype=np.float32)
    keys = rng.integers(0, 1 << 64, 8, np.uint64)
    together = OPS.to_host(OPS.gumbel_argmax(OPS.from_host(x), keys))
    alone = [int(OPS.to_host(OPS.gumbel_argmax(OPS.from_host(x[i : i + 1]), keys[i : i + 1]))[0]) for i in range(8)]
    assert together.tolist() == alone
