"""The documentation names what exists: links, files and tests; and it speaks of the project alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
]
STATES = ("works", "partly", "not yet")
NUM_MAP_ROWS = 298


@cache
def read(path: Path) -> str:
    """Read a page or a test file."""
    return path.read_text(encoding="utf-8")


def named_tests(text: str) -> Iterator[tuple[str, str]]:
    """Yield (file or folder, test name or "") of every test that a page names."""
    for match in re.finditer(r"`(tests/[\w./]+)(?:::(\w+))?`", text):
        yield match[1], match[2] or ""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    missing = []
    for file, name in named_tests(read(page)):
        path = ROOT / file
        if not path.exists() or (name and not re.search(rf"^(async )?def {name}\(", read(path), re.MULTILINE)):
            missing.append(f"{file}::{name}" if name else file)
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", read(page))
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pages_name_no_machine(page: Path) -> None:
    assert not re.findall(r"(?<![\w.])/(?:work|opt|tmp|root|home)/[\w.-]+", read(page))


def map_rows() -> list[list[str]]:
    """Return the rows of docs/map.md that have a state: path, what, P, ours, state, test."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in read(ROOT / "docs/map.md").splitlines()]
    return [row for row in rows if len(row) == 6 and row[4] in STATES]


def test_the_map_has_every_row_and_counts_itself() -> None:
    rows = map_rows()
    assert len(rows) == NUM_MAP_ROWS
    works, partly, not_yet = (sum(row[4] == state for row in rows) for state in STATES)
    assert f"{len(rows)} rows: {works} work, {partly} partly, {not_yet} not yet." in read(ROOT / "docs/map.md")


def test_what_works_on_the_map_exists_and_has_a_test() -> None:
    wrong = []
    for path, _, _, ours, state, test in map_rows():
        if state != "works":
            continue
        if not test and not ours.startswith("-"):
            wrong.append(f"{path}: works without a test")
        for file in re.findall(r"`([\w./]+\.\w+)`", ours):
            if not (ROOT / file).exists():
                wrong.append(f"{path}: {file} does not exist")
    assert not wrong


def test_readme_examples_name_existing_commands() -> None:
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```", read(ROOT / "README.md"), re.MULTILINE | re.DOTALL))
    named = set(re.findall(r"\boctavo ([a-z]+(?:-[a-z]+)*)\b", re.sub(r"#.*", "", blocks)))
    files = {path.stem.replace("_", "-") for path in (ROOT / "octavo/entrypoints").glob("*.py")}
    assert named
    assert named <= files
