"""The writer leaves whole conversations in the template's form, with the taps that a second pass would compute."""

from __future__ import annotations

import itertools

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from backend.embedded.target import build_target
from backend.embedded.text import Text
from backend.embedded.training.corpus import Conversation
from backend.embedded.training.generate import Frame, Writer
from backend.embedded.training.taps import TappedConversation, tap
from tests.tiny_pair import tiny_config, tiny_weights

VOCAB = 64
TEMPLATE = "{% for m in messages %}w1 {{ m['content'] }} w2 {% endfor %}{% if add_generation_prompt %}w3{% endif %}"

Written = list[tuple[Conversation, TappedConversation]]


@pytest.fixture(scope="module")
def text() -> Text:
    tokenizer = Tokenizer(models.WordLevel({f"w{index}": index for index in range(VOCAB)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Text(tokenizer, TEMPLATE, (2,), {})


@pytest.fixture(scope="module")
def written(text: Text) -> Written:
    target = build_target(tiny_weights(tiny_config(VOCAB, context=512), head_scale=0.3), "fp32")
    writer = Writer(target, text, ["w10 w11", "w12"], rows=6, seed=3)
    return list(itertools.islice(writer.write(), 12))


def test_the_frame_is_cut_from_the_template(text: Text) -> None:
    assert Frame.of(text) == Frame(opening=(1,), turn=(2, 3), end_id=2)


def test_every_conversation_has_a_question_a_turn_and_an_answer(written: Written) -> None:
    for conversation, _ in written:
        ids, start = conversation.ids.tolist(), conversation.answer_start
        assert ids[0] == 1
        assert ids[1] in (10, 12)
        assert ids[start - 2 : start] == [2, 3]
        assert len(ids) > start
        assert 2 not in ids[start:-1]


def test_taps_kept_while_writing_are_those_of_a_second_pass(written: Written) -> None:
    target = build_target(tiny_weights(tiny_config(VOCAB, context=512), head_scale=0.3), "fp32")
    for conversation, kept in written[:4]:
        again = tap(target, conversation)
        torch.testing.assert_close(kept.taps.float(), again.taps.float(), rtol=0.02, atol=0.02)
        first = conversation.answer_start - 1
        torch.testing.assert_close(
            kept.top_probabilities[first:], again.top_probabilities[first:], rtol=1e-3, atol=1e-4
        )
        assert kept.top_probabilities[:first].sum() == 0


def test_greedy_answers_follow_the_argmax(written: Written) -> None:
    greedy = [(conversation, kept) for conversation, kept in written if conversation.temperature == 0]
    assert greedy
    for conversation, kept in greedy:
        answer = conversation.ids[conversation.answer_start + 1 :].tolist()
        assert kept.top_ids[conversation.answer_start : -1, 0].tolist() == answer
