"""Random small pairs of each family, in a real SGLang and in the embedded engine: the same tokens and acceptance."""

from __future__ import annotations

import pytest

from backend.embedded.loading import load_engine
from tests.conftest import SglangServer
from tests.greedy_replies import compare_replies
from tests.tiny_folders import Family, make_target, write_draft, write_target

PROMPTS = ([1, 2, 3, 4], [9, 8, 7, 30, 31], [200, 17, 60], [5, 5, 6, 90, 91, 92, 12])
SPREAD = 0.05  # tokens repeat often enough for the draft to be right at times

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]


@pytest.mark.parametrize("family", ["llama-tied", "llama-stretched", "qwen3"])
def test_a_small_pair_gives_the_same_tokens_and_acceptance_as_in_sglang(
    sglang_server: SglangServer,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    family: Family,
) -> None:
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp(family)
    model = make_target(family, spread=SPREAD)
    target, draft = write_target(folder / "target", model), write_draft(folder / "draft", model)
    engine = load_engine(target=target, draft=draft, dtype="fp32", threads=1)
    url = sglang_server(target, draft, dtype="float32")
    replies = [compare_replies(engine, url, prompt, capsys) for prompt in PROMPTS]
    steps = [sum(counts) for counts in zip(*(reply.histogram for reply in replies), strict=True)]
    with capsys.disabled():
        print(f"\n{family}: histogram {steps}")
    assert steps[0] and sum(steps[1:]), "a draft that is always wrong, or always right, would prove nothing"
