"""Custom logits processors: the operator's own classes, named "module:Class" in the configuration.

The class derives from CustomProcessor. It is never chosen, named or sent by a client.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias

import numpy as np

from octavo.errors import ConfigError, InvalidRequestError
from octavo.ops.op import Tensor
from octavo.sampling.processor import Setting, Stage, select
from octavo.scheduler.plan import NewRow, RowError
from octavo.types import SamplingParams

__all__ = ["CustomAdapter", "CustomProcessor", "Edit", "load", "validate"]

# (logits [V] float32, output ids so far [O] int32, read-only) -> new logits, or None after an edit in place.
Edit: TypeAlias = Callable[[np.ndarray, np.ndarray], "np.ndarray | None"]


class CustomProcessor:
    """What an operator's class derives from. One object serves every request.

    argmax_invariant: the processor never changes which token is the likeliest; then it runs after the temperature
    was applied, and not at all for greedy requests.
    """

    argmax_invariant: ClassVar[bool] = False

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def validate(self, params: SamplingParams) -> None:
        """Raise ValueError to refuse a request at the door; the message goes to the client."""

    def start(self, params: SamplingParams, prompt: np.ndarray) -> Edit | None:
        """Return what edits this request's logits at every step, or None to leave the request alone.

        prompt: [P] int32, read-only.   params.extra_args holds what the client sent for custom processors.
        Called again when a preempted request resumes: what an edit does must follow from the output ids it is given.
        """
        raise NotImplementedError(f"{type(self).__name__}.start")


def load(names: Sequence[str], vocab_size: int) -> tuple[CustomProcessor, ...]:
    """Build the processors that a configuration names.

    Raises ConfigError for a name that is not module:Class, cannot be imported, or is no CustomProcessor.
    """
    return tuple(_load(name, vocab_size) for name in names)


def _load(name: str, vocab_size: int) -> CustomProcessor:
    advice = "give module:Class of an importable class derived from octavo.sampling.custom.CustomProcessor"
    module_name, _, class_name = name.partition(":")
    if not module_name or not class_name:
        raise ConfigError(f"logits_processors has {name!r}: {advice}", field="logits_processors")
    try:
        found = vars(importlib.import_module(module_name)).get(class_name)
    except ImportError as error:
        message = f"logits_processors: {name!r} cannot be imported ({error}); {advice}"
        raise ConfigError(message, field="logits_processors") from error
    if not isinstance(found, type) or not issubclass(found, CustomProcessor):
        raise ConfigError(f"logits_processors: {name!r} is no CustomProcessor; {advice}", field="logits_processors")
    return found(vocab_size)


def validate(processors: Sequence[CustomProcessor], params: SamplingParams) -> None:
    """Ask each processor whether it can serve a request.

    Raises InvalidRequestError on extra_args with the processor's own words.
    """
    for processor in processors:
        try:
            processor.validate(params)
        except InvalidRequestError:
            raise
        except ValueError as error:
            raise InvalidRequestError(
                f"{type(processor).__name__} refuses the request: {error}", "extra_args"
            ) from error


class CustomAdapter:
    """Runs one CustomProcessor among the built-in ones. A failing one costs its request, and no other."""

    def __init__(self, setting: Setting, processor: CustomProcessor) -> None:
        self.stage = Stage.NARROW if processor.argmax_invariant else Stage.CUSTOM
        self.ops = setting.ops
        self.table = setting.table
        self.processor = processor
        self.name = type(processor).__name__
        self._edits: dict[int, Edit] = {}
        self._broken: dict[int, str] = {}

    def wants(self, params: SamplingParams) -> bool:
        """Say yes: only start() can tell."""
        return True

    def add(self, row: int, request: NewRow) -> None:
        """Start a request; a failure is kept, and reported when the row is next sampled."""
        prompt = np.array(request.tokens[: request.num_prompt_tokens], np.int32)
        prompt.flags.writeable = False
        try:
            edit = self.processor.start(request.params, prompt)
        except Exception as error:  # the operator's code: its faults stay with this request
            self._broken[row] = f"custom processor {self.name} failed to start: {type(error).__name__}: {error}"
            return
        if edit is not None:
            self._edits[row] = edit

    def remove(self, row: int) -> None:
        """Forget the row."""
        self._edits.pop(row, None)
        self._broken.pop(row, None)

    def apply(self, logits: Tensor, rows: Sequence[int]) -> list[RowError]:
        """Let each row's edit change its logits.   logits: [L, V] f32."""
        failed = [RowError(row, message) for _, row, message in select(self._broken, rows)]
        found = select(self._edits, rows)
        if not found:
            return failed
        host = self.ops.to_host(logits)
        for index, row, edit in found:
            output = self.table.output(row).view()
            output.flags.writeable = False
            message = self._edit(logits, index, host[index], edit, output)
            if message is not None:
                failed.append(RowError(row, f"custom processor {self.name} {message}"))
        return failed

    def _edit(self, logits: Tensor, index: int, view: np.ndarray, edit: Edit, output: np.ndarray) -> str | None:
        """Edit one row; return what went wrong, or None."""
        try:
            result = edit(view, output)
        except Exception as error:  # the operator's code: its faults stay with this request
            return f"raised {type(error).__name__}: {error}"
        if result is None:
            result = view
        if not isinstance(result, np.ndarray):
            return f"returned {type(result).__name__}: it has to return an array or None"
        if result.shape != view.shape or result.dtype.kind != "f":
            return f"returned {result.dtype} {list(result.shape)}: the logits are float32 {list(view.shape)}"
        highest = result.max()
        if np.isnan(highest) or highest == np.inf:
            return "produced NaN or infinite logits; use -inf to forbid a token"
        self.ops.put_row(logits, index, result)
        return None
