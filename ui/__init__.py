"""Everything of EagleLens on the screen: Gradio layout, the token stream, charts, theme."""
