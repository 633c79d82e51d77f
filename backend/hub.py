"""Model files from the hub: what is needed of a repository, how much that is, and getting it, resumably.

Local folders and what is in the hub's cache already are used as they are.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm import tqdm

WORKERS = 4  # files at a time
ATTEMPTS = 5  # per file without any progress, before a download is given up
PAUSE = 1.0  # seconds before the second attempt, doubled each time
LISTING_TIMEOUT = 30.0
SAFETENSORS = ("*.safetensors", "*.safetensors.index.json")
PICKLED = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
FOR_A_TARGET = ("*.json", "*.jinja", "tokenizer*", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
WEIGHT_SUFFIXES = (".safetensors", ".bin")
NEVER = ("training_state*", "optimizer*", "scheduler*", "trainer_state*", "rng_state*", "training_args*")


class Role(StrEnum):
    """What a repository is wanted for."""

    TARGET = "target"
    DRAFT = "draft"


class HubError(RuntimeError):
    """A model cannot be had; the message is one for the user, with what to do."""


@dataclass(frozen=True)
class HubFile:
    """A file of a repository. `size` is in bytes."""

    name: str
    size: int
    is_cached: bool


@dataclass(frozen=True)
class DownloadPlan:
    """What a download would do: `files` at the commit `revision`, to which `branch` pointed.

    `folder` is there when nothing has to be fetched. `free_bytes` is of the disk that has the cache.
    """

    source: str
    files: tuple[HubFile, ...] = ()
    revision: str | None = None
    branch: str = "main"
    folder: Path | None = None
    free_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Size of all its files."""
        return sum(file.size for file in self.files)

    @property
    def missing_bytes(self) -> int:
        """Size of the files that are not in the cache."""
        return sum(file.size for file in self.files if not file.is_cached)

    @property
    def weight_bytes(self) -> int:
        """Size of the weights alone, which is about what they take of a GPU."""
        if self.folder is not None:
            paths = [path for path in self.folder.iterdir() if path.suffix in WEIGHT_SUFFIXES]
            pickled = all(path.suffix == ".bin" for path in paths)
            return sum(path.stat().st_size for path in paths if pickled or path.suffix == ".safetensors")
        return sum(file.size for file in self.files if Path(file.name).suffix in WEIGHT_SUFFIXES)


@dataclass(frozen=True)
class Progress:
    """Bytes on the disk so far, of all that were missing."""

    done_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Hub:
    """Where models come from and go to. None takes huggingface_hub's own setting (HF_ENDPOINT, HF_HOME, HF_TOKEN)."""

    endpoint: str | None = None
    cache: Path | None = None
    token: str | None = field(default=None, repr=False)

    def plan(
        self,
        source: str,
        role: Role = Role.TARGET,
        trust_remote_code: bool = False,
        patterns: Sequence[str] | None = None,
        revision: str | None = None,
    ) -> DownloadPlan:
        """Look up what is needed of `source`, a repository or a local folder, and what of it is here.

        `patterns` name the files wanted instead of those of `role`. Raises HubError.
        """
        local = Path(source).expanduser()
        if local.is_dir():
            if patterns is None:
                _require_whole(local)
            return DownloadPlan(source, folder=local)
        _refuse_missing_path(source)
        try:
            listing, commit = self._list_files(source, revision)
        except HubError as error:
            if isinstance(error.__cause__, (HfHubHTTPError, HFValidationError)) and not _is_outage(error.__cause__):
                raise
            return self._plan_from_cache(source, patterns, revision, error)
        names = choose_files(source, tuple(listing), role, trust_remote_code, patterns)
        files = tuple(HubFile(name, listing[name], self._cached(source, name, commit) is not None) for name in names)
        free = shutil.disk_usage(_existing(self._cache_folder())).free
        return DownloadPlan(source, files, commit, revision or "main", free_bytes=free)

    def download(self, plan: DownloadPlan, on_progress: Callable[[Progress], None] = lambda _: None) -> Path:
        """Fetch what is missing and return the folder with all files.

        A file whose connection breaks is taken up where it broke; after an interrupted download the next one keeps
        the files that were complete. `on_progress` is called from several threads, one call at a time. Raises HubError.
        """
        if plan.folder is not None:
            return plan.folder
        if plan.missing_bytes > plan.free_bytes:
            raise HubError(
                f"{plan.source} needs {_gigabytes(plan.missing_bytes)} and {self._cache_folder()} has "
                f"{_gigabytes(plan.free_bytes)} free: make room, or set HF_HOME to a folder on a larger disk."
            )
        missing = [file for file in plan.files if not file.is_cached]
        tally = _Tally(plan.missing_bytes, on_progress)
        with ThreadPoolExecutor(WORKERS) as pool:
            fetched = [pool.submit(self._fetch, plan, file, tally) for file in missing]
            try:
                for one in fetched:
                    one.result()
            except BaseException:
                tally.stop()
                pool.shutdown(cancel_futures=True)
                raise
        self._note_branch(plan)
        found = self._cached(plan.source, plan.files[0].name, plan.revision)
        if found is None:
            raise HubError(f"The download of {plan.source} vanished from {self._cache_folder()}: start it again.")
        return _snapshot_of(Path(found), plan.files[0].name)

    def read_config(self, plan: DownloadPlan) -> dict[str, Any]:
        """The model's config.json, fetched alone where it is not here. Raises HubError."""
        if plan.folder is None:
            config = DownloadPlan(
                plan.source,
                tuple(file for file in plan.files if file.name == "config.json"),
                plan.revision,
                plan.branch,
                free_bytes=plan.free_bytes,
            )
            folder = self.download(config)
        else:
            folder = plan.folder
        try:
            config_json: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise HubError(f"The config.json of {plan.source} cannot be read ({error}).") from error
        return config_json

    def _list_files(self, source: str, revision: str | None) -> tuple[dict[str, int], str]:
        api = HfApi(endpoint=self.endpoint, token=self.token)
        try:
            info = api.model_info(source, revision=revision, files_metadata=True, timeout=LISTING_TIMEOUT)
            if info.gated:
                api.auth_check(source)
        except Exception as error:
            raise HubError(_explain(source, error)) from error
        return {file.rfilename: file.size or 0 for file in info.siblings or ()}, str(info.sha)

    def _plan_from_cache(
        self, source: str, patterns: Sequence[str] | None, revision: str | None, unreachable: HubError
    ) -> DownloadPlan:
        try:
            folder = Path(
                snapshot_download(
                    source,
                    revision=revision,
                    cache_dir=self.cache,
                    local_files_only=True,
                    allow_patterns=list(patterns) if patterns else ["config.json"],
                )
            )
            if patterns is None:
                _require_whole(folder)
        except (LocalEntryNotFoundError, HubError, OSError):
            raise unreachable from unreachable.__cause__
        return DownloadPlan(source, folder=folder)

    def _fetch(self, plan: DownloadPlan, file: HubFile, tally: _Tally) -> None:
        attempt = 0
        before = 0
        while True:
            tally.begin(file.name)
            try:
                hf_hub_download(
                    plan.source,
                    file.name,
                    revision=plan.revision,
                    cache_dir=self.cache,
                    endpoint=self.endpoint,
                    token=self.token,
                    tqdm_class=_make_bar(tally, file.name),
                )
            except _StoppedError:
                return
            except Exception as error:
                got = tally.count(file.name)
                attempt = 0 if got > before else attempt + 1
                before = max(before, got)
                if attempt >= ATTEMPTS or not _may_pass(error):
                    raise HubError(_explain(plan.source, error)) from error
                time.sleep(PAUSE * 2**attempt)
            else:
                tally.finish(file.name, file.size)
                return

    def _note_branch(self, plan: DownloadPlan) -> None:
        """Have the cache remember which commit the branch is, so that it is found without a connection."""
        name = min(plan.files, key=lambda file: file.size).name
        try:
            hf_hub_download(
                plan.source,
                name,
                revision=plan.branch,
                cache_dir=self.cache,
                endpoint=self.endpoint,
                token=self.token,
            )
        except Exception as error:
            raise HubError(_explain(plan.source, error)) from error

    def _cached(self, source: str, name: str, commit: str | None) -> str | None:
        found = try_to_load_from_cache(source, name, cache_dir=self.cache, revision=commit)
        return found if isinstance(found, str) else None

    def _cache_folder(self) -> Path:
        return Path(self.cache or constants.HF_HUB_CACHE)


def choose_files(
    source: str,
    names: Sequence[str],
    role: Role,
    trust_remote_code: bool = False,
    patterns: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """The files of a repository that are needed, and no training state. Raises HubError where there are no weights.

    A draft is its config and its weights; a target has a tokenizer too, and code where that is trusted. Pickled
    weights are taken only where there are no safetensors.
    """
    if patterns is not None:
        chosen = _matching(names, patterns)
        if not chosen:
            raise HubError(f"{source} has no file like {' or '.join(patterns)}.")
        return chosen
    top = [name for name in names if "/" not in name and not any(fnmatch(name, never) for never in NEVER)]
    weights = _matching(top, SAFETENSORS)
    sharded = _matching(weights, ("model*.safetensors", "model.safetensors.index.json"))
    weights = sharded if any(name.endswith(".safetensors") for name in sharded) else weights
    weights = weights or _matching(top, PICKLED)
    if "config.json" not in top or not weights:
        raise HubError(f"{source} has no config.json with weights beside it, so SGLang cannot load it. Check the name.")
    further = _matching(top, FOR_A_TARGET) if role == Role.TARGET else ("config.json",)
    further = tuple(name for name in further if not name.endswith(".index.json"))
    code = _matching(names, ("*.py",)) if role == Role.TARGET and trust_remote_code else ()
    return tuple(sorted({*weights, *further, *code}))


class _StoppedError(Exception):
    """Another file has failed."""


class _Tally:
    """Bytes on the disk per file, reported as one sum."""

    def __init__(self, total: int, on_progress: Callable[[Progress], None]) -> None:
        self._total = total
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._stopped = False

    def begin(self, name: str) -> None:
        self._set(name, 0)

    def add(self, name: str, count: int) -> None:
        self._set(name, self.count(name) + count)

    def finish(self, name: str, size: int) -> None:
        self._set(name, size)

    def stop(self) -> None:
        self._stopped = True

    def count(self, name: str) -> int:
        return self._counts.get(name, 0)

    def _set(self, name: str, count: int) -> None:
        if self._stopped:
            raise _StoppedError
        with self._lock:
            self._counts[name] = count
            self._on_progress(Progress(min(sum(self._counts.values()), self._total), self._total))


def _make_bar(tally: _Tally, name: str) -> type[Any]:
    """A progress bar, as huggingface_hub wants one, that draws nothing and tells the tally."""

    class Bar(tqdm):  # type: ignore[misc, unused-ignore]
        def __init__(self, *_: object, initial: int = 0, total: int | None = None, **__: object) -> None:
            super().__init__(initial=initial, total=total, disable=True)
            tally.add(name, initial)

        def update(self, n: float | None = 1) -> None:
            tally.add(name, int(n or 0))

    return Bar


def _matching(names: Iterable[str], patterns: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if any(fnmatch(name, pattern) for pattern in patterns))


def _require_whole(folder: Path) -> None:
    """Raise HubError unless the folder has a config and all the weights that its index lists."""
    indexes = [*folder.glob("*.safetensors.index.json"), *folder.glob("pytorch_model.bin.index.json")]
    listed = {
        name for index in indexes for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    }
    absent = sorted(name for name in {"config.json", *listed} if not (folder / name).exists())
    if absent:
        raise HubError(f"{folder} is incomplete: {', '.join(absent[:3])} is missing. Download the model again.")
    if not any(True for pattern in ("*.safetensors", "*.bin") for _ in folder.glob(pattern)):
        raise HubError(f"{folder} has a config but no weights. Download the model again, or give another path.")


def _refuse_missing_path(source: str) -> None:
    if source.startswith(("/", "./", "../", "~")) or source.count("/") > 1:
        raise HubError(f"There is no folder {source}. Give an existing one, or a repository as owner/name.")


def _is_outage(error: BaseException) -> bool:
    """Whether the hub itself is in trouble, rather than the request."""
    return isinstance(error, HfHubHTTPError) and error.response.status_code >= 500


def _may_pass(error: Exception) -> bool:
    """Whether trying again may help: a broken connection or a hub in trouble, but no refusal and no full disk."""
    if isinstance(error, HfHubHTTPError):
        return _is_outage(error)
    return not isinstance(error, (PermissionError, OfflineModeIsEnabled)) and getattr(error, "errno", None) is None


def _explain(source: str, error: Exception) -> str:
    """One sentence for the user, with what to do."""
    refusals: tuple[tuple[type[Exception], str], ...] = (
        (
            GatedRepoError,
            f"{source} is gated: accept its terms on its page of the hub, then set HF_TOKEN to a token of that account "
            "(or run `hf auth login`).",
        ),
        (
            RepositoryNotFoundError,
            f"There is no repository {source}, or this account may not see it: check the name, and set HF_TOKEN "
            "where it is private.",
        ),
        (RevisionNotFoundError, f"{source} has no such revision."),
        (HFValidationError, f"{source!r} is no repository of the hub: names are written owner/name."),
        (
            OfflineModeIsEnabled,
            f"{source} is not on this machine and HF_HUB_OFFLINE forbids fetching it: unset that, or give a path.",
        ),
        (PermissionError, f"The cache cannot be written ({error}): set HF_HOME to a folder of your own."),
    )
    for kind, sentence in refusals:
        if isinstance(error, kind):
            return sentence
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        if status == 401:
            return "The hub does not accept the token in HF_TOKEN: make a new one, or unset it for public models."
        return f"The hub answered {status} for {source}: try again later."
    if isinstance(error, OSError) and error.errno is not None:
        return f"{source} could not be written to the disk: {error.strerror}."
    return (
        f"The hub could not be reached for {source} ({type(error).__name__}): check the connection, or give the path "
        "of a local copy. The complete files are kept, so the next try goes on from there."
    )


def _existing(folder: Path) -> Path:
    return folder if folder.exists() else _existing(folder.parent)


def _snapshot_of(path: Path, name: str) -> Path:
    return path.parents[name.count("/")]


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
