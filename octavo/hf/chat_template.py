"""Render a conversation with a model's chat template: pieces of text, each trusted or not.

The template is hostile input (it comes with the model), and so are the messages. It runs in a closed sandbox with
time and size budgets, and every character of the result is known to come from the template's own literals
(trusted: may form control tokens) or from anywhere else (never does).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes

from octavo.errors import InvalidRequestError, OctavoError, TemplateError
from octavo.hf.provenance import TRUSTED, TracedText, concat, mask_bytes, pieces_of
from octavo.hf.template_budget import Budget
from octavo.hf.template_environment import TemplateEnvironment, parse, used_names, walk
from octavo.hf.template_inputs import SENTINEL, InputReader, find_surrogate
from octavo.hf.template_messages import TemplateProfile, normalize_messages
from octavo.hf.template_runtime import GLOBAL_NAMES, Runtime

__all__ = ["ChatTemplate", "control_texts", "normalize_messages"]

_MAX_NAMED_TEMPLATES = 16
_RESERVED = GLOBAL_NAMES | {
    "add_generation_prompt",
    "bos_token",
    "chat_template",
    "continue_final_message",
    "conversation",
    "eos_token",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
}

# What running template code can raise: it computes with untyped values. Anything else is our own bug.
_RUN_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    NameError,
    RuntimeError,
    MemoryError,
    AssertionError,
)
_FINAL_RUN = re.compile(b"\x02*")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Compiled:
    """One compiled template and what its syntax tree says about it (a TemplateProfile)."""

    code: jinja2.Template
    names: frozenset[str]
    literals: tuple[str, ...]
    content_format: str
    needs_parts: bool
    mentions_developer: bool


class ChatTemplate:
    """A compiled chat template, or several by name; safe to use from several threads at once.

    `source`: the template, or templates by name: "default", and "tool_use" which is used when tools are given.
    `special_tokens`: further trusted variables by name (unk_token, pad_token, ...).
    `time_budget_s` (of the thread's own time), `max_chars`: limits of one rendering.   `now`: clock of `strftime_now`.
    Raises TemplateError if the template is wrong, too large, or uses what the sandbox refuses.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        *,
        bos_token: str = "",
        eos_token: str = "",
        special_tokens: Mapping[str, str] | None = None,
        time_budget_s: float = 2.0,
        max_chars: int = 4_000_000,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        sources = {"default": source} if isinstance(source, str) else dict(source)
        if not sources or len(sources) > _MAX_NAMED_TEMPLATES:
            raise TemplateError(f"{len(sources)} chat templates were given; 1 to {_MAX_NAMED_TEMPLATES} are allowed")
        for name, text in sources.items():
            if not isinstance(text, str):
                raise TemplateError(f"the chat template {name!r} is a {type(text).__name__}; it must be text")
        given = {**(special_tokens or {}), "bos_token": bos_token, "eos_token": eos_token}
        self._tokens = {name: text for name, text in given.items() if text}
        self._time_budget_s = time_budget_s
        self._max_chars = max_chars
        self._now = now
        self._environment = TemplateEnvironment()
        self._compiled = {name: _compile(self._environment, text) for name, text in sources.items()}

    @staticmethod
    def fallback() -> NoReturn:
        """Refuse to chat with a model that has no chat template: a guessed one would silently be wrong."""
        raise InvalidRequestError(
            "this model has no chat template, so chat messages cannot be turned into a prompt; "
            "give one with --chat-template FILE, or send a plain prompt to the completions API",
            "messages",
        )

    @property
    def literals(self) -> tuple[str, ...]:
        """Return every text that the templates can write themselves."""
        return tuple(text for compiled in self._compiled.values() for text in compiled.literals)

    @property
    def content_format(self) -> str:
        """Return "openai" if the template takes content as a list of parts, else "string"."""
        return self._select(False).content_format

    @property
    def needs_parts(self) -> bool:
        """Return whether the template takes nothing but a list of parts."""
        return self._select(False).needs_parts

    @property
    def mentions_developer(self) -> bool:
        """Return whether the template knows the role "developer"."""
        return self._select(False).mentions_developer

    def profile(self, *, has_tools: bool) -> TemplateProfile:
        """Return what `normalize_messages` needs to know of the template used with or without tools."""
        return self._select(has_tools)

    def variable_names(self, *, has_tools: bool = False) -> tuple[str, ...]:
        """Return the names that `variables` may set: those the template reads and we do not set ourselves."""
        names = self._select(has_tools).names
        return tuple(sorted(name for name in names if name not in _RESERVED and name not in self._tokens))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[tuple[str, bool]]:
        """Render messages (see `normalize_messages`) to pieces (text, is_trusted); neighbours differ in trust.

        `add_generation_prompt`: None means yes, unless the final message is to be continued: then the text ends
        where that message's content ends. `variables`: further values for names in `variable_names`.
        Raises InvalidRequestError for what the request does wrong (also in the template's own words), TemplateError
        if the template fails or exceeds its budget.
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt exclude each other; set one of them",
                "continue_final_message",
            )
        if not messages:
            raise InvalidRequestError("messages is empty; at least one message is needed", "messages")
        compiled = self._select(bool(tools))
        budget = Budget(time_budget_s=self._time_budget_s, max_chars=self._max_chars)
        run = Runtime(self._environment, budget, self._now)
        reader = InputReader(budget)
        read = reader.messages(messages)
        has_sentinel = continue_final_message and reader.mark_final(read[-1])
        values: dict[str, Any] = {"documents": None}
        values |= {name: TracedText(text, TRUSTED, budget) for name, text in self._tokens.items()}
        values |= self._read_variables(reader, variables or {}, bool(tools))
        values |= run.names()
        values["messages"] = read
        values["tools"] = reader.value(list(tools), "tools") if tools else None
        values["add_generation_prompt"] = (
            not continue_final_message if add_generation_prompt is None else add_generation_prompt
        )
        chunks = _run(compiled.code, run, values)
        if continue_final_message:
            chunks = [_cut(concat(chunks, budget), has_sentinel)]
        pieces = pieces_of(chunks)
        if any(find_surrogate(text) is not None for text, _ in pieces):
            raise TemplateError("the chat template writes a lone surrogate, which no encoding can carry")
        return pieces

    def _select(self, has_tools: bool) -> _Compiled:
        """Return the template to use."""
        if has_tools and "tool_use" in self._compiled:
            return self._compiled["tool_use"]
        found = self._compiled.get("default")
        if found is None and len(self._compiled) == 1:
            found = next(iter(self._compiled.values()))
        if found is None:
            raise InvalidRequestError(
                f"this model has chat templates named {', '.join(sorted(self._compiled))} but no 'default'; "
                "choose one with --chat-template FILE",
                "messages",
            )
        return found

    def _read_variables(self, reader: InputReader, variables: Mapping[str, Any], has_tools: bool) -> dict[str, object]:
        """Return the caller's variables as values; raise InvalidRequestError for names that have no effect."""
        allowed = self.variable_names(has_tools=has_tools)
        wrong = sorted(str(name).encode(errors="replace").decode() for name in variables if name not in allowed)
        if wrong:
            raise InvalidRequestError(
                f"chat_template_kwargs has {', '.join(wrong)[:500]}; this model's chat template can be given "
                f"{', '.join(allowed) or 'none'}",
                "chat_template_kwargs",
            )
        return {name: reader.value(value, f"chat_template_kwargs.{name}") for name, value in variables.items()}


def control_texts(template: ChatTemplate, tokenizer_added_tokens: Iterable[str]) -> frozenset[str]:
    """Return the added tokens that the template writes as markup of its own.

    Text of a user must not form them, whether or not the tokenizer calls them special.
    """
    literals = template.literals
    return frozenset(token for token in tokenizer_added_tokens if token and any(token in text for text in literals))


def _compile(environment: TemplateEnvironment, source: str) -> _Compiled:
    """Compile one template. Raises TemplateError."""
    tree = parse(environment, source)
    found = list(walk(tree))
    literals = [node.data for node in found if isinstance(node, nodes.TemplateData)]
    constants = [node.value for node in found if isinstance(node, nodes.Const) and isinstance(node.value, str)]
    try:
        names = used_names(tree)
        code = environment.from_string(tree)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template is wrong in line {error.lineno}: {error.message}") from error
    except (RecursionError, SyntaxError, ValueError, MemoryError, OverflowError) as error:
        raise TemplateError(f"the chat template cannot be compiled: {type(error).__name__}: {error}") from error
    takes_parts = _loops_over_content(found)
    tests = {node.name for node in found if isinstance(node, nodes.Test)}
    return _Compiled(
        code=code,
        names=names,
        literals=tuple(dict.fromkeys(literals + constants)),
        content_format="openai" if takes_parts else "string",
        needs_parts=takes_parts and not tests & {"string", "iterable", "sequence", "mapping"},
        mentions_developer="developer" in constants,
    )


def _loops_over_content(found: Sequence[nodes.Node]) -> bool:
    """Tell whether a template has a loop over the content of a message, also through variables and macros."""
    aliases: set[str] = set()
    macros = {node.name: [argument.name for argument in node.args] for node in found if isinstance(node, nodes.Macro)}
    for _ in range(3):  # content -> variable -> macro argument -> variable
        for node in found:
            if isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Name):
                if _is_content(node.node, aliases):
                    aliases.add(node.target.name)
            elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name):
                arguments = zip(macros.get(node.node.name, ()), node.args, strict=False)
                aliases |= {name for name, value in arguments if _is_content(value, aliases)}
    return any(_is_content(node.iter, aliases) for node in found if isinstance(node, nodes.For))


def _is_content(node: nodes.Node | None, aliases: set[str]) -> bool:
    """Tell whether an expression is the content of a message, possibly filtered."""
    while isinstance(node, nodes.Filter) and node.name not in ("items", "dictsort"):
        node = node.node
    if isinstance(node, nodes.CondExpr):
        return _is_content(node.expr1, aliases) or _is_content(node.expr2, aliases)
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in aliases


def _run(code: jinja2.Template, run: Runtime, values: dict[str, Any]) -> list[TracedText]:
    """Run a compiled template and return what it writes, in order."""
    context = code.new_context(values)
    context.run = run
    chunks: list[TracedText] = []
    total = 0
    try:
        for chunk in code.root_render_func(context):
            total += len(chunk)
            run.budget.check_chars(total)
            chunks.append(chunk)
    except OctavoError:
        raise
    except _RUN_ERRORS as error:
        line = _line_of(code, error.__traceback__)
        where = "" if line is None else f" in line {line}"
        raise TemplateError(
            f"the chat template fails{where}: {type(error).__name__}: {str(error)[:500]}; "
            "check the messages and tools, or give another template with --chat-template FILE"
        ) from error
    return chunks


def _line_of(code: jinja2.Template, trace: TracebackType | None) -> int | None:
    """Return the line of the template in which an error was raised."""
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == code.filename or trace.tb_frame.f_code.co_filename == "<template>":
            line = code.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return line


def _cut(text: TracedText, has_sentinel: bool) -> TracedText:
    """Return the rendered text up to where the content of the final message ends."""
    mask = mask_bytes(text)
    last = mask.rfind(b"\x03")
    if last < 0:
        raise InvalidRequestError(
            "continue_final_message: this model's chat template does not write the end of the final message's content",
            "continue_final_message",
        )
    match = _FINAL_RUN.match(mask, last + 1)
    end = match.end() if match else last + 1
    if any(kind != TRUSTED and not char.isspace() for kind, char in zip(mask[end:], str(text)[end:], strict=True)):
        raise InvalidRequestError(
            "continue_final_message: this model's chat template writes other data after the final message's content",
            "continue_final_message",
        )
    return text[:last] if has_sentinel and str(text[last]) == SENTINEL else text[:end]
