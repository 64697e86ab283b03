"""Continue a text: a raw prompt, without a chat template."""

from __future__ import annotations

import argparse
import sys
import time

from octavo.config.cli import add_engine_arguments, engine_config_from_args
from octavo.engine.build import build_engine
from octavo.engine.llm_engine import LLMEngine
from octavo.entrypoints.sampling_arguments import add_sampling_arguments, sampling_params_from_args
from octavo.errors import InvalidRequestError
from octavo.llm import LLM
from octavo.log import configure_logging

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `octavo complete`."""
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="text to continue; default: all of stdin")
    parser.add_argument("--echo", action="store_true", help="print the prompt before its continuation")
    parser.add_argument("--stats", action="store_true", help="show the speed on stderr")
    add_sampling_arguments(parser)
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Continue the prompt on stdout. Returns 0, or 1 when the prompt cannot be served.

    Raises ModelNotFoundError, CheckpointError or ConfigError.
    """
    config = engine_config_from_args(args)
    configure_logging(config.observability.log_level)
    prompt = args.prompt
    if prompt is None:
        if sys.stdin.isatty():
            print("type the text to continue, then Ctrl-D", file=sys.stderr)
        prompt = sys.stdin.read()
    with LLM.from_engine(LLMEngine(*build_engine(config))) as llm:
        params = sampling_params_from_args(args, llm.get_default_sampling_params())
        begin, count = time.perf_counter(), 0
        if args.echo:
            sys.stdout.write(prompt)
        try:
            for output in llm.stream(prompt, params):
                for one in output.outputs:
                    count += len(one.token_ids)
                    sys.stdout.write(one.text)
                    sys.stdout.flush()
        except InvalidRequestError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print(" [stopped]", file=sys.stderr)
        sys.stdout.write("\n")
        if args.stats:
            print(f"({count} tokens in {time.perf_counter() - begin:.2f} s)", file=sys.stderr)
    return 0
