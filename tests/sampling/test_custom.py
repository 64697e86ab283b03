"""Custom processors: found by name, given a view of the logits, and unable to hurt another request."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from octavo.errors import ConfigError, InvalidRequestError
from octavo.sampling.custom import CustomProcessor, Edit, load, validate
from octavo.types import SamplingParams
from tests.sampling.table import Bench

V = 20


class Force(CustomProcessor):
    """Forces extra_args["force"], plus the number of output tokens so far."""

    def validate(self, params: SamplingParams) -> None:
        """Refuse ids outside the vocabulary."""
        if params.extra_args and params.extra_args.get("force", 0) >= self.vocab_size:
            raise ValueError("force is outside the vocabulary")

    def start(self, params: SamplingParams, prompt: np.ndarray) -> Edit | None:
        """Edit in place for requests that say so."""
        if not params.extra_args:
            return None
        token = params.extra_args["force"]

        def edit(logits: np.ndarray, output: np.ndarray) -> None:
            logits[token + len(output)] = 100

        return edit


class Odd(CustomProcessor):
    """Does what extra_args["odd"] names; allows the prompt's last id otherwise."""

    def start(self, params: SamplingParams, prompt: np.ndarray) -> Edit | None:
        """Raise at once, or return an edit that misbehaves."""
        what = (params.extra_args or {}).get("odd")
        if what == "start":
            raise KeyError("nothing there")

        def edit(logits: np.ndarray, output: np.ndarray) -> Any:
            logits[:] = -7
            if what == "raise":
                raise RuntimeError("boom")
            if what == "write":
                output[0] = 1
            if what == "nan":
                logits[3] = np.nan
            if what == "mask":
                logits[:] = -np.inf
            if what == "list":
                return logits.tolist()
            if what == "shape":
                return logits[:5]
            if what == "dtype":
                return logits.astype(np.int64)
            out = np.full(V, -np.inf)
            out[prompt[-1]] = 0
            return None if what in ("write", "nan", "mask") else out

        return edit


class Sharpen(CustomProcessor):
    """Never changes the argmax; counts its calls."""

    argmax_invariant = True
    calls = 0

    def start(self, params: SamplingParams, prompt: np.ndarray) -> Edit | None:
        """Keep only the likeliest token."""

        def edit(logits: np.ndarray, output: np.ndarray) -> np.ndarray:
            self.calls += 1
            return np.where(logits == logits.max(), logits, -np.inf)

        return edit


def logits_of(rows: int) -> np.ndarray:
    """Make random logits, [rows, V]."""
    return np.random.default_rng(0).normal(0, 2, (rows, V)).astype(np.float32)


def test_an_edit_sees_its_own_request_only() -> None:
    bench = Bench(V, custom=load([f"{__name__}:Force"], V))
    bench.add(0, SamplingParams(temperature=0, extra_args={"force": 4}), prompt=[1, 2], output=[9, 9])
    bench.add(1, SamplingParams(temperature=0))
    x = logits_of(2)
    assert bench.sample(x, [0, 1]).tokens == [6, int(x[1].argmax())]


def test_a_returned_array_replaces_the_logits() -> None:
    bench = Bench(V, custom=load([f"{__name__}:Odd"], V))
    for row in range(3):
        bench.add(row, SamplingParams(), prompt=[row + 5])
    assert bench.sample(logits_of(3), range(3)).tokens == [5, 6, 7]


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ("start", "custom processor Odd failed to start: KeyError: 'nothing there'"),
        ("raise", "custom processor Odd raised RuntimeError: boom"),
        ("write", "custom processor Odd raised ValueError: assignment destination is read-only"),
        ("nan", "custom processor Odd produced NaN or infinite logits"),
        ("list", "custom processor Odd returned list"),
        ("shape", r"custom processor Odd returned float32 \[5\]: the logits are float32 \[20\]"),
        ("dtype", r"custom processor Odd returned int64 \[20\]"),
        ("mask", "every token is masked"),
    ],
)
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_misbehaving_edit_fails_its_request_alone(odd: str, message: str, temperature: float) -> None:
    bench = Bench(V, custom=load([f"{__name__}:Odd"], V))
    for row in range(3):
        extra = {"odd": odd} if row == 1 else None
        params = SamplingParams(temperature=temperature, extra_args=extra, logprobs=1)
        bench.add(row, params, prompt=[row + 5], output=[4])
    result = bench.sample(logits_of(3), range(3))
    assert result.tokens == [5, -1, 7]
    assert [error.row for error in result.failed] == [1]
    assert re.match(message, result.failed[0].message)
    assert [entry is None for entry in result.logprobs] == [False, True, False]


def test_an_argmax_invariant_processor_runs_for_random_rows_only() -> None:
    custom = load([f"{__name__}:Sharpen"], V)
    bench = Bench(V, custom=custom)
    x = logits_of(2)
    bench.add(0, SamplingParams(temperature=0))
    bench.sample(x[:1], [0])
    assert vars(custom[0]).get("calls", 0) == 0
    bench.add(1, SamplingParams(temperature=2.0), seed=1)
    assert bench.sample(x, [0, 1]).tokens == x.argmax(1).tolist()
    assert vars(custom[0])["calls"] == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "has 'nothing': give module:Class"),
        (":Odd", "has ':Odd'"),
        ("no.such.module:Odd", "cannot be imported"),
        (f"{__name__}:V", "is no CustomProcessor"),
        (f"{__name__}:Missing", "is no CustomProcessor"),
        ("builtins:dict", "is no CustomProcessor"),
    ],
)
def test_a_name_that_is_no_processor_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load([name], V)
    assert caught.value.field == "logits_processors"


def test_a_processor_may_refuse_a_request_at_the_door() -> None:
    custom = load([f"{__name__}:Force"], V)
    validate(custom, SamplingParams(extra_args={"force": 3}))
    with pytest.raises(InvalidRequestError, match="Force refuses the request: force is outside") as caught:
        validate(custom, SamplingParams(extra_args={"force": V}))
    assert caught.value.param == "extra_args"
