"""Sampling flags that the interactive commands share."""

from __future__ import annotations

import argparse

import msgspec

from octavo.types import SamplingParams

__all__ = ["add_sampling_arguments", "sampling_params_from_args"]


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags; without one of them the model's own recommendation holds."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=int, help="most tokens of an answer; default: the rest of the context")
    group.add_argument("--temperature", type=float, help="0 takes the most likely token each time")
    group.add_argument("--top-p", type=float, help="keep the likeliest tokens of this total probability")
    group.add_argument("--top-k", type=int, help="keep this many likeliest tokens; 0 keeps all")
    group.add_argument("--min-p", type=float, help="drop tokens less likely than this share of the likeliest")
    group.add_argument("--repetition-penalty", type=float, help="above 1 discourages tokens seen before")
    group.add_argument("--seed", type=int, help="the same seed gives the same answer")
    group.add_argument("--stop", action="append", metavar="TEXT", help="end where this text appears; repeatable")


def sampling_params_from_args(args: argparse.Namespace, defaults: SamplingParams) -> SamplingParams:
    """Return the defaults with what the flags say.

    Raises InvalidRequestError for a value that is not allowed.
    """
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "stop")
    flags = vars(args)
    given = {name: flags[name] for name in names if flags[name] is not None}
    return msgspec.structs.replace(defaults, max_tokens=args.max_tokens, **given)
