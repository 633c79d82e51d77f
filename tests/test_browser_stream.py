"""The token view under load and under hostile text, in a real browser, fed by a scripted stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import gradio as gr
import pytest
from playwright.sync_api import Page, expect

from backend.events import (
    Chunk,
    Counters,
    Event,
    Exactness,
    Request,
    Run,
    RunEnded,
    RunStarted,
    Sampling,
    Source,
    Token,
    TokensArrived,
)
from tests.browser import browser, page, serve
from ui.charts import LensChart, SpeedLine, accepted_chart, speed_chart
from ui.numbers import Numbers, speed_number, speedup_number
from ui.progress import Progress, follow
from ui.token_stream import StreamView, TokenStream

pytestmark = pytest.mark.browser

HOSTILE = (
    "${document.title='owned'}",
    "<img src=x onerror=\"document.title='owned'\">",
    "<script>document.title='owned'</script>",
    "`${1+1}`",
    "{{value}}",
    "{{#each value}}",
    "</div></section>",
    "&lt;b&gt;",
    "\\n",
    "\n",
)


async def write_tokens(pieces: Sequence[str], rate: float, sent: list[float]) -> AsyncIterator[Event]:
    """Stream `pieces`, four to a step, at `rate` tokens per second; the time of the last one goes to `sent`."""
    request = Request(uuid4().hex, (1,), Sampling())
    begun = time.time()
    yield RunStarted("EAGLE-3", request, begun, 3)
    tokens: list[Token] = []
    chunks: list[Chunk] = []
    while len(tokens) < len(pieces):
        first = len(tokens)
        size = 1 if first == 0 else min(4, len(pieces) - first)
        await asyncio.sleep(max(0.0, begun + (first + size) / rate - time.time()))
        now = time.time() - begun
        new = []
        for place in range(size):
            source = Source.FIRST if first == 0 else Source.TARGET if place == size - 1 else Source.DRAFT
            index = first + place
            new.append(Token(index, index, pieces[index], source, len(chunks), place, now))
        chunks.append(Chunk(now, tuple(token.id for token in new), "".join(token.piece for token in new)))
        tokens += new
        yield TokensArrived(first, tuple(new), chunks[-1])
    sent.append(time.time())
    counters = Counters(len(chunks) - 1, None, None, len(tokens))
    run = Run("EAGLE-3", request, begun, tuple(chunks), tuple(tokens), counters, Exactness.EXACT, 3, "length")
    yield RunEnded(run)


@dataclass
class Stage:
    """A page with one panel. `pieces` and `rate` are what the next press of Go streams."""

    url: str = ""
    pieces: Sequence[str] = ()
    rate: float = 300.0
    sent: list[float] = field(default_factory=list)
    views: dict[str, StreamView] = field(default_factory=dict)
    asked_again: int = 0

    def whole(self, run: str) -> StreamView | None:
        self.asked_again += 1
        return self.views.get(run)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()

    def look(progress: Progress) -> StreamView:
        name = progress.started.request.rid if progress.started else ""
        view = StreamView(
            name, "EAGLE-3", "", progress.tokens, progress.chunks, Exactness.EXACT, progress.run is not None
        )
        made.views[name] = view
        return view

    async def go() -> AsyncIterator[tuple[object, ...]]:
        async for progress in follow(write_tokens(made.pieces, made.rate, made.sent)):
            times = [token.arrived for token in progress.tokens[:: max(1, len(progress.tokens) // 200)]]
            line = SpeedLine("EAGLE-3", times, [made.rate] * len(times), made.rate)
            numbers = [speedup_number(None, "speedup"), speed_number("eagle-speed", "EAGLE-3", made.rate)]
            yield look(progress), numbers, speed_chart(line, None), accepted_chart([1, 2, 3])

    async def jump() -> AsyncIterator[StreamView]:
        """Two updates of a run that goes on, so far apart that the second does not reach back to the first."""
        whole = [Token(index, index, piece, Source.TARGET, index, 0, 0.0) for index, piece in enumerate(made.pieces)]
        for known in (50, len(whole)):
            view = StreamView("jump", "EAGLE-3", "", whole[:known], (), Exactness.PROVISIONAL, False)
            made.views["jump"] = view
            yield view
            await asyncio.sleep(0.5)

    with gr.Blocks() as blocks:
        start = gr.Button("Go", elem_id="go")
        leap = gr.Button("Jump", elem_id="jump")
        tokens = TokenStream(whole=made.whole, elem_id="tokens")
        numbers = Numbers()
        chart, bars = LensChart(), LensChart()
        leap.click(jump, None, tokens, show_progress="hidden")
        start.click(go, None, [tokens, numbers, chart, bars], show_progress="hidden")
    with serve(blocks) as url:
        made.url = url
        yield made


def play(page: Page, stage: Stage) -> None:
    """Stream the stage's pieces and wait for the last one."""
    page.goto(stage.url)
    page.locator("#tokens .tokens").wait_for(timeout=60_000)
    page.locator("#go").click()
    done = f'#tokens [data-done="true"][data-total="{len(stage.pieces)}"]'
    page.locator(done).wait_for(timeout=1000 * (30 + len(stage.pieces) / stage.rate))


def test_model_text_is_shown_as_it_is_and_never_runs(page: Page, stage: Stage) -> None:
    stage.pieces = [piece for text in HOSTILE for piece in (text, " then ")]
    play(page, stage)
    shown = page.eval_on_selector_all("#tokens .tokens .token", "spans => spans.map((span) => span.textContent)")
    assert shown == list(stage.pieces)
    assert page.locator("#tokens .tokens img, #tokens .tokens script").count() == 0
    assert page.title() != "owned"


def test_a_page_that_missed_updates_asks_for_them_again(page: Page, stage: Stage) -> None:
    stage.pieces = [f" w{index}" for index in range(400)]
    page.goto(stage.url)
    page.locator("#tokens .tokens").wait_for(timeout=60_000)
    page.locator("#jump").click()
    page.locator('#tokens [data-done="false"][data-total="400"]').wait_for()
    shown = page.eval_on_selector_all("#tokens .tokens .token", "spans => spans.map((span) => span.textContent)")
    assert shown == list(stage.pieces)
    assert stage.asked_again == 1


@pytest.mark.heavy
def test_ten_thousand_tokens_at_300_a_second_arrive_complete_and_on_time(page: Page, stage: Stage) -> None:
    stage.pieces = [f" w{index}" for index in range(10_000)]
    page.add_init_script(
        """setInterval(() => {
          const root = document.querySelector('#tokens [data-total]');
          if (!root || root.dataset.total !== '10000' || window.completeAt) return;
          window.completeAt = Date.now() / 1000;
        }, 10);"""
    )
    play(page, stage)
    lag = page.evaluate("window.completeAt") - stage.sent[0]
    shown = page.eval_on_selector_all("#tokens .tokens .token", "spans => spans.map((span) => span.textContent)")
    assert shown == list(stage.pieces)
    assert lag < 0.5
    print(f"lag at the end: {lag:.3f} s")
    expect(page.locator('#tokens .legend [data-source="draft"] b')).to_have_text("7499")
