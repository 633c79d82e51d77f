"""The shipped pair on real prompts: a draft changes no greedy token, whatever the dtype; and it is worth having."""

from __future__ import annotations

import pytest

from backend.bench.engine import acceptance_length, measure
from backend.bench.questions import BUILT_IN
from backend.embedded.config import SMOLLM2_135M
from backend.embedded.gguf_file import GgufFile
from backend.embedded.linear import Dtype
from backend.embedded.loading import load_engine
from backend.embedded.model_files import cache_folder, find_gguf
from backend.embedded.tuning import MOST_TUNED_STEPS, runnable_dtypes

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

TOKENS: dict[Dtype, int] = {"w8a8": 96, "int4": 96, "int8": 96, "bf16": 24}  # CPUs without bf16 units emulate it slowly
LEAST_ACCEPTANCE_LENGTH = 1.6  # of the shipped draft on these six prompts; a broken draft gives 1.0


@pytest.mark.parametrize("dtype", ["w8a8", "int4", "int8", "bf16"])
def test_greedy_tokens_with_the_draft_are_those_without_it(dtype: Dtype) -> None:
    engine = load_engine(dtype=dtype, threads=1, num_steps=3)
    assert engine.bit_exact, "this CPU's kernels do not treat a row the same whatever stands beside it"
    pairs = measure(engine, BUILT_IN, TOKENS[dtype])
    assert [pair.set_name for pair in pairs if not pair.same] == []
    length = acceptance_length(pairs)
    assert length is not None
    assert length > LEAST_ACCEPTANCE_LENGTH


def test_the_built_in_targets_shape_is_known_before_its_file_is_read() -> None:
    assert GgufFile(find_gguf(None, cache_folder(), lambda _message, _fraction: None)).read_config() == SMOLLM2_135M


def test_dtype_threads_and_drafts_a_step_are_measured_where_none_is_given() -> None:
    engine = load_engine()
    assert engine.dtype in runnable_dtypes(SMOLLM2_135M)
    assert engine.threads >= 1
    assert 1 <= engine.num_steps <= MOST_TUNED_STEPS
