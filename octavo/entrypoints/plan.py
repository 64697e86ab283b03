"""Show, before loading, what a model takes: weights, KV cache, tokens and concurrency."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from typing import Any

from octavo.config.cli import add_engine_arguments, engine_config_from_args
from octavo.engine.build import EnginePlan, plan_engine
from octavo.platforms.cpu import CpuPlatform

__all__ = ["add_arguments", "render", "run", "summarise"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `octavo plan`."""
    parser.add_argument("name", nargs="?", metavar="MODEL", help="model folder, GGUF file or hub name; same as --model")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Plan and print; reads no weight and loads no kernel. Returns 0.

    Raises ModelNotFoundError, CheckpointError or ConfigError.
    """
    config = engine_config_from_args(args)
    if args.name is not None:
        config = replace(config, model=replace(config.model, model=args.name))
    plan = plan_engine(config, CpuPlatform())
    print(json.dumps(summarise(plan), indent=2) if args.json else render(plan))
    return 0


def summarise(plan: EnginePlan) -> dict[str, Any]:
    """Return the plan as JSON values: sizes in bytes, lengths in tokens."""
    return {
        "model": str(plan.checkpoint.path),
        "format": plan.checkpoint.format,
        "architecture": plan.facts.architecture,
        "dtype": plan.config.model.dtype,
        "groups": [{**asdict(group.spec), "layers": list(group.layers)} for group in plan.groups],
        "memory": asdict(plan.memory),
        "reasons": list(plan.reasons),
    }


def render(plan: EnginePlan) -> str:
    """Return the plan as text: the model, the choices with their reasons, and the memory equation."""
    lines = [f"{plan.checkpoint.path}: {plan.facts.architecture}, {plan.checkpoint.format}"]
    lines += [f"- {reason}" for reason in plan.reasons]
    return "\n".join([*lines, "", plan.memory.explain()])
