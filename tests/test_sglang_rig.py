"""The rig itself: a real SGLang serves the chain pair with the pattern that the models were built for."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import httpx

from tests.conftest import SglangServer
from tests.sglang_cpu.chain_models import ChainModels

PROMPT = [9, 10]  # the prefill yields 11, and the first steps start there


def stream(base_url: str, tokens: int) -> list[dict[str, Any]]:
    request = {
        "input_ids": PROMPT,
        "stream": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens},
    }
    with httpx.stream("POST", f"{base_url}/generate", json=request, timeout=120) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def new_ids(chunks: list[dict[str, Any]]) -> list[list[int]]:
    """What each chunk added to the cumulative ids."""
    totals = [chunk["output_ids"] for chunk in chunks]
    return [now[len(before) :] for before, now in pairwise([[], *totals]) if len(now) > len(before)]


def test_the_draft_is_accepted_in_the_planned_pattern(chain_eagle3_server: str) -> None:
    chunks = stream(chain_eagle3_server, 26)
    ids = chunks[-1]["output_ids"]
    assert ids == list(range(11, 37))
    facts = chunks[-1]["meta_info"]
    assert [len(ids) for ids in new_ids(chunks)] == [1, 4, 1, 4, 1, 4, 1, 4, 1, 4, 1]
    assert facts["spec_verify_ct"] == 10
    assert facts["spec_correct_drafts_histogram"] == [5, 0, 0, 5]


def test_the_baseline_counts_without_verify_steps(chain_baseline_server: str) -> None:
    chunks = stream(chain_baseline_server, 12)
    assert chunks[-1]["output_ids"] == list(range(11, 23))
    facts = chunks[-1]["meta_info"]
    assert "spec_verify_ct" not in facts


def test_in_fp32_the_pair_writes_what_the_target_alone_writes(
    sglang_server: SglangServer, chain_models: ChainModels
) -> None:
    target, draft = chain_models.target, chain_models.draft
    with_draft = stream(sglang_server(target, draft, dtype="float32"), 40)[-1]["output_ids"]
    alone = stream(sglang_server(target, dtype="float32"), 40)[-1]["output_ids"]
    assert with_draft == alone == list(range(11, 51))
