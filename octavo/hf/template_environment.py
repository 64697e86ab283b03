"""Compile chat templates: jinja2's immutable sandbox, with a code generator that keeps provenance and counts work.

The generated code differs from jinja2's own in what it calls: literals become trusted texts, output and `~` go
through the runtime, every block counts a step, and nothing is computed at compile time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import jinja2
from jinja2 import meta, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.errors import TemplateError
from octavo.hf.template_filters import FILTERS, TESTS
from octavo.hf.template_runtime import GLOBAL_NAMES, TemplateContext, member

__all__ = ["TemplateEnvironment", "parse", "used_names", "walk"]

_MAX_SOURCE_CHARS = 131_072  # real templates have up to about 60,000
_MAX_NODES = 40_000  # of the syntax tree; real templates have up to a few thousand, 40,000 compile in seconds
_REFUSED_NODES: tuple[tuple[type[nodes.Node], str], ...] = (
    (nodes.Include, "include"),
    (nodes.Import, "import"),
    (nodes.FromImport, "from ... import"),
    (nodes.Extends, "extends"),
    (nodes.Block, "block"),
    (nodes.EvalContextModifier, "autoescape"),
    (nodes.ScopedEvalContextModifier, "autoescape"),
)


class _Generation(Extension):
    """Accept `{% generation %} ... {% endgeneration %}`, which marks assistant text for training."""

    tags: ClassVar[set[str]] = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the tag; its body is rendered in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _TracingGenerator(CodeGenerator):
    """Write code whose strings carry provenance and whose blocks count their work."""

    def write_commons(self) -> None:
        """Bind the runtime's functions at the start of the template function."""
        super().write_commons()
        for name in ("attribute", "concat", "item", "joined", "literal", "sliced", "text"):
            self.writeline(f"{name} = context.run.{name}")
        self.writeline("made = context.run.adopt")
        self.writeline("tick = context.run.budget.tick")

    def blockvisit(self, body: Any, frame: Frame) -> None:
        """Count a step at the start of every block."""
        self.writeline("tick()")
        super().blockvisit(body, frame)

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        """Let only template text be constant: expressions are not computed at compile time."""
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible()
        return node.data

    def _output_const_repr(self, group: Any) -> str:
        """Write template text."""
        return f"literal({''.join(group)!r})"

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        """Turn an output expression into text."""
        self.write("text(")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        """Close what `_output_child_pre` opened."""
        self.write(")")

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        """Write a constant; a string is a literal of the template."""
        if isinstance(node.value, str):
            self.write(f"literal({node.value!r})")
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        """Write template text."""
        self.write(f"literal({node.data!r})")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Write the `~` operator."""
        self.write("joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        """Write a tuple; one that is built, not assigned to, is weighed."""
        self._visit_container(node, frame, super().visit_Tuple, is_built=node.ctx == "load")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        """Write a list, weighed."""
        self._visit_container(node, frame, super().visit_List)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        """Write a dict, weighed."""
        self._visit_container(node, frame, super().visit_Dict)

    def _visit_container(self, node: nodes.Node, frame: Frame, visit: Any, *, is_built: bool = True) -> None:
        """Write a container inside a call that weighs it."""
        self.write("made(" if is_built else "")
        visit(node, frame)
        self.write(")" if is_built else "")

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        """Write `value.name`."""
        self.write("attribute(")
        self.visit(node.node, frame)
        self.write(f", {node.attr!r})")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """Write `value[key]` or `value[a:b:c]`."""
        is_slice = isinstance(node.arg, nodes.Slice)
        self.write("sliced(" if is_slice else "item(")
        self.visit(node.node, frame)
        self.write(", ")
        self.visit(node.arg, frame)
        self.write(")")

    def visit_Slice(self, node: nodes.Slice, frame: Frame) -> None:
        """Write a slice as a value."""
        self.write("slice(")
        for bound in (node.start, node.stop, node.step):
            if bound is None:
                self.write("None")
            else:
                self.visit(bound, frame)
            self.write(", ")
        self.write(")")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox: closed lists of filters, tests, attributes and functions; no loader, no globals."""

    code_generator_class = _TracingGenerator
    context_class = TemplateContext
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[_Generation, "jinja2.ext.loopcontrols", "jinja2.ext.do"],
        )
        self.globals = {}
        self.filters = dict(FILTERS)
        self.tests = dict(TESTS)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator within the budget."""
        return context.run.binop(operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return a listed member, else an item, else undefined."""
        return member(self, obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item, else a listed member, else undefined."""
        if isinstance(obj, Undefined):
            return obj[argument]  # raises UndefinedError
        try:
            return obj[argument]
        except (TypeError, LookupError, AttributeError):
            if isinstance(argument, str):
                return member(self, obj, argument)
        return self.undefined(obj=obj, name=argument)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a macro, a method or a function within the budget."""
        budget = context.run.budget
        budget.enter_call()
        try:
            if args:
                budget.weigh(args)
            if kwargs:
                budget.weigh({name: value for name, value in kwargs.items() if name[0] != "_"})
            return context.run.adopt(super().call(context, obj, *args, **kwargs))
        finally:
            budget.leave_call()


def parse(environment: TemplateEnvironment, source: str) -> nodes.Template:
    """Parse a template's source. Raises TemplateError if it is too large, wrong, or uses a refused tag."""
    if len(source) > _MAX_SOURCE_CHARS:
        raise TemplateError(f"the chat template has {len(source)} characters; at most {_MAX_SOURCE_CHARS} are allowed")
    try:
        tree = environment.parse(source)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template is wrong in line {error.lineno}: {error.message}") from error
    except (RecursionError, ValueError, MemoryError, OverflowError) as error:
        raise TemplateError(f"the chat template cannot be parsed: {type(error).__name__}: {error}") from error
    for count, node in enumerate(walk(tree)):
        if count >= _MAX_NODES:
            raise TemplateError(f"the chat template has more than {_MAX_NODES} parts")
        for kind, tag in _REFUSED_NODES:
            if isinstance(node, kind):
                raise TemplateError(f"the chat template uses {tag!r} in line {node.lineno}, which is not allowed")
    return tree


def walk(tree: nodes.Node) -> Iterator[nodes.Node]:
    """Yield every node of a syntax tree, in source order, without recursion."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(list(node.iter_child_nodes())))


def used_names(tree: nodes.Template) -> frozenset[str]:
    """Return the names that a template reads from outside, without the functions it is given."""
    return frozenset(meta.find_undeclared_variables(tree)) - GLOBAL_NAMES
