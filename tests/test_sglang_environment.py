"""Finding the Python that has SGLang, and saying what to do when there is none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from backend.sglang import environment
from backend.sglang.environment import NoSglangError, find_sglang, setup_sglang

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def with_sglang(tmp_path: Path) -> Path:
    """An environment whose metadata says that it has SGLang 0.5.6."""
    folder = tmp_path / "own"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next((folder / "lib").glob("python3.*")) / "site-packages"
    metadata = packages / "sglang-0.5.6.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.6\n")
    return folder


def test_the_version_is_asked_of_the_interpreter_itself(with_sglang: Path) -> None:
    python = with_sglang / "bin" / "python"
    assert find_sglang(chosen=python).version == "0.5.6"


def test_the_environment_of_its_own_is_found(with_sglang: Path) -> None:
    assert find_sglang(environment=with_sglang).python == with_sglang / "bin" / "python"


def test_a_chosen_python_without_sglang_is_never_passed_over(with_sglang: Path, tmp_path: Path) -> None:
    with pytest.raises(NoSglangError, match="--sglang-python"):
        find_sglang(chosen=tmp_path / "nowhere", environment=with_sglang)


def test_without_sglang_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoSglangError, match="setup-sglang"):
        find_sglang(environment=tmp_path)


def test_a_full_disk_is_noticed_before_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100, 99, 1))
    with pytest.raises(NoSglangError, match="make room"):
        setup_sglang(tmp_path / "own")
    assert not (tmp_path / "own" / "bin").exists()


def test_a_failing_installation_repeats_the_installers_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "NEEDED_BYTES", 0)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    lines: list[str] = []
    with pytest.raises(NoSglangError, match="No matching distribution"):
        setup_sglang(tmp_path / "own", on_line=lines.append)
    assert any("sglang==" in line for line in lines)
