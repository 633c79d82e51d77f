"""The Replay tab in a real browser: save, reload, play at the recorded times, step, scrub, export, refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gradio as gr
import pytest
from playwright.sync_api import Browser, Page, expect

from backend.recording import MAX_BYTES, load_recording, save_recording
from tests.browser import ChainApp, ask, browser, chain_app, open_app, page, serve, wait_for_reply, wait_until
from tests.recordings import make_pair, name_pieces, only_drafted
from ui.replay_tab import build_replay_tab, list_examples

pytestmark = pytest.mark.browser

ACCEPTED = [1, 3, 0, 2]
PAIR = make_pair(name_pieces(11), ACCEPTED, pace=0.25)
HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "${document.title='owned'}",
    "{{value}}",
    "<!--",
    " last",
)
READ_SHOWN = (
    """(id) => [...document.querySelectorAll(`#${id} .token[data-index]:not(.later)`)].map((e) => e.textContent)"""
)
# Waits for the end of a playback; [seconds of the run, milliseconds of the wall clock, tokens shown] frame by frame.
WATCH = """async (id) => {
  const player = document.querySelector('[data-recording]');
  const samples = [];
  while (player.dataset.playing === 'true') {
    const panel = document.querySelector(`#${id}[data-run], #${id} [data-run]`);
    samples.push([Number(player.dataset.seconds), performance.now(), Number(panel.dataset.visible)]);
    await new Promise(requestAnimationFrame);
  }
  return samples;
}"""


@pytest.fixture
def replay_url() -> Iterator[str]:
    """A page with nothing but the Replay tab."""
    with gr.Blocks() as blocks:
        build_replay_tab(blocks)
    with serve(blocks) as url:
        yield url


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "known.json"
    save_recording(PAIR, path)
    return path


def recording_name(page: Page) -> str | None:
    return page.locator("[data-recording]").get_attribute("data-recording")


def open_tab(page: Page, url: str) -> None:
    page.goto(url)
    page.locator("[data-recording]").wait_for(timeout=60_000)


def upload(page: Page, path: Path) -> None:
    with page.expect_file_chooser() as chosen:
        page.locator("#replay-upload").click()
    chosen.value.set_files(path)


def open_file(page: Page, url: str, path: Path) -> None:
    open_tab(page, url)
    before = recording_name(page)
    upload(page, path)
    wait_until(lambda: recording_name(page) != before)
    page.locator('#replay-left [data-done="true"]').wait_for()


def part(page: Page, name: str) -> str:
    return page.locator(f".replay [data-part={name}]").inner_text()


@pytest.mark.heavy
def test_the_tab_is_never_empty(page: Page, replay_url: str) -> None:
    open_tab(page, replay_url)
    first = load_recording(next(iter(list_examples().values())))
    wait_until(lambda: page.evaluate(READ_SHOWN, "replay-left") == [token.piece for token in first.runs[0].tokens])
    assert page.evaluate(READ_SHOWN, "replay-right") == [token.piece for token in first.runs[1].tokens]
    assert part(page, "title") == first.title
    assert page.locator("#replay-player svg .curve").count() == 2


def test_stepping_shows_what_was_proposed_accepted_and_corrected(page: Page, replay_url: str, saved: Path) -> None:
    open_file(page, replay_url, saved)
    forward = page.locator("[data-part=forward]")
    shown = 1
    forward.click()
    assert part(page, "name") == "Prefill"
    for step, accepted in enumerate(ACCEPTED, start=1):
        forward.click()
        shown += accepted + 1
        assert part(page, "name") == f"Verify step {step}"
        assert page.evaluate(READ_SHOWN, "replay-left") == name_pieces(shown)
        # The other lane wrote one token in each of these steps.
        assert page.evaluate(READ_SHOWN, "replay-right") == name_pieces(step + 1)
        assert page.locator("[data-part=drafts] .accepted").count() == accepted
        corrected = page.locator("[data-part=drafts] .corrected")
        assert corrected.all_inner_texts() == ([] if accepted == 3 else [" wrong"])
        assert page.locator("[data-part=kept] td").all_inner_texts()[accepted] == f" w{shown - 1}"
    expect(forward).to_be_disabled()
    page.locator("[data-part=back]").click()
    assert part(page, "name") == "Verify step 3"
    assert page.evaluate(READ_SHOWN, "replay-left") == name_pieces(8)


@pytest.mark.heavy
def test_the_baseline_can_be_stepped_too(page: Page, replay_url: str, saved: Path) -> None:
    open_file(page, replay_url, saved)
    page.locator("[data-part=lane]").select_option("Baseline")
    for _ in range(3):
        page.locator("[data-part=forward]").click()
    assert part(page, "name") == "Step 2"
    assert "one pass of the target yields one token" in part(page, "sentence")
    assert page.evaluate(READ_SHOWN, "replay-right") == name_pieces(3)


@pytest.mark.heavy
@pytest.mark.parametrize("rate", [1, 0.5])
def test_every_token_appears_at_its_recorded_time(page: Page, replay_url: str, saved: Path, rate: float) -> None:
    open_file(page, replay_url, saved)
    page.locator("[data-part=pace]").select_option(str(rate))
    page.locator("[data-part=toggle]").click()
    samples = page.evaluate(WATCH, "replay-left")
    arrivals = [token.arrived for token in PAIR.runs[0].tokens]
    for seconds, _, shown in samples:
        assert shown == sum(arrived <= seconds for arrived in arrivals)
    (first, begun, _), (last, ended, _) = samples[0], samples[-1]
    assert (last - first) == pytest.approx((ended - begun) / 1000 * rate, abs=0.1)
    assert last > 2
    assert page.evaluate(READ_SHOWN, "replay-left") == name_pieces(11)


@pytest.mark.heavy
def test_rejected_drafts_are_shown_no_earlier_than_their_step(page: Page, replay_url: str, saved: Path) -> None:
    open_file(page, replay_url, saved)
    page.locator("[data-part=forward]").click()
    page.locator("#replay-left [data-part=ghosts]").check()
    ghosts = page.locator("#replay-left .ghost:not(.later)")
    expect(ghosts).to_have_count(0)
    page.locator("[data-part=forward]").click()
    assert ghosts.all_inner_texts() == [" wrong", " worse"]
    page.locator("[data-part=back]").click()
    expect(ghosts).to_have_count(0)


@pytest.mark.heavy
def test_pause_holds_the_moment_and_play_goes_on_from_it(page: Page, replay_url: str, saved: Path) -> None:
    open_file(page, replay_url, saved)
    page.locator("[data-part=pace]").select_option("0.1")
    toggle = page.locator("[data-part=toggle]")
    toggle.click()
    page.wait_for_timeout(300)
    toggle.click()
    player = page.locator("[data-recording]")
    held = player.get_attribute("data-seconds")
    page.wait_for_timeout(300)
    assert player.get_attribute("data-seconds") == held
    assert 0 < float(held or 0) < 2
    toggle.click()
    wait_until(lambda: float(player.get_attribute("data-seconds") or 0) > float(held or 0))
    assert toggle.inner_text() == "Pause"


@pytest.mark.heavy
def test_scrubbing_shows_both_lanes_as_they_were(page: Page, replay_url: str, saved: Path) -> None:
    open_file(page, replay_url, saved)
    for seconds in (1.05, 0.3, 2.75):
        page.locator("[data-part=bar]").evaluate(
            "(bar, to) => { bar.value = to; bar.dispatchEvent(new Event('input')); }", seconds
        )
        for panel, run in zip(("replay-left", "replay-right"), PAIR.runs, strict=True):
            arrived = [token.piece for token in run.tokens if token.arrived <= seconds]
            assert page.evaluate(READ_SHOWN, panel) == arrived


@pytest.mark.heavy
def test_one_run_is_shown_alone(page: Page, replay_url: str, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    save_recording(only_drafted(PAIR), path)
    open_file(page, replay_url, path)
    expect(page.locator("#replay-right")).to_be_hidden()
    expect(page.locator("[data-part=lane-choice]")).to_be_hidden()
    page.locator("[data-part=forward]").click()
    assert page.evaluate(READ_SHOWN, "replay-left") == [" w0"]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"format": "eaglelens-rec', "not valid JSON"),
        (b'{"log": {"version": "1.2"}}', "not an EagleLens recording"),
        (b'{"format": "eaglelens-recording", "version": 99}', "newer than this EagleLens"),
        (None, "recordings have at most"),
    ],
)
def test_a_file_that_cannot_be_shown_says_why_and_leaves_the_tab_as_it_is(
    page: Page, replay_url: str, tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "bad.json"
    with path.open("wb") as file:
        if content is None:
            file.truncate(MAX_BYTES + 1)
        else:
            file.write(content)
    open_tab(page, replay_url)
    before = recording_name(page)
    upload(page, path)
    expect(page.locator("#replay-notice")).to_contain_text(said, timeout=60_000)
    assert recording_name(page) == before


@pytest.mark.heavy
def test_a_chat_is_saved_and_opened_again_after_a_reload(page: Page, chain_app: ChainApp, tmp_path: Path) -> None:
    open_app(page, chain_app.url)
    ask(page, "w9 w10")
    wait_for_reply(page)
    page.locator("#chat-save:not([disabled])").wait_for()
    with page.expect_download() as download:
        page.locator("#chat-save").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    runs = load_recording(path).runs
    assert [run.lane for run in runs] == ["EAGLE-3", "Baseline"]
    open_app(page, chain_app.url)
    page.get_by_role("tab", name="Replay").click()
    page.locator("[data-recording]").wait_for()
    before = recording_name(page)
    upload(page, path)
    wait_until(lambda: recording_name(page) != before)
    wait_until(lambda: page.evaluate(READ_SHOWN, "replay-left") == [token.piece for token in runs[0].tokens])
    assert part(page, "title") == "w9 w10"
    # The draft of this engine gets the number behind each multiple of five wrong.
    for _ in range(3):
        page.locator("[data-part=forward]").click()
    assert page.locator("[data-part=drafts] .corrected").all_inner_texts() == [" w15"]
    assert page.locator("[data-part=kept] .corrected").all_inner_texts() == [" w16"]


def test_an_export_plays_from_disk_without_network_whatever_text_it_holds(
    page: Page, browser: Browser, replay_url: str, tmp_path: Path
) -> None:
    pair = make_pair(HOSTILE, [2, 1], pace=0.25, title=HOSTILE[0])
    path = tmp_path / "hostile.json"
    save_recording(pair, path)
    open_file(page, replay_url, path)
    page.locator("#replay-export:not([disabled])").wait_for()
    with page.expect_download() as download:
        page.locator("#replay-export").click()
    exported = tmp_path / "export.html"
    download.value.save_as(exported)
    assert "owned" not in page.title().replace(HOSTILE[0], "")

    context = browser.new_context(offline=True)
    alone = context.new_page()
    faults: list[str] = []
    alone.on("pageerror", lambda error: faults.append(str(error)))
    alone.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    alone.on("request", lambda request: faults.append(request.url) if request.url != exported.as_uri() else None)
    alone.goto(exported.as_uri())
    assert alone.title() == HOSTILE[0]
    assert alone.evaluate(READ_SHOWN, "left") == list(HOSTILE)
    assert alone.locator("img, iframe").count() == 0
    for _ in range(2):
        alone.locator("[data-part=forward]").click()
    assert alone.evaluate(READ_SHOWN, "left") == list(HOSTILE[:4])
    assert alone.locator("[data-part=kept] .word").all_inner_texts() == list(HOSTILE[1:4])
    alone.locator("[data-part=pace]").select_option("1")
    alone.locator("[data-part=toggle]").click()
    samples = alone.evaluate(WATCH, "right")
    arrivals = [token.arrived for token in pair.runs[1].tokens]
    assert all(shown == sum(arrived <= seconds for arrived in arrivals) for seconds, _, shown in samples)
    assert alone.evaluate(READ_SHOWN, "right") == list(HOSTILE)
    assert faults == []
    context.close()
