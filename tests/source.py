"""Read the package's source as data: modules, functions, classes, imports. Used by tests/test_style.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "octavo"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """One source file of the package."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def file(self) -> str:
        """Return the path below the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def is_package(self) -> bool:
        """Tell whether this is an __init__ file."""
        return self.path.name == "__init__.py"

    @property
    def area(self) -> str:
        """Return the folder below octavo/, or the file's own name at the top."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else ""


@dataclass(frozen=True, slots=True)
class Definition:
    """A function or class with where it is: scope "" at module level, else its classes and functions."""

    module: Module
    scope: str
    node: Function | ast.ClassDef
    owner: ast.AST

    @property
    def where(self) -> str:
        """Return file:line name."""
        name = f"{self.scope}.{self.node.name}" if self.scope else self.node.name
        return f"{self.module.file}:{self.node.lineno} {name}"

    @property
    def lines(self) -> int:
        """Return the number of lines, decorators not counted."""
        assert self.node.end_lineno is not None
        return self.node.end_lineno - self.node.lineno + 1

    @property
    def is_public(self) -> bool:
        """Tell whether a reader outside may use it: no part of its path is private, and it is in no function."""
        if isinstance(self.owner, Function):
            return False
        names = [*self.scope.split("."), self.node.name]
        return not any(name.startswith("_") for name in names)


@cache
def modules() -> tuple[Module, ...]:
    """Parse every module of the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        text = path.read_text(encoding="utf-8")
        found.append(Module(name, path, text, ast.parse(text, filename=str(path))))
    return tuple(found)


def definitions(module: Module) -> Iterator[Definition]:
    """Yield every function and class, nested ones included."""

    def visit(node: ast.AST, scope: str, owner: ast.AST) -> Iterator[Definition]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function | ast.ClassDef):
                yield Definition(module, scope, child, owner)
                yield from visit(child, f"{scope}.{child.name}" if scope else child.name, child)
            else:
                yield from visit(child, scope, owner)

    yield from visit(module.tree, "", module.tree)


def functions() -> Iterator[Definition]:
    """Yield every function of the package."""
    for module in modules():
        yield from (found for found in definitions(module) if isinstance(found.node, Function))


def classes() -> Iterator[Definition]:
    """Yield every class of the package."""
    for module in modules():
        yield from (found for found in definitions(module) if isinstance(found.node, ast.ClassDef))


def parameters(node: Function, *, in_class: bool) -> list[ast.arg]:
    """Return the parameters without self and cls."""
    args = node.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    is_static = any(isinstance(item, ast.Name) and item.id == "staticmethod" for item in node.decorator_list)
    return every[1:] if in_class and not is_static else every


def decorator_names(node: Function | ast.ClassDef) -> list[str]:
    """Return the decorators as source, calls without their arguments."""
    return [ast.unparse(item.func if isinstance(item, ast.Call) else item) for item in node.decorator_list]


def imports(module: Module) -> Iterator[tuple[int, str, bool]]:
    """Yield (line, dotted name, is it for type checking only) for every import, function-level ones included.

    `from a import b` yields a.b, which may be a module or a name in one.
    """

    def visit(node: ast.AST, typing_only: bool) -> Iterator[tuple[int, str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((child.lineno, alias.name, typing_only) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    parts = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
                    parts = parts[: len(parts) - child.level + 1]
                    base = ".".join([*parts, *([child.module] if child.module else [])])
                yield from ((child.lineno, f"{base}.{alias.name}", typing_only) for alias in child.names)
            else:
                checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                yield from visit(child, typing_only or checking)

    yield from visit(module.tree, False)


def internal_imports(module: Module) -> Iterator[tuple[int, str]]:
    """Yield (line, module name) for every import of a module of the package, type-checking ones included."""
    names = {other.name for other in modules()}
    for line, name, _ in imports(module):
        if name.split(".")[0] != "octavo":
            continue
        while name not in names:
            name = name.rpartition(".")[0]
        if name != module.name:
            yield line, name


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node (Tarjan 1972), each sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def connect(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                connect(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            place = stack.index(node)
            component = stack[place:]
            del stack[place:]
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in index:
            connect(node)
    return found
