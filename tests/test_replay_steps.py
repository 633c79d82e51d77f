"""Explain says of each step what was proposed, what was accepted, and where the target corrected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from backend.events import Source
from backend.playback import Step, list_steps
from tests.recordings import NUM_STEPS, WORDS, make_drafted_run, make_plain_run, name_pieces
from ui.replay_steps import Fate, StepView, show_step


def show(accepted: int) -> StepView:
    run = make_drafted_run(name_pieces(2 + accepted), [accepted])
    return show_step(list_steps(run)[1], NUM_STEPS, WORDS)


def test_a_corrected_step_shows_the_wrong_draft_and_the_token_in_its_place() -> None:
    step = show(1)
    assert [(place.fate, place.draft, place.kept) for place in step.places] == [
        (Fate.ACCEPTED, " w1", " w1"),
        (Fate.CORRECTED, " wrong", " w2"),
        (Fate.DROPPED, " worse", None),
    ]
    assert step.title == "Verify step 1"
    assert step.sentence == (
        "The draft proposed 3 tokens; the target accepted 1 and put its own token in place 2. "
        "One pass of the target, 2 tokens."
    )


def test_a_step_that_accepts_all_ends_in_a_token_nobody_drafted() -> None:
    step = show(3)
    assert [place.fate for place in step.places] == [Fate.ACCEPTED] * 3 + [Fate.OWN]
    assert (step.places[-1].draft, step.places[-1].kept) == (None, " w4")
    assert "accepted all 3 and added one of its own. One pass of the target, 4 tokens." in step.sentence


def test_a_step_that_accepts_nothing_still_yields_a_token() -> None:
    step = show(0)
    assert [place.fate for place in step.places] == [Fate.CORRECTED, Fate.DROPPED, Fate.DROPPED]
    assert "accepted none and put its own token in place 1. One pass of the target, 1 token." in step.sentence


def test_a_server_that_hides_its_drafts_is_not_spoken_for() -> None:
    step = list_steps(make_drafted_run(name_pieces(3), [1]))[1]
    shown = show_step(replace(step, proposed=None), NUM_STEPS, {})
    assert [(place.fate, place.draft) for place in shown.places] == [(Fate.ACCEPTED, " w1"), (Fate.OWN, None)]
    assert "does not tell the rejected" in shown.sentence


def test_a_drafted_id_without_a_known_text_is_shown_as_its_id() -> None:
    step = list_steps(make_drafted_run(name_pieces(2), [0]))[1]
    assert show_step(step, NUM_STEPS, {}).places[0].draft == "[900]"


def cut(step: Step) -> Step:
    return replace(step, tokens=step.tokens[:-1])


def hide(step: Step) -> Step:
    return replace(step, tokens=tuple(replace(token, source=Source.UNCERTAIN) for token in step.tokens))


@pytest.mark.parametrize(
    ("change", "fates", "said"),
    [
        (cut, [Fate.ACCEPTED, Fate.CUT, Fate.CUT], "what lies behind the end is cut"),
        (hide, [Fate.HIDDEN, Fate.HIDDEN], "is not known"),
    ],
)
def test_a_cut_step_and_a_hidden_one_say_so(change: Callable[[Step], Step], fates: list[Fate], said: str) -> None:
    step = list_steps(make_drafted_run(name_pieces(3), [1]))[1]
    shown = show_step(change(step), NUM_STEPS, WORDS)
    assert said in shown.sentence
    assert [place.fate for place in shown.places] == fates


def test_a_lane_without_a_draft_yields_one_token_per_pass() -> None:
    steps = [show_step(step, 0, {}) for step in list_steps(make_plain_run(name_pieces(3)))]
    assert [step.title for step in steps] == ["Prefill", "Step 1", "Step 2"]
    assert steps[1].sentence == "Without a draft, one pass of the target yields one token."
    assert [place.fate for place in steps[1].places] == [Fate.OWN]
