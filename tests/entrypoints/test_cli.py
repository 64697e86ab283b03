"""The octavo command: finds subcommands by file, imports only the one it runs, and fails in one line."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.entrypoints import cli
from octavo.entrypoints.cli import find_commands, main
from octavo.version import __version__

COMMAND = '''"""Say something for the test."""
from octavo.errors import ConfigError
def add_arguments(parser):
    parser.add_argument("--fail", default="")
def run(args):
    if args.fail == "octavo":
        raise ConfigError("a wrong value")
    if args.fail == "interrupt":
        raise KeyboardInterrupt
    if args.fail == "bug":
        raise RuntimeError("a bug")
    print("said")
    return 7
'''


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Add a command, say-it, beside the real ones."""
    (tmp_path / "octavo_test_say_it.py").write_text(COMMAND, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    commands = {"say-it": ("octavo_test_say_it", "Say something for the test."), "doctor": ("", "")}
    monkeypatch.setattr(cli, "find_commands", lambda: commands)


def test_a_command_is_a_file_with_arguments_and_run(tmp_path: Path) -> None:
    (tmp_path / "run_batch.py").write_text(COMMAND, encoding="utf-8")
    (tmp_path / "helper.py").write_text('"""No command."""\ndef run(args): ...\n', encoding="utf-8")
    (tmp_path / "_private.py").write_text(COMMAND, encoding="utf-8")
    assert find_commands(str(tmp_path)) == {
        "run-batch": ("octavo.entrypoints.run_batch", "Say something for the test.")
    }


def test_every_command_has_a_one_line_help() -> None:
    commands = find_commands()
    assert "doctor" in commands
    for name, (_, text) in commands.items():
        assert text.endswith("."), f"{name}: the first docstring line is its help and ends with a full stop"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in find_commands())


def test_no_command_shows_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: octavo COMMAND" in capsys.readouterr().out


def test_the_version_comes_from_one_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"octavo {__version__}\n"


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docter"]) == 2
    assert "no command named 'docter'; did you mean `octavo doctor`?" in capsys.readouterr().err


@pytest.mark.usefixtures("say")
def test_a_commands_status_is_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say-it"]) == 7
    assert main(["say_it"]) == 7
    assert capsys.readouterr().out == "said\nsaid\n"


@pytest.mark.usefixtures("say")
def test_an_error_for_people_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say-it", "--fail", "octavo"]) == 1
    assert capsys.readouterr().err == "octavo say-it: a wrong value\n"


@pytest.mark.usefixtures("say")
def test_a_traceback_is_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_TRACEBACK", "1")
    with pytest.raises(ValueError, match="a wrong value"):
        main(["say-it", "--fail", "octavo"])


@pytest.mark.usefixtures("say")
def test_a_bug_is_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        main(["say-it", "--fail", "bug"])


@pytest.mark.usefixtures("say")
def test_an_interrupt_exits_as_shells_expect() -> None:
    assert main(["say-it", "--fail", "interrupt"]) == 130


@pytest.mark.usefixtures("say")
def test_an_unknown_environment_switch_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OCTAVO_TRACEBAK", "1")
    assert main(["say-it"]) == 1
    assert "OCTAVO_TRACEBAK means nothing to octavo; did you mean OCTAVO_TRACEBACK?" in capsys.readouterr().err


def python(*args: str) -> subprocess.CompletedProcess[str]:
    """Run this Python in the repository."""
    root = Path(__file__).parents[2]
    return subprocess.run([sys.executable, *args], cwd=root, capture_output=True, text=True, check=False)


def test_help_imports_next_to_nothing() -> None:
    program = (
        "import sys; from octavo.entrypoints.cli import main; main(['--help']); "
        "heavy = {'numpy', 'torch', 'msgspec', 'tokenizers', 'jinja2', 'json', 'asyncio', 'logging', 'octavo.config'}; "
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    assert python("-c", program).stderr == "[]\n"


def test_help_is_quick() -> None:
    """0.15 s beyond the interpreter's own start, in processor time, as the machine is shared; the best of five."""
    times = []
    for args in (("-c", "pass"), ("-m", "octavo.entrypoints.cli", "--help")):
        runs = []
        for _ in range(5):
            start = resource.getrusage(resource.RUSAGE_CHILDREN)
            assert python(*args).returncode == 0
            end = resource.getrusage(resource.RUSAGE_CHILDREN)
            runs.append(end.ru_utime - start.ru_utime + end.ru_stime - start.ru_stime)
        times.append(min(runs))
    assert times[1] - times[0] < 0.15


def test_a_reader_that_leaves_is_no_error() -> None:
    """`octavo doctor | head -0`: nothing on stderr."""
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "octavo.entrypoints.cli", "doctor"],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 1
    assert error == b""


def test_doctor_runs_as_a_command() -> None:
    result = python("-m", "octavo.entrypoints.cli", "doctor", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["version"] == __version__
