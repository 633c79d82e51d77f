"""A conversation as values."""

from __future__ import annotations

import pytest

from ui.conversation import Turn, find_turn, from_record, split_thought, to_bubbles, to_messages, to_record, with_reply


def test_earlier_thinking_is_not_sent_again() -> None:
    turns = (Turn("Why?", "<think>Hm.</think>\nBecause."),)
    messages = to_messages("Be brief.", turns, "Sure?")
    assert [message["content"] for message in messages] == ["Be brief.", "Why?", "Because.", "Sure?"]


def test_an_empty_system_prompt_is_left_out() -> None:
    assert [message["role"] for message in to_messages(" ", (), "Hi")] == ["user"]


@pytest.mark.parametrize(
    ("reply", "parts"),
    [
        ("Yes.", ("", "Yes.")),
        ("<think>Hm", ("Hm", "")),
        ("<think>Hm</think>\nYes.", ("Hm", "Yes.")),
        ("Hm</think>Yes.", ("Hm", "Yes.")),
    ],
)
def test_a_reply_is_thinking_and_an_answer(reply: str, parts: tuple[str, str]) -> None:
    assert split_thought(reply) == parts


def test_thinking_is_a_bubble_of_its_own() -> None:
    bubbles = to_bubbles((Turn("Why?", "<think>Hm</think>Because."),))
    assert bubbles[1]["metadata"] == {"title": "Thinking"}
    assert [bubble["content"] for bubble in bubbles] == ["Why?", "Hm", "Because."]


def test_a_conversation_comes_back_from_the_browser_as_it_was() -> None:
    turns = (Turn("a", "b", run="r1"), Turn("c", "", "Stopped."))
    assert from_record(to_record(turns)) == turns


@pytest.mark.parametrize("record", [None, "x", [1], [["a"]], [["a", "b", "c", 3]]])
def test_what_is_no_conversation_is_ignored(record: object) -> None:
    assert from_record(record) == ()


def test_only_the_last_reply_is_replaced() -> None:
    assert with_reply((Turn("a", "b"), Turn("c")), "d") == (Turn("a", "b"), Turn("c", "d"))


def test_a_reply_keeps_the_name_of_the_run_that_wrote_it() -> None:
    assert with_reply((Turn("a"),), "b", run="r1")[-1].run == "r1"


def test_a_bubble_leads_to_its_turn() -> None:
    turns = (Turn("a", "<think>b</think>c"), Turn("d", "", "Stopped."))
    assert [find_turn(turns, bubble) for bubble in range(6)] == [0, 0, 0, 1, 1, None]
