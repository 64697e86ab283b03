"""octavo plan: what a model takes, before a weight is read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.entrypoints.cli import main
from tests.models.families import FAMILIES, make


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a tiny checkpoint."""
    folder = tmp_path_factory.mktemp("llama")
    make(FAMILIES["llama"], folder)
    return str(folder)


def plan(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    """Run the command and return its JSON."""
    assert main(["plan", *args, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_plan_is_that_of_the_checkpoint(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    found = plan(capsys, model, "--kv-cache-bytes", "8MiB")
    assert (found["architecture"], found["format"], found["dtype"]) == ("llama", "safetensors", "float32")
    layers = [layer for group in found["groups"] for layer in group["layers"]]
    assert sorted(layers) == list(range(config["num_hidden_layers"]))
    assert {group["num_kv_heads"] for group in found["groups"]} == {config["num_key_value_heads"]}


def test_twice_the_memory_is_twice_the_blocks(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    once = plan(capsys, model, "--kv-cache-bytes", "8MiB")["memory"]["num_blocks"]
    twice = plan(capsys, model, "--kv-cache-bytes", "16MiB")["memory"]["num_blocks"]
    assert once > 0
    assert abs(twice - 2 * once) <= 2


def test_the_name_is_the_same_as_the_flag(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    size = ("--kv-cache-bytes", "8MiB")
    assert plan(capsys, model, *size) == plan(capsys, "--model", model, *size)


def test_text_holds_the_model_and_a_reason_for_each_choice(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    reasons = plan(capsys, model, "--kv-cache-bytes", "8MiB")["reasons"]
    assert main(["plan", model, "--kv-cache-bytes", "8MiB"]) == 0
    text = capsys.readouterr().out
    assert model in text
    assert reasons
    assert all(reason in text for reason in reasons)


def test_planning_loads_no_torch(model: str) -> None:
    program = (
        "import sys; from octavo.entrypoints.cli import main; "
        f"status = main(['plan', {model!r}, '--kv-cache-bytes', '8MiB']); "
        "sys.exit(status or 'torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_a_model_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "./no/such/model"]) == 1
    assert capsys.readouterr().err.startswith("octavo plan: './no/such/model'")
