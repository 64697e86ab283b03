"""The ratchets: what a program can check of the design and the conventions. Start strict, never loosen silently."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable
from pathlib import Path

import pytest

from octavo.config.engine import all_fields
from octavo.entrypoints.cli import find_commands
from octavo.envs import describe_envs
from octavo.models.base import find_model
from octavo.ops.op import Op, load
from tests.source import (
    PACKAGE,
    ROOT,
    Definition,
    Function,
    Module,
    classes,
    cycles,
    decorator_names,
    definitions,
    functions,
    imports,
    internal_imports,
    modules,
    parameters,
)

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES, MAX_P95_LINES = 80, 45
MAX_METHODS, MAX_ATTRIBUTES, MAX_PROTOCOL_METHODS = 25, 25, 8
MAX_PARAMETERS, MAX_POSITIONAL = 8, 5
MAX_FIELDS, MAX_ENVS = 110, 12

# Imports point down this list: a module imports its own level and those before it.
LAYERS = (
    ("utils", "log", "envs", "version"),
    ("types", "errors"),
    ("config",),
    ("hf", "parsers", "metrics"),
    ("ops",),
    ("platforms", "attention", "compilation"),
    ("kvcache", "quantization", "distributed"),
    ("layers",),
    ("models", "loader"),
    ("lora", "multimodal", "spec_decode", "sampling", "pooling", "structured_output"),
    ("kv_offload",),
    ("worker",),
    ("executor",),
    ("scheduler",),
    ("engine", "profiler"),
    ("entrypoints", "llm", ""),
)
# Structs on the wire between planes: they import nothing above types, and anyone above types may import them.
LEAVES = ("octavo.engine.messages", "octavo.scheduler.plan", "octavo.kvcache.spec")
# log, envs: they raise and configure, so they may know errors.
MAY_IMPORT = {"octavo.envs": {"octavo.errors"}, "octavo.log": {"octavo.errors"}}

CONTROL_PLANE = ("engine", "scheduler", "kvcache", "entrypoints", "metrics", "parsers", "llm")
DATA_PLANE = (
    *("layers", "attention", "models", "quantization", "sampling"),
    *("spec_decode", "lora", "multimodal", "pooling", "worker"),
)
TORCH_DOORS = (
    *("octavo/ops/torch/", "octavo/ops/triton/", "octavo/platforms/cuda.py"),
    *("octavo/compilation/", "octavo/distributed/"),
)
TENSOR_WORDS = re.compile(r"\b(Tensor|ndarray|NDArray)\b")


def report(violations: Iterable[str], rule: str) -> None:
    """Fail with one violation a line."""
    lines = list(violations)
    assert not lines, f"{rule}: {len(lines)}\n" + "\n".join(lines)


def is_protocol(node: ast.ClassDef) -> bool:
    """Tell whether a class is a typing.Protocol."""
    return any(ast.unparse(base).split("[")[0].endswith("Protocol") for base in node.bases)


def is_schema(node: ast.ClassDef) -> bool:
    """Tell whether a class is a frozen value: a wire struct, or a frozen dataclass."""
    bases = [ast.unparse(base) for base in node.bases]
    decorators = [ast.unparse(item) for item in node.decorator_list]
    return any(base.endswith("Struct") for base in bases) or any("frozen=True" in text for text in decorators)


def nodes(module: Module, *kinds: type[ast.AST]) -> Iterable[ast.AST]:
    """Return a module's nodes of some kinds."""
    return (node for node in ast.walk(module.tree) if isinstance(node, kinds))


# Sizes


def test_files_are_short() -> None:
    report(
        (f"{m.file}: {n} lines" for m in modules() if (n := m.text.count("\n")) > MAX_FILE_LINES),
        f"files of more than {MAX_FILE_LINES} lines",
    )


def test_functions_are_short() -> None:
    report(
        (f"{f.where}: {f.lines} lines" for f in functions() if f.lines > MAX_FUNCTION_LINES),
        f"functions of more than {MAX_FUNCTION_LINES} lines",
    )


def test_most_functions_are_much_shorter() -> None:
    lengths = sorted(f.lines for f in functions())
    p95 = lengths[int(0.95 * len(lengths))]
    assert p95 <= MAX_P95_LINES, f"the 95th percentile of function lengths is {p95} lines, at most {MAX_P95_LINES}"


def test_classes_are_small() -> None:
    found = []
    for c in classes():
        assert isinstance(c.node, ast.ClassDef)
        methods = [item for item in c.node.body if isinstance(item, Function)]
        limit = MAX_PROTOCOL_METHODS if is_protocol(c.node) else MAX_METHODS
        if len(methods) > limit:
            found.append(f"{c.where}: {len(methods)} methods, at most {limit}")
        if not is_schema(c.node) and len(names := attributes(c.node)) > MAX_ATTRIBUTES:
            found.append(f"{c.where}: {len(names)} attributes, at most {MAX_ATTRIBUTES}")
    report(found, "classes that are too large")


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the attributes an object has: declared in the class body, or assigned on self."""
    names = {
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    for item in ast.walk(node):
        if isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Store):
            if isinstance(item.value, ast.Name) and item.value.id == "self":
                names.add(item.attr)
    return names


def test_functions_have_few_parameters() -> None:
    """Options after the second parameter are keyword-only.

    Ops take tensors by position, as formulas do. Filters and string methods of templates have Jinja's and str's
    signatures; special methods have Python's.
    """
    found = []
    for f in functions():
        assert isinstance(f.node, Function)
        in_class = isinstance(f.owner, ast.ClassDef)
        names = parameters(f.node, in_class=in_class)
        is_op = any(name == "op" or name.endswith(".impl") for name in decorator_names(f.node))
        if len(names) > MAX_PARAMETERS and not is_op:
            found.append(f"{f.where}: {len(names)} parameters, at most {MAX_PARAMETERS}")
        is_given = is_op or f.module.file.startswith("octavo/hf/template_")
        positional = len(names) - len(f.node.args.kwonlyargs)
        if positional > MAX_POSITIONAL and not is_given:
            found.append(f"{f.where}: {positional} positional parameters, at most {MAX_POSITIONAL}")
        if f.is_public and not is_given and not re.fullmatch(r"__(?!init__).*__", f.node.name):
            found.extend(f"{f.where}: optional {name} is not keyword-only" for name in late_defaults(f, names))
    report(found, "functions with too many parameters")


def late_defaults(found: Definition, names: list[ast.arg]) -> list[str]:
    """Return the parameters after the second that have a default and can be given by position."""
    assert isinstance(found.node, Function)
    positional = names[: len(names) - len(found.node.args.kwonlyargs)]
    count = len(found.node.args.defaults)
    with_default = positional[len(positional) - count :] if count else []
    return [item.arg for item in with_default if item in positional[2:]]


# Imports


def test_no_import_cycles() -> None:
    graph = {m.name: {name for _, name in internal_imports(m)} for m in modules()}
    report((" <-> ".join(cycle) for cycle in cycles(graph)), "import cycles")


def level(name: str) -> int:
    """Return a module's place in LAYERS."""
    area = name.split(".")[1] if "." in name else ""
    found = [index for index, areas in enumerate(LAYERS) if area in areas]
    assert found, f"{name}: its folder is not in LAYERS of tests/test_style.py"
    return found[0]


def test_imports_point_down() -> None:
    found = []
    for m in modules():
        for line, name in dict.fromkeys(internal_imports(m)):
            if name in LEAVES or name in MAY_IMPORT.get(m.name, ()):
                continue
            if level(name) > level(m.name):
                found.append(f"{m.file}:{line} imports {name}, which is above it")
    report(found, "imports that point up")


def test_wire_structs_are_leaves() -> None:
    allowed = {"octavo.types", *LEAVES}
    report(
        (
            f"{m.file}:{line} imports {name}"
            for m in modules()
            if m.name in LEAVES
            for line, name in internal_imports(m)
            if name not in allowed
        ),
        "wire structs that import more than types",
    )


def test_data_plane_does_not_know_the_control_plane() -> None:
    report(
        (
            f"{m.file}:{line} imports {name}"
            for m in modules()
            if m.area in DATA_PLANE
            for line, name in internal_imports(m)
            if name.split(".")[1:] and name.split(".")[1] in CONTROL_PLANE and name not in LEAVES
        ),
        "imports of the control plane by the data plane",
    )


# The one place that wires both planes together.
WIRING = ("octavo/engine/build.py",)


def test_control_plane_does_not_know_the_data_plane() -> None:
    report(
        (
            f"{m.file}:{line} imports {name}"
            for m in modules()
            if m.area in CONTROL_PLANE and m.file not in WIRING
            for line, name in dict.fromkeys(internal_imports(m))
            if name.split(".")[1:] and name.split(".")[1] in DATA_PLANE
        ),
        "imports of the data plane by the control plane",
    )


def external_imports(m: Module) -> Iterable[tuple[int, str]]:
    """Return (line, top-level package) of a module's imports from outside."""
    return ((line, name.split(".")[0]) for line, name, _ in imports(m) if not name.startswith("octavo"))


# These make or check host arrays once, at load; their forward passes use ops alone.
AT_LOAD = (
    *("octavo/layers/parameter.py", "octavo/layers/rotary.py"),
    *("octavo/models/base.py", "octavo/models/decoder.py", "octavo/models/gguf_keys.py"),
)


def test_models_and_schedulers_import_no_arrays() -> None:
    areas = ("models", "layers", "scheduler", "kvcache", "config", "types", "errors")
    report(
        (
            f"{m.file}:{line} imports {name}"
            for m in modules()
            if m.area in areas and m.file not in AT_LOAD
            for line, name in external_imports(m)
            if name in ("numpy", "torch", "scipy")
        ),
        "arrays in modules that know none",
    )


def test_torch_is_imported_only_behind_its_doors() -> None:
    report(
        (
            f"{m.file}:{line} imports {name}"
            for m in modules()
            if not m.file.startswith(TORCH_DOORS)
            for line, name in external_imports(m)
            if name in ("torch", "triton")
        ),
        "imports of torch outside its doors",
    )


def test_importing_octavo_loads_no_torch() -> None:
    names = [m.name for m in modules() if not m.file.startswith(TORCH_DOORS) and not m.name.endswith("__main__")]
    program = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, f'importing {name} loads torch'\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]


def test_packages_have_empty_init_files() -> None:
    report(
        (m.file for m in modules() if m.is_package and m.name != "octavo" and m.text.strip()),
        "__init__ files with code",
    )


def test_tests_and_oracles_are_not_imported() -> None:
    forbidden = (
        "transformers",
        "gguf",
        "pytest",
        "hypothesis",
        "tests",
        "scipy",
        "sentencepiece",
        "safetensors",
        "psutil",
    )
    report(
        (
            f"{m.file}:{line} imports {name}"
            for m in modules()
            for line, name in external_imports(m)
            if name in forbidden
        ),
        "imports of packages that only tests have",
    )


# Annotations and docstrings


def test_every_function_is_annotated() -> None:
    found = []
    for f in functions():
        assert isinstance(f.node, Function)
        names = parameters(f.node, in_class=isinstance(f.owner, ast.ClassDef))
        stars = [item for item in (f.node.args.vararg, f.node.args.kwarg) if item is not None]
        missing = [item.arg for item in (*names, *stars) if item.annotation is None]
        if f.node.returns is None:
            missing.append("return")
        if missing:
            found.append(f"{f.where}: {', '.join(missing)}")
    report(found, "functions that are not annotated")


def test_everything_public_has_a_docstring() -> None:
    found = [f"{m.file}: module" for m in modules() if not m.is_package and not ast.get_docstring(m.tree)]
    for m in modules():
        found += [d.where for d in definitions(m) if d.is_public and not documented(d)]
    report(found, "public definitions without a docstring")


def documented(found: Definition) -> bool:
    """Tell whether a definition says what it does: itself, or as an implementation of an op or property setter."""
    names = decorator_names(found.node)
    elsewhere = any(name.endswith((".impl", ".setter", ".cases", "overload")) for name in names)
    return elsewhere or bool(ast.get_docstring(found.node))


def test_array_functions_document_shapes() -> None:
    found = []
    for f in functions():
        assert isinstance(f.node, Function)
        annotated = [p.annotation for p in parameters(f.node, in_class=False) if p.annotation is not None]
        takes_array = any(TENSOR_WORDS.search(ast.unparse(item)) for item in annotated)
        if (
            f.is_public
            and takes_array
            and documented(f)
            and not any(n.endswith(".impl") for n in decorator_names(f.node))
        ):
            if not re.search(r"\[[^\]]*\]|\d-D|any shape|as in \w+", ast.get_docstring(f.node) or ""):
                found.append(f.where)
    report(found, "public functions of arrays whose docstring names no shape")


def test_docstrings_start_with_a_sentence() -> None:
    found = []
    for f in functions():
        text = ast.get_docstring(f.node) if isinstance(f.node, Function) else None
        if text and not text.split("\n\n")[0].rstrip().endswith((".", ":", "?")):
            found.append(f"{f.where}: {text.splitlines()[0]}")
    report(found, "docstrings whose first paragraph is no sentence")


# Constructs


def calls(m: Module, *names: str) -> Iterable[ast.Call]:
    """Return a module's calls of some functions by their full source name."""
    return (node for node in nodes(m, ast.Call) if isinstance(node, ast.Call) and ast.unparse(node.func) in names)


def test_no_guessing_of_attributes_and_types() -> None:
    found = []
    for m in modules():
        if m.area == "hf":
            continue
        found += [f"{m.file}:{n.lineno} hasattr" for n in calls(m, "hasattr")]
        for n in calls(m, "getattr", "setattr"):
            if len(n.args) > 1 and isinstance(n.args[1], ast.Constant):
                found.append(f"{m.file}:{n.lineno} {ast.unparse(n)}")
        for n in calls(m, "isinstance"):
            if re.search(r"\b\w*Spec\b", ast.unparse(n.args[1])):
                found.append(f"{m.file}:{n.lineno} {ast.unparse(n)}")
        found += [f"{m.file}:{n.lineno} global" for n in nodes(m, ast.Global) if isinstance(n, ast.Global)]
    report(found, "hasattr, getattr with a literal, isinstance of a spec, global")


FAMILIES = re.compile(
    r"(?<![a-z])(llama(?![.-]?cpp)|qwen|mistral|mixtral|gemma|phi-?\d|deepseek|chatglm|falcon|mamba-?\d|kimi|smollm|granite|olmo)",
    re.IGNORECASE,
)


# Words of configuration files, not of models: the rope type "llama3".
CONFIG_WORDS = {"octavo/layers/rotary.py": re.compile(r"_?llama ?3", re.IGNORECASE)}


def test_model_names_stay_with_models() -> None:
    found = []
    for m in modules():
        if m.area in ("models", "parsers", "hf"):
            continue
        for number, line in enumerate(m.text.splitlines(), 1):
            if m.file in CONFIG_WORDS:
                line = CONFIG_WORDS[m.file].sub("", line)
            if match := FAMILIES.search(line):
                found.append(f"{m.file}:{number} {match[0]}: {line.strip()[:80]}")
    report(found, "model family names in generic code")


PLATFORM_FACTS = ("sys.platform", "os.name", "platform.system", "platform.machine", "torch.cuda", "torch.version")
DEVICES = ("cpu", "cuda", "rocm", "xpu", "mps", "tpu")


def test_platform_checks_stay_with_platforms() -> None:
    found = []
    for m in modules():
        if m.area in ("platforms", "ops", "utils") or m.name == "octavo.attention.select":
            continue
        found += [
            f"{m.file}:{n.lineno} {ast.unparse(n)}"
            for n in nodes(m, ast.Attribute)
            if isinstance(n, ast.Attribute) and ast.unparse(n) in PLATFORM_FACTS
        ]
        for n in nodes(m, ast.Compare):
            assert isinstance(n, ast.Compare)
            if any(isinstance(x, ast.Constant) and x.value in DEVICES for x in (n.left, *n.comparators)):
                found.append(f"{m.file}:{n.lineno} {ast.unparse(n)}")
    report(found, "platform checks outside platforms/ and ops/")


def test_no_silenced_checks() -> None:
    found = []
    for m in modules():
        for token in tokenize.generate_tokens(io.StringIO(m.text).readline):
            if token.type != tokenize.COMMENT:
                continue
            if re.search(r"type:\s*ignore|\bnoqa\b", token.string) or re.search(
                r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))", token.string
            ):
                found.append(f"{m.file}:{token.start[0]} {token.string}")
    report(found, "type: ignore, noqa, or TODO without an issue number")


# Errors that anything may raise are caught where a process, thread or foreign code ends, and nowhere else.
BOUNDARIES = (
    "octavo/engine/async_engine.py",  # the engine's thread: its users are told, whatever ends it
    "octavo/worker/model_runner.py",  # the blast wall: what fails for one row must not fail the others
    "octavo/sampling/custom.py",  # the operator's own code
)


def test_broad_excepts_are_at_boundaries_only() -> None:
    found = []
    for m in modules():
        for n in nodes(m, ast.ExceptHandler):
            assert isinstance(n, ast.ExceptHandler)
            text = "" if n.type is None else ast.unparse(n.type)
            if (n.type is None or re.search(r"\b(Base)?Exception\b", text)) and m.file not in BOUNDARIES:
                found.append(f"{m.file}:{n.lineno} except {text}")
    report(found, "broad excepts outside a boundary")


def test_no_error_is_swallowed() -> None:
    found = []
    for m in modules():
        for n in nodes(m, ast.ExceptHandler):
            assert isinstance(n, ast.ExceptHandler)
            if all(isinstance(item, ast.Pass) for item in n.body):
                found.append(f"{m.file}:{n.lineno} except {ast.unparse(n.type) if n.type else ''}: pass")
        found += [f"{m.file}:{n.lineno} {ast.unparse(n)}" for n in calls(m, "contextlib.suppress", "suppress")]
    report(found, "swallowed errors")


UNSAFE_MODULES = ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml")
UNSAFE_CALLS = (
    *(
        "eval",
        "exec",
        "compile",
        "__import__",
        "torch.load",
        "yaml.load",
        "np.load",
        "numpy.load",
        "os.system",
        "os.popen",
    ),
    *("builtins.eval", "builtins.exec", "builtins.compile", "jinja2.Environment", "jinja2.Template"),
)


def test_nothing_runs_code_from_data() -> None:
    """SECURITY rule 2: no pickle, eval, exec, torch.load, yaml.load; nor their like."""
    found = []
    for m in modules():
        found += [f"{m.file}:{line} imports {name}" for line, name in external_imports(m) if name in UNSAFE_MODULES]
        found += [f"{m.file}:{n.lineno} {ast.unparse(n)[:80]}" for n in calls(m, *UNSAFE_CALLS)]
        for n in nodes(m, ast.keyword):
            assert isinstance(n, ast.keyword)
            if n.arg in ("shell", "trust_remote_code", "allow_pickle") and ast.unparse(n.value) != "False":
                found.append(f"{m.file}:{n.value.lineno} {n.arg}={ast.unparse(n.value)}")
    report(found, "code that runs code from data")


# Counts


def test_configuration_stays_small() -> None:
    assert len(all_fields()) <= MAX_FIELDS
    assert len(describe_envs()) <= MAX_ENVS


def test_environment_is_read_in_one_place() -> None:
    """OCTAVO_ variables are envs.py's; hf/ reads the variables of the Hugging Face cache, which are not ours."""
    report(
        (
            f"{m.file}:{n.lineno} {ast.unparse(n)}"
            for m in modules()
            if m.name != "octavo.envs"
            for n in nodes(m, ast.Constant)
            if isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value.startswith("OCTAVO_")
        ),
        "environment variables outside envs.py",
    )


# Extension folders: every file has a test and a docs row, and is discovered.

EXTENSION_FOLDERS = (
    *("models", "quantization", "attention", "kvcache", "kv_offload", "sampling", "spec_decode"),
    *("structured_output", "parsers", "ops", "platforms", "entrypoints"),
)


# Files of an extension folder that are its frame, not one of its things.
FRAME = {
    "models": {"base", "decoder", "gguf_keys"},
    "ops": {"op"},
    "entrypoints": {"cli", "openai_bodies", "sampling_arguments"},
    "kvcache": {"block_pool", "hashing", "kind", "manager", "planning", "spec"},
}


def extension_files() -> list[str]:
    """Return folder/stem of every file of an extension folder."""
    found = []
    for folder in EXTENSION_FOLDERS:
        for path in sorted((PACKAGE / folder).glob("*.py")):
            if path.name != "__init__.py":
                found.append(f"{folder}/{path.stem}")
    return found


def public_names(name: str) -> list[str]:
    """Return what a module exports."""
    module = next(m for m in modules() if m.file == f"octavo/{name}.py")
    lists = [n.value for n in module.tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    return [str(item) for value in lists for item in ast.literal_eval(value)]


def is_tested(name: str, tests: dict[Path, str]) -> bool:
    """Look for a test file of a module's name, or one in its folder that names the module or what it exports.

    Model files export the same names, so a model counts as tested where its model type is named; what models share
    is tested by each of them.
    """
    folder, _, stem = name.partition("/")
    if stem in FRAME.get(folder, ()):
        return True
    words = [rf"octavo\.{folder}(\.| import .*\b){stem}\b", rf"[\"']{stem}[\"']"]
    if folder == "models":
        words.append(rf"(?i)\b{stem.replace('_', '_?')}(?=_|config|\b)")
    elif folder != "sampling":
        words += [rf"\b{word}\b" for word in public_names(name)]
    return any(
        path.name == f"test_{stem}.py"
        or (path.parent.name in (folder, "e2e", "tests") and any(re.search(word, text) for word in words))
        for path, text in tests.items()
    )


def test_every_extension_file_has_a_test() -> None:
    tests = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    tests.pop(ROOT / "tests/test_style.py")
    report(
        (f"octavo/{name}.py" for name in extension_files() if not is_tested(name, tests)),
        "extension files without a test",
    )


def test_every_extension_file_has_a_docs_row() -> None:
    text = (ROOT / "docs/extend.md").read_text(encoding="utf-8")
    report(
        (f"octavo/{name}.py" for name in extension_files() if f"`{name}.py`" not in text),
        "extension files that docs/extend.md does not name",
    )


def test_every_model_file_is_found_by_its_name() -> None:
    for name in extension_files():
        folder, _, stem = name.partition("/")
        if folder == "models" and stem not in FRAME[folder]:
            assert find_model(stem).__name__ == f"octavo.models.{stem}"


def test_every_op_has_a_reference() -> None:
    """Families are found by file; each op has the torch implementation, which is its specification."""
    load("torch")
    assert {f"ops/{name}" for name in FRAME["ops"]} < {name for name in extension_files() if name.startswith("ops/")}
    for name in extension_files():
        folder, _, stem = name.partition("/")
        if folder == "ops" and stem not in FRAME[folder]:
            declared = [item for item in vars(sys.modules[f"octavo.ops.{stem}"]).values() if isinstance(item, Op)]
            assert declared, f"octavo/{name}.py declares no op"
            assert [item.name for item in declared if "torch" not in item.implementations] == []


def test_every_command_file_is_found_or_is_the_frame() -> None:
    commands = {module.rsplit(".", 1)[1] for module, _ in find_commands().values()}
    files = {name.partition("/")[2] for name in extension_files() if name.startswith("entrypoints/")}
    assert files - FRAME["entrypoints"] == commands


# Other checkers


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("mypy",),
    ],
    ids=["ruff-check", "ruff-format", "mypy"],
)
def test_checker_is_clean(command: tuple[str, ...]) -> None:
    result = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=280
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-6000:]
