"""Downloads, from a local server that speaks the hub's protocol with real files, broken connections included."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from backend import hub as hub_module
from backend.hub import Hub, HubError, Progress, Role, choose_files
from tests.hub_server import FakeHub, serve_hub

WEIGHTS = bytes(range(256)) * 40_000  # 10 MB
DRAFT = {
    "config.json": b'{"architectures": ["LlamaForCausalLMEagle3"]}',
    "model.safetensors": WEIGHTS,
    "training_state.pt": b"never" * 1000,
    "README.md": b"# a card",
}
TARGET = {
    "config.json": b"{}",
    "generation_config.json": b"{}",
    "tokenizer.json": b"{}",
    "tokenizer.model": b"model",
    "chat_template.jinja": b"{{ messages }}",
    "model-00001-of-00002.safetensors": b"a" * 1000,
    "model-00002-of-00002.safetensors": b"b" * 1000,
    "model.safetensors.index.json": b'{"weight_map": {"x": "model-00001-of-00002.safetensors", '
    b'"y": "model-00002-of-00002.safetensors"}}',
    "consolidated.safetensors": b"c" * 2000,
    "original/consolidated.00.pth": b"d" * 2000,
    "modeling_own.py": b"print('code')",
    "optimizer.pt": b"e" * 2000,
}
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def server() -> Iterator[FakeHub]:
    with serve_hub(FakeHub({"someone/draft": dict(DRAFT), "someone/target": dict(TARGET)})) as one:
        yield one


@pytest.fixture
def hub(server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setattr(hub_module, "PAUSE", 0.01)
    # A chunk that is cut short is lost; the library's own 10 MB would ask for larger files here.
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100_000)
    return Hub(endpoint=server.url, cache=tmp_path / "cache")


def test_of_a_draft_only_config_and_weights_arrive(hub: Hub) -> None:
    folder = hub.download(hub.plan("someone/draft", Role.DRAFT))
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_the_size_is_known_before_anything_is_fetched(hub: Hub, server: FakeHub) -> None:
    plan = hub.plan("someone/draft", Role.DRAFT)
    assert plan.total_bytes == plan.missing_bytes == len(WEIGHTS) + len(DRAFT["config.json"])
    assert plan.free_bytes > 0
    assert not server.sent


def test_the_config_can_be_read_before_the_weights_are_fetched(hub: Hub, server: FakeHub) -> None:
    plan = hub.plan("someone/draft", Role.DRAFT)
    assert hub.read_config(plan) == {"architectures": ["LlamaForCausalLMEagle3"]}
    assert {file for file, _ in server.sent} == {"config.json"}


def test_the_weights_weigh_the_same_before_and_after_the_download(hub: Hub) -> None:
    plan = hub.plan("someone/draft", Role.DRAFT)
    local = hub.plan(str(hub.download(plan)))
    assert plan.weight_bytes == local.weight_bytes == len(WEIGHTS)


def test_a_target_has_its_tokenizer_and_one_copy_of_its_weights() -> None:
    names = choose_files("someone/target", tuple(TARGET), Role.TARGET)
    assert set(names) == set(TARGET) - {
        "consolidated.safetensors",
        "original/consolidated.00.pth",
        "modeling_own.py",
        "optimizer.pt",
    }


def test_code_comes_along_only_where_it_is_trusted() -> None:
    assert "modeling_own.py" in choose_files("someone/target", tuple(TARGET), Role.TARGET, trust_remote_code=True)


def test_pickled_weights_are_taken_only_for_want_of_others() -> None:
    both = ("config.json", "model.safetensors", "pytorch_model.bin")
    assert choose_files("a/b", both, Role.DRAFT) == ("config.json", "model.safetensors")
    assert choose_files("a/b", ("config.json", "pytorch_model.bin"), Role.DRAFT) == ("config.json", "pytorch_model.bin")


def test_a_repository_without_weights_is_refused() -> None:
    with pytest.raises(HubError, match=r"no config\.json with weights"):
        choose_files("a/b", ("README.md", "training_state.pt"), Role.DRAFT)


def test_named_files_can_be_fetched_alone(hub: Hub) -> None:
    folder = hub.download(hub.plan("someone/target", patterns=("tokenizer.json",)))
    assert [path.name for path in folder.iterdir()] == ["tokenizer.json"]


def test_progress_grows_to_the_whole(hub: Hub) -> None:
    seen: list[Progress] = []
    plan = hub.plan("someone/draft", Role.DRAFT)
    hub.download(plan, seen.append)
    assert seen[-1] == Progress(plan.total_bytes, plan.total_bytes)
    counts = [progress.done_bytes for progress in seen]
    assert counts == sorted(counts)


def test_a_broken_connection_is_taken_up_where_it_broke(hub: Hub, server: FakeHub) -> None:
    server.break_after["model.safetensors"] = [4_000_000, 1_000_000]
    folder = hub.download(hub.plan("someone/draft", Role.DRAFT))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    starts = [start for file, start in server.sent if file == "model.safetensors"]
    assert len(starts) == 3
    assert starts[0] == 0 < starts[1] < starts[2]


def test_a_download_that_failed_keeps_its_complete_files_for_the_next_time(
    hub: Hub, server: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "ATTEMPTS", 1)
    monkeypatch.setattr(hub_module, "WORKERS", 1)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    server.break_after["model-00002-of-00002.safetensors"] = [0] * 40
    with pytest.raises(HubError, match="complete files are kept"):
        hub.download(hub.plan("someone/target"))
    server.break_after.clear()
    server.sent.clear()
    plan = hub.plan("someone/target")
    assert 0 < plan.missing_bytes < plan.total_bytes
    folder = hub.download(plan)
    assert (folder / "model-00002-of-00002.safetensors").read_bytes() == b"b" * 1000
    assert "model-00001-of-00002.safetensors" not in {file for file, _ in server.sent}


def test_what_is_cached_is_not_fetched_again(hub: Hub, server: FakeHub) -> None:
    first = hub.download(hub.plan("someone/draft", Role.DRAFT))
    server.sent.clear()
    plan = hub.plan("someone/draft", Role.DRAFT)
    assert plan.missing_bytes == 0
    assert hub.download(plan) == first
    assert not server.sent


def test_a_complete_cache_serves_when_the_hub_is_gone(hub: Hub) -> None:
    folder = hub.download(hub.plan("someone/draft", Role.DRAFT))
    offline = Hub(endpoint="http://127.0.0.1:9", cache=hub.cache)
    assert offline.download(offline.plan("someone/draft", Role.DRAFT)) == folder


def test_a_partial_cache_does_not_pass_for_a_model_when_the_hub_is_gone(hub: Hub) -> None:
    hub.download(hub.plan("someone/target", patterns=("config.json", "model.safetensors.index.json")))
    offline = Hub(endpoint="http://127.0.0.1:9", cache=hub.cache)
    with pytest.raises(HubError, match="could not be reached"):
        offline.plan("someone/target")


def test_without_a_hub_and_a_cache_the_connection_is_blamed(tmp_path: Path) -> None:
    with pytest.raises(HubError, match="could not be reached"):
        Hub(endpoint="http://127.0.0.1:9", cache=tmp_path).plan("someone/draft", Role.DRAFT)


def test_a_hub_in_trouble_says_so(hub: Hub, server: FakeHub) -> None:
    server.status = 503
    with pytest.raises(HubError, match="503"):
        hub.plan("someone/draft", Role.DRAFT)


def test_a_wrong_name_is_told_apart_from_a_lost_connection(hub: Hub) -> None:
    with pytest.raises(HubError, match="There is no repository someone/drafft"):
        hub.plan("someone/drafft", Role.DRAFT)


def test_a_gated_model_without_a_token_names_the_steps(hub: Hub, server: FakeHub) -> None:
    server.gated.add("someone/target")
    with pytest.raises(HubError, match=r"accept its terms.*HF_TOKEN"):
        hub.plan("someone/target")


def test_a_gated_model_with_a_token_downloads(hub: Hub, server: FakeHub) -> None:
    server.gated.add("someone/target")
    server.token = "hf_right"
    allowed = Hub(hub.endpoint, hub.cache, "hf_right")
    assert (allowed.download(allowed.plan("someone/target")) / "tokenizer.json").exists()


def test_a_full_disk_is_noticed_before_the_download(hub: Hub, server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10, 9, 1_000_000))
    with pytest.raises(HubError, match=r"needs 0\.0 GB.*make room"):
        hub.download(hub.plan("someone/draft", Role.DRAFT))
    assert not server.sent


def test_a_local_folder_is_used_as_it_is(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes(DRAFT[name])
    offline = Hub(endpoint="http://127.0.0.1:9")
    assert offline.download(offline.plan(str(tmp_path), Role.DRAFT)) == tmp_path


def test_an_incomplete_local_folder_names_the_missing_file(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"):
        (tmp_path / name).write_bytes(TARGET[name])
    with pytest.raises(HubError, match="model-00002-of-00002"):
        Hub().plan(str(tmp_path))


def test_a_path_that_is_not_there_is_not_asked_of_the_hub() -> None:
    with pytest.raises(HubError, match="There is no folder /no/such/model"):
        Hub(endpoint="http://127.0.0.1:9").plan("/no/such/model")


def test_the_token_never_shows_in_a_repr() -> None:
    assert "hf_secret" not in repr(Hub(token="hf_secret"))


def test_the_environment_names_the_hub_and_the_cache(server: FakeHub, tmp_path: Path) -> None:
    program = "from backend.hub import *; h = Hub(); print(h.download(h.plan('someone/draft', Role.DRAFT)))"
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path)},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip().startswith(str(tmp_path))
