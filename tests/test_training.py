"""The trainer unrolls the head as the engine drafts, learns, resumes, and exports what the engine loads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from backend.embedded.checkpoint import load_checkpoint
from backend.embedded.draft import Draft
from backend.embedded.engine import Engine, Names
from backend.embedded.target import Target, build_target
from backend.embedded.training.corpus import Conversation, Corpus
from backend.embedded.training.head import TrainableHead
from backend.embedded.training.taps import list_shards, shard_path, tap, write_all
from backend.embedded.training.train import Recipe, Trainer, choose_draft_vocab, hold_out, invert_draft_vocab, new_head
from tests.tiny_pair import tiny_checkpoint, tiny_config, tiny_text, tiny_weights

VOCAB = 64


@pytest.fixture(scope="module")
def target() -> Target:
    return build_target(tiny_weights(tiny_config(VOCAB)), "fp32")


def greedy_reply(target: Target, prompt: list[int], length: int) -> list[int]:
    with torch.inference_mode():
        cache, ids = target.new_cache(), list(prompt)
        hidden = target.forward(torch.tensor(ids), 0, cache)
        while len(ids) < length:
            ids.append(int(target.logits(hidden.last[-1:]).argmax()))
            hidden = target.forward(torch.tensor(ids[-1:]), len(ids) - 1, cache)
    return ids


@pytest.fixture(scope="module")
def corpus(target: Target) -> Corpus:
    prompts = [[seed % VOCAB, (seed * 7) % VOCAB, 5] for seed in range(40)]
    replies = [np.array(greedy_reply(target, prompt, 30), np.uint16) for prompt in prompts]
    return Corpus.of([Conversation(ids, 3, 0.0) for ids in replies])


def test_the_unrolled_head_drafts_what_the_engine_drafts(target: Target, corpus: Corpus) -> None:
    """On the target's own greedy text, step j of the unrolling at row t is the engine's j-th draft after t + 1."""
    checkpoint = tiny_checkpoint(target.config)
    head = TrainableHead(checkpoint.config, target.embedding, invert_draft_vocab(checkpoint.target_ids, VOCAB))
    head.load_state_dict(dict(checkpoint.tensors), strict=True)
    draft = Draft(checkpoint, "fp32", target.config.context_length)
    engine = Engine(target, draft, tiny_text(VOCAB), Names("t", "d"), num_steps=1)
    conversation = corpus[0]
    with torch.no_grad():
        unrolled = head.unroll([tap(target, conversation)], 1)[0]
    generation = engine.start([int(token) for token in conversation.ids[:3]], num_steps=1)
    generation.step()
    agreed, place = [], 0
    while place < 20:
        step = generation.step()
        agreed.append((place, step.accepted == 1))
        place += len(step.ids)
    by_row = dict(zip(unrolled.rows.tolist(), unrolled.correct.tolist(), strict=True))
    # Active rows begin two before the answer's first token, which the prefill itself yields.
    offset = 1
    assert [right for _, right in agreed] == [by_row[place + offset] for place, _ in agreed]
    assert len(agreed) > 10


def test_training_learns_and_its_export_drafts_in_the_engine(target: Target, corpus: Corpus, tmp_path: Path) -> None:
    taps = tmp_path / "taps"
    assert len(list(write_all(target, corpus, taps))) == len(list_shards(taps)) == 2
    ids = choose_draft_vocab(corpus, 32, VOCAB)
    head = new_head(target.config, target.embedding, target.head.tensors()["weight"], ids)
    recipe = Recipe(updates=150, rows_per_update=200, held_out_shards=1, warmup_updates=2, adam_lr=3e-3, muon_lr=0.03)
    trainer = Trainer(head, ids, taps, tmp_path / "run", recipe)
    last = trainer.run(evaluate_every=50)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert lines[0]["held_out"]
    assert last.loss < 0.8 * lines[0]["loss"]

    draft = Draft(load_checkpoint(tmp_path / "run" / "last"), "fp32", target.config.context_length)
    engine = Engine(target, draft, tiny_text(VOCAB), Names("t", "d"), num_steps=3)
    accepted = 0
    for conversation in corpus[:8]:
        generation = engine.start(conversation.ids[:3].tolist(), num_steps=3)
        accepted += sum(generation.step().accepted for _ in range(10))
    assert accepted > 0

    resumed = Trainer(head, ids, taps, tmp_path / "run", recipe)
    assert resumed.resume()


def test_a_quarter_of_the_shards_at_most_is_held_out_and_something_is_left() -> None:
    shards = [shard_path(Path(), number) for number in range(40)]
    assert hold_out(shards, 3) == shards[:3]
    assert hold_out(shards[:8], 3) == shards[:2]
    assert hold_out(shards[:2], 3) == shards[:1]
    with pytest.raises(ValueError, match="64 conversations"):
        hold_out(shards[:1], 3)


def test_the_corpus_survives_its_file(corpus: Corpus, tmp_path: Path) -> None:
    corpus.save(tmp_path / "corpus.npz")
    read = Corpus.load(tmp_path / "corpus.npz")
    assert len(read) == len(corpus)
    assert read.num_tokens == corpus.num_tokens
    assert read[7].ids.tolist() == corpus[7].ids.tolist()
    assert read[7].answer_start == 3
