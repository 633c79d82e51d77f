"""The catalogue of pairs: what is in it, how it is searched, and a pair of one's own."""

from __future__ import annotations

import pytest

from backend.catalog import (
    PairNotOfferedError,
    Speculation,
    UnknownPairError,
    find_pair,
    find_published,
    list_offered,
    load_pairs,
    load_published,
    make_pair,
)


def test_kimi_k2_is_run_as_its_card_runs_it() -> None:
    pair = find_pair("kimi-k2")
    assert (pair.target, pair.draft) == ("moonshotai/Kimi-K2-Instruct", "AQ-MedAI/Kimi-K2-Instruct-eagle3")
    assert pair.speculation == Speculation("EAGLE3", 3, 1, 4)
    assert pair.tp == 8
    assert pair.trust_remote_code
    assert pair.flags == ("--attention-backend", "flashinfer", "--mem-fraction-static", "0.9")


def test_every_pair_has_a_source_and_a_name_of_its_own() -> None:
    names = [pair.name for pair in load_pairs()]
    assert len(names) == len(set(names))
    assert all(pair.source for pair in load_pairs())


def test_every_chain_drafts_one_token_more_than_it_has_steps() -> None:
    chains = [pair.speculation for pair in list_offered() if pair.speculation.topk == 1]
    assert chains
    assert all(chain.draft_tokens == (chain.num_steps or 0) + 1 for chain in chains)


def test_only_models_with_prediction_layers_go_without_a_draft() -> None:
    without = {pair.name for pair in load_pairs() if pair.draft is None}
    assert {"deepseek-r1", "glm-4.6-fp8", "mimo-7b-rl"} <= without
    assert all(pair.speculation.algorithm == "EAGLE" for pair in load_pairs() if pair.draft is None)


def test_a_misspelt_name_is_answered_with_the_nearest_ones() -> None:
    with pytest.raises(UnknownPairError, match=r"Did you mean .*llama-3\.1-8b"):
        find_pair("lama3.1-8b")


def test_a_name_like_no_other_is_answered_without_a_guess() -> None:
    with pytest.raises(UnknownPairError) as error:
        find_pair("zzzzzz")
    assert "Did you mean" not in str(error.value)
    assert "--list-pairs" in str(error.value)


def test_a_pair_that_sglang_cannot_serve_says_why() -> None:
    with pytest.raises(PairNotOfferedError, match="TensorRT-LLM"):
        find_pair("gpt-oss-120b-nvidia")
    assert "gpt-oss-120b-nvidia" not in {pair.name for pair in list_offered()}


def test_every_published_figure_belongs_to_a_pair_and_names_its_source() -> None:
    names = {pair.name for pair in load_pairs()}
    assert all(figure.pair in names and figure.source and figure.read for figure in load_published())


def test_a_published_speedup_is_the_ratio_of_the_published_speeds() -> None:
    both = [
        (figure.speedup, figure.tokens_per_second / figure.baseline_tokens_per_second)
        for figure in load_published()
        if figure.speedup and figure.tokens_per_second and figure.baseline_tokens_per_second
    ]
    assert len(both) == 7
    assert all(said == pytest.approx(ratio, abs=0.006) for said, ratio in both)


def test_a_published_slowdown_is_kept() -> None:
    figures = find_published(find_pair("kimi-k2"))
    assert any(figure.benchmark == "FinanceQA" and figure.speedup == 0.90 for figure in figures)


def test_a_pair_of_ones_own_needs_only_its_steps_when_it_is_a_chain() -> None:
    assert make_pair("target", "draft", num_steps=5).speculation == Speculation("EAGLE3", 5, 1, 6)


def test_a_pair_of_ones_own_may_leave_all_numbers_to_sglang() -> None:
    assert make_pair("target", "draft").speculation == Speculation("EAGLE3")


@pytest.mark.parametrize(("steps", "topk", "tokens"), [(3, 1, 9), (3, 4, None), (None, 4, 8), (None, 1, None)])
def test_numbers_that_do_not_fit_together_are_refused(steps: int | None, topk: int, tokens: int | None) -> None:
    with pytest.raises(ValueError, match="draft tokens"):
        make_pair("target", "draft", steps, topk, tokens)
