"""One generic test: every op's torch reference equals its formula in float64, for every case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

from octavo.ops import op as op_module

op_module.load("torch")
OPS = op_module.bind(["torch"])


def _norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def _head_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return _norm(x.reshape(len(x), -1, len(weight)), weight, eps).reshape(x.shape)


def _rope(x: np.ndarray, angles: np.ndarray, head_dim: int) -> np.ndarray:
    out = x.reshape(len(x), -1, head_dim).copy()
    half = angles.shape[1] // 2
    for t in range(len(x)):
        for i in range(half):
            cos, sin = angles[t, i], angles[t, half + i]
            a, b = x.reshape(out.shape)[t, :, i], x.reshape(out.shape)[t, :, half + i]
            out[t, :, i], out[t, :, half + i] = a * cos - b * sin, a * sin + b * cos
    return out.reshape(x.shape)


def _gated(activation: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    def apply(x: np.ndarray) -> np.ndarray:
        half = x.shape[-1] // 2
        return activation(x[..., :half]) * x[..., half:]

    return apply


# Each formula is written again here, in float64, from the op's docstring.
FORMULAS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "scale": lambda x, factor: x * np.float64(np.float32(factor)),
    "softcap": lambda x, cap: cap * np.tanh(x / cap),
    "take_rows": lambda x, index: x[index],
    "rms_norm": _norm,
    "head_rms_norm": _head_norm,
    "silu_and_mul": _gated(lambda a: a * special.expit(a)),
    "gelu_and_mul": _gated(lambda a: a * special.ndtr(a)),
    "gelu_tanh_and_mul": _gated(lambda a: a * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3))) / 2),
    "rope": _rope,
    "linear": lambda x, weight, bias: x @ weight.T + (0 if bias is None else bias),
    "embed": lambda ids, weight: weight[ids],
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
    tensors = {
        key: OPS.from_host(value.copy()) if isinstance(value, np.ndarray) else value for key, value in case.args.items()
    }
    result = OPS.to_host(getattr(OPS, name)(**tensors))
    np.testing.assert_allclose(result, FORMULAS[name](**exact), rtol=case.rtol, atol=case.atol)


def test_every_formula_has_cases() -> None:
    rng = np.random.default_rng(0)
    assert all(list(op_module.registered()[name].make_cases(rng)) for name in FORMULAS)


def test_override_that_names_no_op_is_refused() -> None:
    with pytest.raises(ValueError, match="names no op: nonsense"):
        op_module.bind(["torch"], {"nonsense": "torch"})


def test_binding_without_an_implementation_says_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"rms_norm has no implementation for fpga; it has \['torch'\]"):
        op_module.registered()["rms_norm"].bind(["fpga"])


def test_binding_says_why_a_preferred_backend_lost() -> None:
    binding = op_module.registered()["rms_norm"].bind(["native", "torch"])
    assert (binding.backend, binding.reason) == ("torch", "no native implementation")
