"""The console: pages in a browser that show what a running server shows over HTTP.

Its files are served as they are here: nothing is built, bundled or fetched from elsewhere. In
reading order:

    index.html      what every page begins with
    style.css       how all of it looks
    main.js         which page a path shows, and the frame around it
    stream.js       GET /v1/events: differences in, a state out; the key, where one is needed
    format.js       numbers with their units and ages
    parts.js        what pages share: tables, states, bars, empty places
    fleet.js        pods by model and state
    requests.js     the last requests, and the terms of each decision
    explain.js      what pods hold of a prompt, as strips
    ladder.js       what was reused and what was lost over time, by reason
    policy.js       the rule that chooses, its coefficients, and how well they fit
    config.js       the configuration in force, and the last one that was refused
    vendor/         libraries of others; `vendor.toml` says which, under which licence
"""

from importlib.resources import files
from typing import Final

INDEX: Final = "index.html"
PAGES: Final = ("fleet", "requests", "explain", "ladder", "policy", "config")
"""Each is a path, and a module of that name."""

FILES: Final = (
    "style.css",
    "icon.svg",
    "main.js",
    "stream.js",
    "format.js",
    "parts.js",
    *(f"{page}.js" for page in PAGES),
    "vendor/lit-html/lit-html.js",
    "vendor/uplot/uPlot.iife.min.js",
)
"""Everything that is served, besides INDEX."""


def read(name: str) -> bytes:
    """Return the bytes of a file of this folder."""
    return files(__name__).joinpath(name).read_bytes()
