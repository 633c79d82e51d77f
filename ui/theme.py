"""The look: one theme for all tabs, light and dark, in hues that colour-blind people tell apart."""

from __future__ import annotations

import gradio as gr

SANS = ("system-ui", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")

EAGLE = gr.themes.Color(
    name="eagle",
    c50="#eef7fc",
    c100="#d7ecf8",
    c200="#b0daf1",
    c300="#7fc3e8",
    c400="#56b4e9",
    c500="#0072b2",
    c600="#0067a1",
    c700="#00588a",
    c800="#0f3a55",
    c900="#0c2c41",
    c950="#081d2b",
)


def make_theme() -> gr.themes.Base:
    """The theme of every page; fonts are the system's own, so nothing is fetched."""
    theme = gr.themes.Base(primary_hue=EAGLE, neutral_hue="slate", font=SANS, font_mono=MONO, radius_size="lg")
    return theme.set(
        body_background_fill="#ffffff",
        body_background_fill_dark="#0f141b",
        background_fill_primary="#ffffff",
        background_fill_primary_dark="#0f141b",
        background_fill_secondary="#fafbfc",
        background_fill_secondary_dark="#151c25",
        block_background_fill="#fafbfc",
        block_background_fill_dark="#151c25",
        block_border_color="#dfe4ea",
        block_border_color_dark="#2a3646",
        body_text_color="#1b2330",
        body_text_color_dark="#e6ebf2",
        body_text_color_subdued="#5b6676",
        body_text_color_subdued_dark="#9aa8ba",
        button_primary_background_fill="#0072b2",
        button_primary_background_fill_dark="#56b4e9",
        button_primary_background_fill_hover="#0067a1",
        button_primary_background_fill_hover_dark="#7fc3e8",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#0f141b",
        block_shadow="none",
        block_shadow_dark="none",
    )
