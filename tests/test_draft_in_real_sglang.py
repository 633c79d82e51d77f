"""The shipped draft in a real SGLang: the same greedy tokens and acceptance as in the embedded engine, in fp32."""

from __future__ import annotations

import pytest

from backend.bench.engine import prompt_ids
from backend.bench.questions import BUILT_IN, Question
from backend.embedded.checkpoint import load_checkpoint, parameter_shapes
from backend.embedded.engine import Engine
from backend.embedded.gguf_file import GgufFile
from backend.embedded.loading import SHIPPED_DRAFT, load_engine
from backend.embedded.model_files import cache_folder, find_gguf
from tests.conftest import SglangServer
from tests.greedy_replies import compare_replies
from tests.smollm2_folder import write_hf_folder

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load_engine(dtype="fp32", threads=1)


@pytest.fixture(scope="module")
def sglang_url(sglang_server: SglangServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    gguf = find_gguf(None, cache_folder(), lambda _message, _fraction: None)
    folder = write_hf_folder(GgufFile(gguf), tmp_path_factory.mktemp("smollm2"))
    return sglang_server(folder, SHIPPED_DRAFT, dtype="float32")


def test_every_tensor_of_the_shipped_draft_is_one_that_sglang_takes() -> None:
    checkpoint = load_checkpoint(SHIPPED_DRAFT)
    assert checkpoint.tensors.keys() - {"d2t", "t2d"} == parameter_shapes(checkpoint.config).keys()


@pytest.mark.parametrize("question", BUILT_IN[1:], ids=lambda question: question.text[:24])
def test_sglang_and_the_embedded_engine_give_the_same_tokens_and_acceptance(
    engine: Engine, sglang_url: str, question: Question, capsys: pytest.CaptureFixture[str]
) -> None:
    compare_replies(engine, sglang_url, prompt_ids(engine, question.text), capsys)
