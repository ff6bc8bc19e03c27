"""One page from a template: everything that it shows is in it, and all text in it is escaped."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from mcpagent.core.hidden_text import printable
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import NONCE_META_KEY
from mcpagent.evaluate.report import numbers
from mcpagent.evaluate.report.assets import asset

_SHOWN_CHARS = 4000  # of any one text of an episode; the stored trajectory has the rest


def render(template: str, **context: object) -> str:
    """Return a part of a page. A direction mark or a control character in a text would rewrite what a person
    reads, so its code is shown."""
    return printable(_environment().get_template(template).render(**context))


def page(title: str, body: str, *, scripts: JsonObject, is_live: bool = False) -> str:
    """Return a whole page around a rendered `body`. `scripts` are those that `interactive` returns."""
    # The text of an episode cannot know the hash of the page around it, so it cannot forge a script.
    nonce = hashlib.blake2b(body.encode(), digest_size=16).hexdigest()
    shown = {"title": printable(title), "body": body, "css": asset("report.css"), "scripts": scripts}
    return _environment().get_template("layout.html").render(**shown, nonce=nonce, is_live=is_live)


def interactive(figures: JsonObject, rows: JsonObject, details: JsonObject) -> JsonObject:
    """Return the scripts of a page with charts and a list of episodes. Needs plotly."""
    from plotly.offline import get_plotlyjs

    return {
        "figures": script_json(figures),
        "rows": packed(json.dumps(rows, separators=(",", ":"))) if rows else "",
        "details": script_json(details),
        "plotly": packed(get_plotlyjs()),  # 2 MB instead of 4.8, and no foreign address in the page
        "program": asset("report.js"),
    }


def script_json(document: JsonObject) -> str:
    """Return JSON for a script element, which it cannot close."""
    return json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")


def packed(text: str) -> str:
    """Return a text gzipped and in base64."""
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("mcpagent.evaluate", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for shown in (numbers.number, numbers.percent, numbers.p_value, numbers.rate, numbers.change):
        environment.filters[shown.__name__] = shown
    environment.filters["cut"] = _cut
    environment.globals["NONCE"] = NONCE_META_KEY
    return environment


def _cut(text: str) -> str:
    if len(text) <= _SHOWN_CHARS:
        return text
    more = len(text) - _SHOWN_CHARS
    return f"{text[:_SHOWN_CHARS]}\n[{more:,} more characters in the stored trajectory]"
