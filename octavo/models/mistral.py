"""Mistral: Llama with a sliding window.   Source: arXiv:2310.06825. (Its GGUF files carry Llama's architecture name.)"""

from __future__ import annotations

from octavo.models.base import GGUFMap
from octavo.models.llama import WEIGHTS, Model, config_from_hf

__all__ = ["GGUF", "WEIGHTS", "Model", "config_from_hf"]

GGUF: GGUFMap | None = None
