"""The Compare tab in a real browser, on two servers that stream what a script says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from backend import metrics
from backend.embedded_process import EngineStage
from backend.events import Run
from backend.recording import load_recording
from tests.browser import ChainApp, browser, chain_app, page, serve
from tests.chunk_server import WORDS, ChunkServer, Script
from ui.engines import Engines
from ui.page import build_page
from ui.share import ShareLink

pytestmark = pytest.mark.browser

STEPS = [0, 3] * 6
EAGLE_SCRIPT = Script.from_steps(STEPS, 3, interval=0.05)
TOTAL = sum(EAGLE_SCRIPT.sizes)
PLAIN_SCRIPT = Script.plain(TOTAL, interval=0.05)
HOSTILE = b" <img src=x onerror=\"alert('owned')\">${alert(1)}"


@dataclass
class Duel:
    """The app attached to two servers, each doing what its script says."""

    url: str
    eagle: ChunkServer
    baseline: ChunkServer


@pytest.fixture
def duel() -> Iterator[Duel]:
    vocabulary = (*WORDS[:500], HOSTILE, *WORDS[501:])
    with ExitStack() as stack:
        eagle = stack.enter_context(ChunkServer(EAGLE_SCRIPT, vocabulary=vocabulary))
        baseline = stack.enter_context(ChunkServer(PLAIN_SCRIPT, num_steps=0, vocabulary=vocabulary))
        stage = EngineStage("ready", "Attached", 1.0, eagle.url, baseline.url)
        url = stack.enter_context(serve(build_page(Engines(lambda: stage), ShareLink(print).state)))
        yield Duel(url, eagle, baseline)


def open_compare(page: Page, url: str) -> None:
    """Go to the tab and wait until both lanes are there."""
    page.goto(url)
    expect(page.locator(".chip b", has_text="ready")).to_have_count(2, timeout=60_000)
    page.get_by_role("tab", name="Compare").click()
    page.locator("#compare-left .tokens").wait_for()


def compare(page: Page, prompt: str = "w9 w10") -> None:
    """Type a prompt and start."""
    page.locator("#compare-prompt textarea").fill(prompt)
    page.locator("#compare-go").click()
    expect(page.locator("#compare-go")).to_be_disabled()


def wait_for_verdict(page: Page) -> None:
    """Wait until the comparison is over."""
    page.wait_for_function("!document.querySelector('#compare-go').disabled", timeout=60_000)
    page.locator("#compare-verdict h3:not(:empty)").wait_for(state="attached", timeout=20_000)


def number(page: Page, key: str) -> str:
    """One of the big numbers, as text."""
    return page.locator(f'#compare-numbers [data-key="{key}"] dd').inner_text()


def curves(page: Page, chart: str) -> list[dict[str, Any]]:
    """What a chart draws, as the page has it."""
    read = "(id) => document.querySelector(`#${id} .js-plotly-plot`).data.map(({ x, y, name }) => ({ x, y, name }))"
    found: list[dict[str, Any]] = page.evaluate(read, chart)
    return found


def save(page: Page, folder: Path) -> tuple[Run, ...]:
    """Save the recording through the page and read it."""
    with page.expect_download() as download:
        page.locator("#compare-save").click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return load_recording(path).runs


def test_in_fair_mode_one_lane_waits_while_the_other_streams(page: Page, duel: Duel) -> None:
    page.add_init_script(
        """window.seen = [];
        setInterval(() => {
          const totals = ['left', 'right'].map((side) =>
            document.querySelector(`#compare-${side} [data-total]`)?.dataset ?? {});
          window.seen.push(totals.map(({ total, done }) => [Number(total ?? 0), done === 'true']));
        }, 20);"""
    )
    open_compare(page, duel.url)
    compare(page)
    expect(page.locator("#compare-right .stats")).to_have_text("waits for its turn")
    wait_for_verdict(page)
    seen = page.evaluate("window.seen")
    streaming_right = [left for left, right in seen if 0 < right[0] < TOTAL]
    assert streaming_right
    assert all(left == [TOTAL, True] for left in streaming_right)


@pytest.mark.heavy
def test_in_a_race_a_lane_at_5_tokens_a_second_does_not_slow_the_other(page: Page, duel: Duel) -> None:
    duel.baseline.script = replace(PLAIN_SCRIPT, interval=0.2)
    page.add_init_script(
        """setInterval(() => {
          const [left, right] = ['left', 'right'].map((side) =>
            document.querySelector(`#compare-${side} [data-run]`)?.dataset);
          if (left?.done !== 'true' || left.total === '0' || window.rightThen !== undefined) return;
          window.rightThen = Number(right?.total ?? 0);
        }, 20);"""
    )
    open_compare(page, duel.url)
    page.locator("#compare-pace label", has_text="Race").click()
    compare(page)
    wait_for_verdict(page)
    assert page.evaluate("window.rightThen") < TOTAL / 2
    assert number(page, "speedup") == "–"  # noqa: RUF001
    expect(page.locator("#compare-verdict h3")).to_contain_text("show")
    page.locator("#compare-settings button").first.click()
    page.locator("#compare-own-devices input").check()
    compare(page)
    wait_for_verdict(page)
    assert float(number(page, "speedup").rstrip("×")) > 1  # noqa: RUF001


@pytest.mark.heavy
def test_the_photo_finish_replays_both_from_zero_at_true_pace(page: Page, duel: Duel, tmp_path: Path) -> None:
    page.add_init_script(
        """window.frames_ = [];
        new MutationObserver((changes) => {
          if (!changes.some((change) => change.target.closest?.('#compare-finish'))) return;
          const { seconds, playing } = document.querySelector('#compare-finish [data-seconds]').dataset;
          const shown = ['left', 'right'].map((side) => [
            ...document.querySelectorAll(`#compare-${side} .tokens .token:not(.later)`)].length);
          window.frames_.push({ wall: performance.now() / 1000, seconds: Number(seconds), playing, shown });
        }).observe(document, { subtree: true, attributes: true, attributeFilter: ['data-seconds'] });"""
    )
    open_compare(page, duel.url)
    compare(page)
    wait_for_verdict(page)
    page.wait_for_function("window.frames_.filter((frame) => frame.playing === 'true').length > 5", timeout=20_000)
    page.wait_for_function("window.frames_.at(-1).playing === 'false'", timeout=30_000)
    frames = [frame for frame in page.evaluate("window.frames_") if frame["playing"] == "true"]
    runs = save(page, tmp_path)
    offset = frames[0]["wall"] - frames[0]["seconds"]
    assert frames[0]["seconds"] < 0.05
    for frame in frames:
        assert frame["wall"] - frame["seconds"] == pytest.approx(offset, abs=0.05)
        arrived = [sum(round(token.arrived, 4) <= frame["seconds"] for token in run.tokens) for run in runs]
        assert frame["shown"] == arrived
    last = max(run.tokens[-1].arrived for run in runs)
    assert page.locator("#compare-finish output").inner_text() == f"{last:.1f} of {last:.1f} s"
    assert page.locator("#compare-right .token.later").count() == 0


@pytest.mark.heavy
def test_the_photo_finish_can_be_paused_moved_and_played_again(page: Page, duel: Duel) -> None:
    duel.baseline.script = replace(PLAIN_SCRIPT, interval=0.25)  # long enough to be paused on a busy machine
    open_compare(page, duel.url)
    compare(page)
    wait_for_verdict(page)
    finish = page.locator("#compare-finish")
    finish.get_by_role("button", name="Pause").click()
    bar = finish.locator("input")
    bar.evaluate("(bar) => { bar.value = 0; bar.dispatchEvent(new Event('input')); }")
    assert page.locator("#compare-left .tokens .token:not(.later)").count() == 0
    bar.evaluate("(bar) => { bar.value = bar.max; bar.dispatchEvent(new Event('input')); }")
    assert page.locator("#compare-left .tokens .token:not(.later)").count() == TOTAL
    finish.get_by_role("button", name="Replay from t = 0").click()
    finish.get_by_role("button", name="Pause").wait_for()
    assert page.locator("#compare-right .token.later").count() > 0


@pytest.mark.heavy
def test_the_charts_agree_with_the_recording_to_the_token(page: Page, duel: Duel, tmp_path: Path) -> None:
    open_compare(page, duel.url)
    compare(page)
    wait_for_verdict(page)
    eagle, baseline = save(page, tmp_path)
    for run, curve in zip((eagle, baseline), curves(page, "compare-counts"), strict=True):
        assert curve["y"] == list(range(1, TOTAL + 1))
        assert curve["x"] == pytest.approx([token.arrived for token in run.tokens])
    for run, curve in zip((eagle, baseline), curves(page, "compare-speeds"), strict=True):
        x, y = curve["x"], curve["y"]
        assert sum(y[at] * (x[at] - x[at - 1]) for at in range(1, len(x))) == pytest.approx(TOTAL - 1)
        assert x[0] == pytest.approx(run.tokens[0].arrived) and x[-1] == pytest.approx(run.tokens[-1].arrived)
    (bars,) = curves(page, "compare-accepted")
    assert bars["y"] == [6, 0, 0, 6] and bars["x"] == ["0", "1", "2", "3"]
    (strip,) = curves(page, "compare-strip")
    assert strip["y"] == STEPS and strip["x"] == list(range(1, len(STEPS) + 1))
    (places,) = curves(page, "compare-places")
    assert places["y"] == [50, 50, 50]
    speeds = [metrics.decode_speed(run.tokens) for run in (eagle, baseline)]
    speedup = metrics.speedup(*speeds)
    assert number(page, "speedup") == f"{speedup:.2f}×"  # noqa: RUF001
    expect(page.locator("#compare-speeds h3")).to_have_text(
        f"{speedup:.2f}×: {speeds[0]:.0f} vs {speeds[1]:.0f} tokens/s"  # noqa: RUF001
    )
    assert number(page, "tau") == "2.50"
    assert number(page, "outputs") == "same"
    assert [token.piece for token in eagle.tokens] == page.eval_on_selector_all(
        "#compare-left .tokens .token", "spans => spans.map((span) => span.textContent)"
    )


@pytest.mark.heavy
def test_the_first_difference_is_shown_on_both_sides_as_text(page: Page, duel: Duel) -> None:
    ids = tuple(range(10, 10 + TOTAL))
    duel.eagle.script = replace(EAGLE_SCRIPT, ids=ids)
    duel.baseline.script = replace(PLAIN_SCRIPT, ids=(*ids[:20], 500, *ids[21:]))
    open_compare(page, duel.url)
    compare(page)
    wait_for_verdict(page)
    assert number(page, "outputs") == "differ"
    marks = page.locator("#compare-verdict .excerpt mark")
    assert marks.all_inner_texts()[0].strip() == "w30"
    assert marks.nth(1).evaluate("(mark) => mark.textContent") == HOSTILE.decode()
    expect(page.locator("#compare-verdict .excerpt").first).to_contain_text("w28 w29 w30 w31")
    expect(page.locator("#compare-verdict .sentences")).to_contain_text("differ from token 21 on")
    expect(page.locator("#compare-verdict .reason")).to_contain_text("rounds differently")
    assert page.locator("#compare-verdict img").count() == 0


@pytest.mark.heavy
def test_a_slower_draft_is_said_as_plainly_as_a_faster_one(page: Page, duel: Duel) -> None:
    duel.baseline.script = replace(PLAIN_SCRIPT, interval=0.008)
    open_compare(page, duel.url)
    compare(page)
    wait_for_verdict(page)
    assert float(number(page, "speedup").rstrip("×")) < 1  # noqa: RUF001
    expect(page.locator('#compare-numbers [data-key="speedup"]')).to_have_attribute("data-tone", "slower")
    expect(page.locator('#compare-numbers [data-key="speedup"] dt')).to_have_text("slower with the draft")
    expect(page.locator('#compare-numbers [data-key="saved"] dt')).to_have_text("lost on this reply")
    expect(page.locator("#compare-verdict .verdict")).to_have_attribute("data-tone", "slower")


@pytest.mark.heavy
def test_what_was_measured_is_told_and_warned_of(page: Page, duel: Duel) -> None:
    duel.eagle.facts = {"launch_command": "SGLANG_SIMULATE_ACC_LEN=3 serve", "attention_backend": "triton"}
    duel.baseline.facts = {"dtype": "float16", "attention_backend": "fa3"}
    open_compare(page, duel.url)
    compare(page)
    wait_for_verdict(page)
    warnings = page.locator("#compare-verdict .warnings")
    expect(warnings).to_contain_text("simulates its acceptance")
    expect(warnings).to_contain_text("Dtype: EAGLE-3 bfloat16, Baseline float16")
    expect(warnings).not_to_contain_text("triton")
    page.locator("#compare-verdict summary").click()
    expect(page.locator("#compare-verdict .notes")).to_contain_text("Attention: EAGLE-3 triton, Baseline fa3")
    table = page.locator("#compare-verdict table")
    for text in ("0.5.23", "SHA-256", "greedy, at most 256 tokens", "GB", "prompt tokens from cache"):
        expect(table).to_contain_text(text)


@pytest.mark.heavy
def test_trials_give_a_median_and_a_range(page: Page, duel: Duel) -> None:
    duel.eagle.script, duel.baseline.script = (
        replace(script, interval=0.01) for script in (EAGLE_SCRIPT, PLAIN_SCRIPT)
    )
    open_compare(page, duel.url)
    page.locator("#compare-settings button").first.click()
    page.locator("#compare-trials input[type=number]").fill("3")
    page.locator("#compare-trials input[type=number]").press("Tab")
    compare(page)
    wait_for_verdict(page)
    expect(page.locator('#compare-numbers [data-key="speedup"] dt')).to_contain_text("in 3 trials")
    expect(page.locator("#compare-verdict .sentences")).to_contain_text("median of 3 trials")


@pytest.mark.heavy
def test_charts_made_while_the_tab_was_hidden_have_their_size_and_were_not_remounted(page: Page, duel: Duel) -> None:
    open_compare(page, duel.url)
    page.evaluate("document.querySelector('#compare-counts .plot').mark = 'mine'")
    compare(page)
    page.get_by_role("tab", name="Chat").click()
    wait_for_verdict(page)
    page.get_by_role("tab", name="Compare").click()
    page.wait_for_function(
        "(document.querySelector('#compare-counts .main-svg')?.getBoundingClientRect().height ?? 0) > 150"
    )
    assert len(curves(page, "compare-counts")) == 2
    assert page.evaluate("document.querySelector('#compare-counts .plot').mark") == "mine"


@pytest.mark.heavy
def test_stop_stops_both_engines_and_keeps_the_text(page: Page, duel: Duel) -> None:
    duel.eagle.script = replace(EAGLE_SCRIPT, interval=1.0)
    open_compare(page, duel.url)
    compare(page)
    page.locator('#compare-left .token[data-index="6"]').wait_for(timeout=30_000)
    page.locator("#compare-stop").click()
    expect(page.locator("#compare-go")).to_be_enabled(timeout=15_000)
    expect(page.locator("#compare-progress")).to_contain_text("Stopped")
    assert len(duel.eagle.aborted) == 1
    assert 6 < page.locator("#compare-left .tokens .token").count() < TOTAL
    assert number(page, "speedup") == "–"  # noqa: RUF001


@pytest.mark.heavy
def test_a_refusal_leaves_the_buttons_and_what_is_shown_as_they_were(page: Page, duel: Duel) -> None:
    open_compare(page, duel.url)
    page.locator("#compare-go").click()
    expect(page.locator("#compare-notice")).to_contain_text("Write a prompt first")
    page.wait_for_timeout(1500)
    expect(page.locator("#compare-go")).to_have_text("Compare")
    expect(page.locator("#compare-stop")).to_have_text("Stop")
    expect(page.locator("#compare-left")).to_contain_text("EAGLE-3")


@pytest.mark.heavy
def test_an_example_fills_in_the_prompt_its_mode_and_its_limit(page: Page, duel: Duel) -> None:
    open_compare(page, duel.url)
    page.locator("#compare-presets").get_by_text("Small function").click()
    expect(page.locator("#compare-prompt textarea")).to_have_value(
        "Write a Python function that returns the n-th Fibonacci number, with a docstring and an example."
    )
    expect(page.locator("#compare-mode input:checked")).to_have_value("Code")
    expect(page.locator("#compare-progress")).to_contain_text("its own names")


@pytest.mark.heavy
def test_a_lane_that_dies_is_named_and_the_prompt_is_kept(page: Page, duel: Duel) -> None:
    duel.baseline.script = replace(PLAIN_SCRIPT, fault="break", fault_after=3)
    open_compare(page, duel.url)
    compare(page, "keep me")
    expect(page.locator("#compare-notice")).to_contain_text("Baseline", timeout=30_000)
    expect(page.locator("#compare-go")).to_be_enabled()
    expect(page.locator("#compare-prompt textarea")).to_have_value("keep me")


def test_an_engine_with_both_lanes_gives_the_same_tokens_and_exact_labels(page: Page, chain_app: ChainApp) -> None:
    open_compare(page, chain_app.url)
    compare(page)
    wait_for_verdict(page)
    assert number(page, "outputs") == "same"
    expect(page.locator('#compare-numbers [data-key="outputs"] dt')).to_contain_text("labels exact")
    assert float(number(page, "speedup").rstrip("×")) > 1.5  # noqa: RUF001
    assert len(curves(page, "compare-counts")) == 2


@pytest.mark.heavy
def test_closing_the_tab_stops_the_engines(page: Page, duel: Duel) -> None:
    duel.eagle.script = replace(EAGLE_SCRIPT, interval=0.5)
    open_compare(page, duel.url)
    compare(page)
    page.locator('#compare-left .token[data-index="2"]').wait_for(timeout=40_000)
    page.goto("about:blank")
    for _ in range(50):
        if duel.eagle.aborted:
            break
        page.wait_for_timeout(200)
    assert len(duel.eagle.aborted) == 1
    assert len(duel.baseline.asked("/v1/completions")) == 1  # its warm-up
