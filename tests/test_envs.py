"""Debug switches are typed, few, and never ignored."""

from __future__ import annotations

import pytest

from octavo.envs import Envs, describe_envs, read_envs
from octavo.errors import ConfigError


def test_nothing_set_means_the_defaults() -> None:
    assert read_envs({"PATH": "/bin"}) == Envs()


@pytest.mark.parametrize(("text", "value"), [("1", True), ("on", True), ("True", True), ("0", False), ("", False)])
def test_a_switch_is_on_or_off(text: str, value: bool) -> None:
    assert read_envs({"OCTAVO_TRACEBACK": text}).traceback is value


def test_a_text_switch_keeps_its_text() -> None:
    assert read_envs({"OCTAVO_TEST_MODELS": "/models"}).test_models == "/models"


def test_another_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="OCTAVO_TRACEBACK='maybe' is neither on nor off"):
        read_envs({"OCTAVO_TRACEBACK": "maybe"})


def test_an_unknown_switch_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean OCTAVO_TRACEBACK"):
        read_envs({"OCTAVO_TRACE": "1"})


def test_every_switch_is_described() -> None:
    assert all(text.endswith(".") for text in describe_envs().values())
