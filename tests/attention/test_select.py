"""Choosing an attention backend: capability is data, and a loser is told why."""

from __future__ import annotations

import dataclasses

import pytest

from octavo.attention.backend import AttentionNeeds, Capabilities
from octavo.attention.select import refusal, select_backend
from octavo.errors import ConfigError
from octavo.kvcache.spec import KVCacheSpec
from octavo.ops import op

SPEC = KVCacheSpec(kind="full", block_size=16, num_kv_heads=2, head_dim=64, dtype="f32")
NEEDS = AttentionNeeds(device="cpu", spec=SPEC, softcap=False)
ABLE = Capabilities(
    devices=frozenset({"cpu"}), kv_dtypes=frozenset({"f32"}), kinds=frozenset({"full"}), head_dims=frozenset({64})
)


def test_what_meets_every_need_is_not_refused() -> None:
    assert refusal(ABLE, NEEDS) is None
    assert refusal(dataclasses.replace(ABLE, head_dims=None), NEEDS) is None, "None is any"


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        (dataclasses.replace(NEEDS, device="other"), "runs on cpu, not on other"),
        (dataclasses.replace(NEEDS, spec=dataclasses.replace(SPEC, kind="sliding_window")), "has no sliding_window"),
        (dataclasses.replace(NEEDS, spec=dataclasses.replace(SPEC, dtype="bf16")), "stores f32, not bf16"),
        (dataclasses.replace(NEEDS, spec=dataclasses.replace(SPEC, head_dim=80)), "no head dimension 80"),
        (dataclasses.replace(NEEDS, softcap=True), "has no softcap"),
    ],
)
def test_each_unmet_need_has_its_reason(needs: AttentionNeeds, reason: str) -> None:
    found = refusal(ABLE, needs)
    assert found is not None
    assert reason in found


def test_the_reference_serves_every_kind_there_is() -> None:
    op.load("torch")
    window = dataclasses.replace(SPEC, kind="sliding_window", window=8, dtype="bf16")
    needs = [NEEDS, AttentionNeeds(device="cpu", spec=window, softcap=True)]
    _, why = select_backend(op.bind(["torch"]), needs)
    assert why.startswith("reference")


def test_when_none_fits_every_candidate_says_why() -> None:
    op.load("torch")
    odd = AttentionNeeds(device="cpu", spec=dataclasses.replace(SPEC, kind="no_such_kind"), softcap=False)
    with pytest.raises(ConfigError, match="no attention backend serves this model: .*reference has no no_such_kind"):
        select_backend(op.bind(["torch"]), [odd])
