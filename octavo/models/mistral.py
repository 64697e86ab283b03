"""Mistral: Llama with a sliding window; its GGUF files carry Llama's architecture name.   Source: arXiv:2310.06825."""

from __future__ import annotations

from octavo.models.base import GGUFMap
from octavo.models.llama import WEIGHTS, Model, config_from_hf

__all__ = ["GGUF", "WEIGHTS", "Model", "config_from_hf"]

GGUF: GGUFMap | None = None
