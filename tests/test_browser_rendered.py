"""The rendered view in a real browser: formulas, code, and text that tries to be markup."""

from __future__ import annotations

from typing import Any

import gradio as gr
import pytest
from playwright.sync_api import Page, expect

from tests.browser import browser, page, serve
from ui.conversation import Turn, to_bubbles
from ui.markdown import LATEX_DELIMITERS

pytestmark = pytest.mark.browser

REPLY = r"""Four ways: $a_1 < b$ and $$c_2$$ and \(d_3\) and \[e_4\] end. Pay $3 each and $2 more.

```python
def f(x): return x < 1
```

<img src=x onerror="document.title='owned'"> <b>bold?</b> ![x](http://127.0.0.1:9/track.png)
"""


def test_formulas_and_code_are_set_and_html_stays_text(page: Page) -> None:
    with gr.Blocks() as blocks:
        bubbles: list[Any] = to_bubbles((Turn("Show", REPLY),))
        gr.Chatbot(bubbles, latex_delimiters=LATEX_DELIMITERS, elem_id="window")
    with serve(blocks) as url:
        page.goto(url)
        window = page.locator("#window")
        expect(window.locator(".katex").first).to_be_visible(timeout=60_000)
        expect(window).to_contain_text("Pay $3 each and $2 more.")
        assert window.locator(".katex").count() == 4
        assert window.locator(".katex-error").count() == 0
        expect(window.locator("pre code")).to_contain_text("def f(x): return x < 1")
        assert window.locator("pre code span").count() > 0
        expect(window).to_contain_text("<b>bold?</b>")
        assert window.locator("img[src*='9/track'], img[src='x'], b").count() == 0
        assert page.title() != "owned"
