"""Fixtures that several test files share: real SGLang servers on the CPU, torch's number of threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
import torch

from backend.sglang.launch_spec import LaunchSpec
from tests import sglang_standin
from tests.sglang_cpu.chain_models import ChainModels, write_chain_models
from tests.sglang_cpu.server import Server, free_port, start_server, stop_server
from tests.sglang_cpu.setup import environment, interpreter, is_installed

NEEDS_SGLANG = "sglang_python"


class SglangServer(Protocol):
    """Start a server, or find the one already started with the same arguments; returns its base URL."""

    def __call__(self, target: Path, draft: Path | None = None, *flags: str, dtype: str = "bfloat16") -> str: ...


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for a real SGLang is heavy."""
    for item in items:
        if NEEDS_SGLANG in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.heavy)


@pytest.fixture(scope="session")
def sglang_python() -> Path:
    """The Python that has SGLang. Without one the test is skipped, or fails under EAGLELENS_REQUIRE_SGLANG=1."""
    if not is_installed():
        reason = f"no SGLang in {environment()}: run `python -m tests.sglang_cpu.setup`"
        if os.environ.get("EAGLELENS_REQUIRE_SGLANG") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return interpreter()


@pytest.fixture(scope="session")
def chain_models(tmp_path_factory: pytest.TempPathFactory) -> ChainModels:
    """The two checkpoints whose every token is known (tests/sglang_cpu/chain_models.py)."""
    return write_chain_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def sglang_server(
    sglang_python: Path,  # noqa: ARG001 - asked for so that a machine without it skips
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SglangServer]:
    """A factory of real servers that live until the session ends; their logs stay in pytest's folder."""
    logs = tmp_path_factory.mktemp("sglang-logs")
    servers: dict[tuple[object, ...], Server] = {}

    def serve(target: Path, draft: Path | None = None, *flags: str, dtype: str = "bfloat16") -> str:
        key = (target, draft, flags, dtype)
        if key not in servers:
            servers[key] = start_server(target, draft, dtype, flags, logs / f"{len(servers)}.log")
        return servers[key].base_url

    yield serve
    for server in servers.values():
        stop_server(server)


@pytest.fixture(scope="session")
def chain_eagle3_server(sglang_server: SglangServer, chain_models: ChainModels) -> str:
    """Base URL of SGLang 0.5.23 with the chain pair: EAGLE3, 3 steps, topk 1, 4 draft tokens."""
    return sglang_server(chain_models.target, chain_models.draft)


@pytest.fixture(scope="session")
def chain_baseline_server(sglang_server: SglangServer, chain_models: ChainModels) -> str:
    """Base URL of the same target without speculation."""
    return sglang_server(chain_models.target)


@pytest.fixture
def standin(tmp_path: Path) -> Callable[[str], LaunchSpec]:
    """Specs whose "Python with SGLang" plays a script (tests/sglang_standin.py)."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {sglang_standin.__file__} "$@"\n')
    python.chmod(0o755)

    def make(script: str) -> LaunchSpec:
        return LaunchSpec(
            "Baseline", python, "0.5.23", "target", port=free_port(), environment={"EAGLELENS_STANDIN": script}
        )

    return make


@pytest.fixture
def restore_threads() -> Iterator[None]:
    """For tests that set torch's number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
