"""`app.py --engine embedded --target … --draft …`: folders and names of the hub, from the command line to a reply."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import app
from backend.client import read_lane, stream_run, tokenize_chat
from backend.embedded_pair import plan_embedded_pair
from backend.events import Exactness, Request, Run, RunEnded, Sampling
from backend.hub import Hub, HubError
from backend.lanes import Lane
from backend.ports import find_free_port
from tests.hub_server import FakeHub, serve_hub
from tests.tiny_folders import make_target, write_draft, write_target

ROOT = Path(app.__file__).parent
START_SECONDS = 120


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("pair")
    model = make_target("qwen3", spread=0.05)
    target, draft = folder / "acme-qwen3", folder / "acme-qwen3-eagle3"
    return write_target(target, model, shard_size="500KB"), write_draft(draft, model)


@pytest.fixture
def hub_server(folders: tuple[Path, Path]) -> Iterator[FakeHub]:
    target, draft = folders
    named = {"acme/qwen3": target, "acme/qwen3-eagle3": draft}
    files = {name: {file.name: file.read_bytes() for file in folder.iterdir()} for name, folder in named.items()}
    with serve_hub(FakeHub(files)) as server:
        yield server


@contextmanager
def run_app(*arguments: str, **environment: str) -> Iterator[tuple[str, list[str]]]:
    """The app with its embedded engine ready: address of the drafting lane, and what the terminal said."""
    port = find_free_port("127.0.0.1", 17960)
    engine_port = find_free_port("127.0.0.1", 17980)
    command = [sys.executable, "-u", "app.py", "--no-browser", "--engine", "embedded", "--port", str(port)]
    command += ["--engine-port", str(engine_port), *arguments, "--", "--threads", "1"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        said: list[str] = []
        try:
            for line in running.stdout or ():
                said.append(line)
                if "Engine: Ready" in line:
                    break
            assert said and "Engine: Ready" in said[-1], "".join(said)
            yield f"http://127.0.0.1:{engine_port}", said
        finally:
            running.terminate()
            running.wait(30)


async def ask(url: str) -> tuple[Lane, Run]:
    """A short greedy reply through the server's own tokenizer and chat template."""
    lane = await read_lane(url, "EAGLE-3")
    ids = await tokenize_chat(lane, [{"role": "user", "content": "w1 w2 w3 w4"}])
    assert list(ids) == [1, 2, 3, 4]
    sampling = Sampling(max_tokens=24)
    run: Run | None = None
    async for event in stream_run(lane, Request("small", tuple(ids), sampling)):
        if isinstance(event, RunEnded):
            run = event.run
    assert run is not None
    return lane, run


@pytest.mark.heavy
async def test_folders_given_on_the_command_line_are_served(folders: tuple[Path, Path]) -> None:
    target, draft = folders
    with run_app("--target", str(target), "--draft", str(draft), "--dtype", "fp32") as (url, _):
        lane, run = await ask(url)
    assert lane.model == "acme-qwen3"
    assert (run.error, run.exactness) == (None, Exactness.EXACT)
    assert run.tokens and all(token.piece.strip().startswith("w") for token in run.tokens[:-1])


@pytest.mark.heavy
async def test_names_of_the_hub_are_fetched_and_served(hub_server: FakeHub, tmp_path: Path) -> None:
    home = {"HF_ENDPOINT": hub_server.url, "HF_HOME": str(tmp_path / "hf")}
    pair = ("--target", "acme/qwen3", "--draft", "acme/qwen3-eagle3", "--dtype", "fp32")
    with run_app(*pair, **home) as (url, said):
        lane, run = await ask(url)
        facts = httpx.get(f"{url}/server_info").json()
    assert any("Downloading acme/qwen3" in line for line in said)
    assert lane.model == "acme/qwen3"
    assert "acme/qwen3-eagle3" in json.dumps(facts)
    assert (run.error, run.exactness) == (None, Exactness.EXACT)


def test_a_pair_that_does_not_fit_is_refused_after_its_configs_and_before_its_weights(
    hub_server: FakeHub, tmp_path: Path
) -> None:
    config = json.loads(hub_server.repositories["acme/qwen3-eagle3"]["config.json"])
    hub_server.repositories["acme/qwen3-eagle3"]["config.json"] = json.dumps(config | {"vocab_size": 999}).encode()
    with pytest.raises(ValueError, match="acme/qwen3-eagle3 was trained for a vocabulary of 999"):
        plan_embedded_pair("acme/qwen3", "acme/qwen3-eagle3", Hub(hub_server.url, tmp_path))
    assert {name for name, _ in hub_server.sent} == {"config.json"}


def test_a_target_alone_is_checked_against_the_shipped_draft(folders: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match=r"The draft that ships with EagleLens reads hidden states of 576.*--draft"):
        plan_embedded_pair(str(folders[0]), None, Hub())


def test_a_repository_that_is_not_there_is_named(hub_server: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(HubError, match="There is no repository acme/nothing"):
        plan_embedded_pair("acme/nothing", None, Hub(hub_server.url, tmp_path))


def test_the_terminal_says_what_cannot_be_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["MixtralForCausalLM"], "num_local_experts": 8}))
    (tmp_path / "model.safetensors").write_bytes(b"never opened")
    assert app.main(["--engine", "embedded", "--target", str(tmp_path), "--no-browser"]) == app.EXIT_REFUSED
    said = capsys.readouterr().out
    assert "mixture of 8 experts" in said and len(said.splitlines()) == 1
