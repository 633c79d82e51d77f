"""The Chat tab in a real browser, on lanes whose every token is known."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page, expect

from tests.browser import ChainApp, ask, browser, chain_app, open_app, page, wait_for_reply, wait_until

pytestmark = pytest.mark.browser

READ_TOKENS = """() => [...document.querySelectorAll('#chat-tokens .tokens .token')].map((span) => ({
  text: span.textContent, source: span.className.split(' ')[1], fill: getComputedStyle(span).backgroundColor,
  line: getComputedStyle(span).boxShadow }))"""


def number(page: Page, key: str) -> str:
    """One of the big numbers, as text."""
    return page.locator(f'#chat-numbers [data-key="{key}"] dd').inner_text()


def test_a_reply_is_coloured_by_who_produced_it_and_the_counts_agree(page: Page, chain_app: ChainApp) -> None:
    open_app(page, chain_app.url)
    page.locator("#chat-prompt textarea").fill("w9 w10")
    page.locator("#chat-prompt textarea").press("Enter")
    wait_for_reply(page)
    tokens = page.evaluate(READ_TOKENS)
    assert [token["text"].strip() for token in tokens[:4]] == ["w11", "w12", "w13", "w14"]
    sources = [token["source"] for token in tokens]
    assert sources[0] == "first"
    for name in ("first", "draft", "target"):
        shown = page.locator(f'#chat-tokens .legend [data-source="{name}"] b').inner_text()
        assert int(shown) == sources.count(name) > 0
    drafted = [token for token in tokens if token["source"] == "draft"]
    assert all(token["fill"] != "rgba(0, 0, 0, 0)" and token["line"] != "none" for token in drafted)
    plain = [token for token in tokens if token["source"] == "target"]
    assert all(token["fill"] == "rgba(0, 0, 0, 0)" and token["line"] == "none" for token in plain)
    expect(page.locator("#chat-tokens .badge")).to_have_text("labels exact")


@pytest.mark.heavy
def test_the_numbers_come_from_both_lanes(page: Page, chain_app: ChainApp) -> None:
    open_app(page, chain_app.url)
    ask(page, "w9 w10")
    wait_for_reply(page)
    assert number(page, "tau") == "2.50"
    assert number(page, "rate") == "50 %"
    eagle, baseline = float(number(page, "eagle-speed")), float(number(page, "baseline-speed"))
    speedup = float(number(page, "speedup").rstrip("×"))  # noqa: RUF001
    assert speedup == pytest.approx(eagle / baseline, rel=0.02)
    assert speedup > 1.5


@pytest.mark.heavy
def test_without_the_baseline_run_the_last_one_is_a_dated_line_and_no_speedup(page: Page, chain_app: ChainApp) -> None:
    open_app(page, chain_app.url)
    ask(page, "w9 w10")
    wait_for_reply(page)
    page.locator("#chat-settings button").first.click()
    page.locator("#chat-run-baseline input").uncheck()
    ask(page, "w9 w10")
    expect(page.locator("#chat-stop")).to_be_enabled()
    wait_for_reply(page)
    assert number(page, "speedup") == "–"  # noqa: RUF001
    assert number(page, "baseline-speed") == "–"  # noqa: RUF001
    expect(page.locator("#chat-speed .legendtext", has_text="baseline, measured")).to_be_visible()


@pytest.mark.heavy
def test_a_token_tells_its_step_and_place_to_the_keyboard(page: Page, chain_app: ChainApp) -> None:
    open_app(page, chain_app.url)
    ask(page, "w9 w10")
    wait_for_reply(page)
    assert page.locator("#chat-tokens .tokens [tabindex]").count() == 1
    page.locator("#chat-tokens .tokens [tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#chat-tokens .detail")).to_contain_text("verify step 1")
    page.keyboard.press("End")
    last = page.locator("#chat-tokens .tokens .token").count() - 1
    assert page.evaluate("document.activeElement.dataset.index") == str(last)
    assert "target" in page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.dataset.index") == "0"
    expect(page.locator("#chat-tokens .detail")).to_contain_text("prefill")
    assert page.locator("#chat-tokens .tokens [tabindex]").count() == 1


@pytest.mark.heavy
def test_rejected_drafts_are_shown_on_request_and_are_no_part_of_the_reply(page: Page, chain_app: ChainApp) -> None:
    open_app(page, chain_app.url)
    ask(page, "w9 w10")
    wait_for_reply(page)
    before = page.evaluate(READ_TOKENS)
    page.locator("#chat-tokens [data-part=ghosts]").check()
    ghosts = page.locator("#chat-tokens .tokens .ghost")
    assert ghosts.count() > 0
    assert ghosts.first.evaluate("e => getComputedStyle(e).textDecorationLine") == "line-through"
    assert page.evaluate(READ_TOKENS) == before


@pytest.mark.heavy
def test_settings_and_conversation_survive_a_reload(page: Page, chain_app: ChainApp) -> None:
    open_app(page, chain_app.url)
    page.locator("#chat-mode label", has_text="Maths").click()
    page.locator("#chat-settings button").first.click()
    page.locator("#chat-run-baseline input").uncheck()
    ask(page, "w9 w10")
    wait_for_reply(page)
    before = page.evaluate(READ_TOKENS)
    open_app(page, chain_app.url)
    expect(page.locator("#chat-mode input:checked")).to_have_value("Maths")
    expect(page.locator("#chat-window")).to_contain_text("w9 w10")
    expect(page.locator("#chat-tokens .badge")).to_have_text("labels exact")
    assert page.evaluate(READ_TOKENS) == before
    page.locator("#chat-settings button").first.click()
    expect(page.locator("#chat-run-baseline input")).not_to_be_checked()


def test_stop_stops_the_engine_and_keeps_the_text(page: Page, chain_app: ChainApp) -> None:
    chain_app.pace = 0.2
    open_app(page, chain_app.url)
    ask(page, "w9 w10")
    page.locator('#chat-tokens .token[data-index="8"]').wait_for()
    page.locator("#chat-stop").click()
    wait_for_reply(page)
    steps = chain_app.engine.steps_done
    page.wait_for_timeout(600)
    assert chain_app.engine.steps_done == steps
    assert 8 < page.locator("#chat-tokens .tokens .token").count() < 200
    expect(page.locator("#chat-notice")).to_contain_text("Stopped")


@pytest.mark.heavy
def test_two_visitors_do_not_see_each_other(page: Page, chain_app: ChainApp) -> None:
    other = page.context.browser.new_context().new_page()  # type: ignore[union-attr]
    open_app(page, chain_app.url)
    open_app(other, chain_app.url)
    ask(page, "w9 w10")
    ask(other, "w299 w300")
    wait_for_reply(page)
    wait_for_reply(other)
    assert page.evaluate(READ_TOKENS)[0]["text"].strip() == "w11"
    assert other.evaluate(READ_TOKENS)[0]["text"].strip() == "w301"
    other.context.close()


@pytest.mark.heavy
def test_closing_the_tab_stops_the_engine(page: Page, chain_app: ChainApp) -> None:
    chain_app.pace = 0.2
    open_app(page, chain_app.url)
    ask(page, "w9 w10")
    page.locator('#chat-tokens .token[data-index="4"]').wait_for()
    page.goto("about:blank")

    def is_idle() -> bool:
        before = chain_app.engine.steps_done
        page.wait_for_timeout(500)
        return chain_app.engine.steps_done == before

    wait_until(is_idle, 15)


@pytest.mark.heavy
def test_the_page_stays_where_it_is_while_text_streams(page: Page, chain_app: ChainApp) -> None:
    chain_app.pace = 0.03
    open_app(page, chain_app.url)
    ask(page, "w9 w10")
    page.locator('#chat-tokens .token[data-index="6"]').wait_for()
    read = "() => JSON.stringify([scrollY, document.querySelector('#chat-prompt').getBoundingClientRect().top])"
    before = page.evaluate(read)
    page.locator('#chat-tokens .token[data-index="150"]').wait_for()
    assert json.loads(page.evaluate(read)) == json.loads(before)


@pytest.mark.heavy
def test_a_dead_server_is_a_banner_with_the_text_kept_and_recovers_when_it_is_back(
    page: Page, chain_app: ChainApp
) -> None:
    open_app(page, chain_app.url)
    urls = chain_app.server.eagle.url, chain_app.server.baseline.url
    chain_app.server.stop()
    ask(page, "w9 w10")
    expect(page.locator("#chat-notice")).to_be_visible(timeout=20_000)
    expect(page.locator("#chat-prompt textarea")).to_have_value("w9 w10")
    expect(page.locator("#lens-banner")).to_be_visible(timeout=20_000)
    chain_app.restart(*urls)
    expect(page.locator("#lens-banner")).not_to_be_visible(timeout=20_000)
    page.locator("#chat-send").click()
    wait_for_reply(page)
    assert page.evaluate(READ_TOKENS)[0]["text"].strip() == "w11"


@pytest.mark.heavy
def test_retry_asks_again_edit_takes_the_prompt_back_and_clear_empties(page: Page, chain_app: ChainApp) -> None:
    open_app(page, chain_app.url)
    ask(page, "w9 w10")
    wait_for_reply(page)
    page.locator("#chat-retry").click()
    page.locator("#chat-stop:enabled").wait_for()
    wait_for_reply(page)
    assert page.locator("#chat-window .message.user, #chat-window .user-row").count() >= 1
    page.locator("#chat-edit").click()
    expect(page.locator("#chat-prompt textarea")).to_have_value("w9 w10")
    expect(page.locator("#chat-window")).not_to_contain_text("w9 w10")
    ask(page, "w20 w21")
    wait_for_reply(page)
    page.locator("#chat-clear").click()
    expect(page.locator("#chat-window")).not_to_contain_text("w20 w21")
    expect(page.locator("#chat-tokens .tokens .token")).to_have_count(0)


@pytest.mark.heavy
def test_on_a_phone_the_buttons_share_a_line_and_nothing_reaches_over_the_edge(page: Page, chain_app: ChainApp) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    open_app(page, chain_app.url)
    ask(page, "w9 w10")
    wait_for_reply(page)
    read = "(ids) => ids.map((id) => Math.round(document.getElementById(id).getBoundingClientRect().top))"
    assert len(set(page.evaluate(read, ["chat-send", "chat-stop"]))) == 1
    page.get_by_role("tab", name="Compare").click()
    page.locator("#compare-left .tokens").wait_for()
    assert len(set(page.evaluate(read, ["compare-go", "compare-stop"]))) == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
