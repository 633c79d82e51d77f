"""The files the page is made of: where they lie and how the browser gets them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

import plotly
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

PLOTLY_URL = "eaglelens/plotly.min.js"


@cache
def read_resource(path: str) -> str:
    """The text of one file under `assets/`, such as `js/token_stream.js`."""
    return files("assets").joinpath(path).read_text(encoding="utf-8")


def static_routes() -> list[BaseRoute]:
    """Routes that serve plotly.js out of the installed plotly package, so that the page needs no network."""
    folder = Path(plotly.__file__).parent / "package_data"
    return [Mount("/eaglelens", StaticFiles(directory=folder))]
