"""The four web services on a loopback socket: they replay the documented shapes in `shapes/`, and failures on
request. The values in the shapes are invented."""

from __future__ import annotations

import json
import re
import threading
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from mcpagent.servers.names import KEY_NAMES

SHAPES = Path(__file__).parent / "shapes"
KEYS = {
    "MASSIVE_API_KEY": "planted/massive+key==7Q",
    "FMP_API_KEY": "planted/fmp+key==7Q",
    "TAVILY_API_KEY": "tvly-planted/tavily+key==7Q",
    "SLACK_BOT_TOKEN": "xoxb-planted/slack+token==7Q",
}
_HOLD_S = 30.0  # a body that never ends ends here, should nobody hang up


def shape(name: str) -> Any:
    """The documented answer `service/name`."""
    return json.loads((SHAPES / f"{name}.json").read_text())


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer. `sent_bytes` None sends the whole body; fewer than that breaks the connection off there, or
    leaves it open without another byte where `holds` is set."""

    status: int = 200
    body: Any = None
    raw: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    sent_bytes: int | None = None
    holds: bool = False

    @property
    def data(self) -> bytes:
        return json.dumps(self.body).encode() if self.raw is None else self.raw


@dataclass(frozen=True)
class Asked:
    """One request; `path` starts with the service's name."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def has_key(self) -> bool:
        """True where the right key is in its documented place."""
        service = self.path.split("/")[1]
        key = KEYS[KEY_NAMES[service][0]]
        if service == "fmp":
            return self.query.get("apikey") == key
        return self.headers.get("Authorization") == f"Bearer {key}"


# First match wins; `?name` after the path asks for that query parameter.
_ROUTES: tuple[tuple[str, str], ...] = (
    (r"/polygon/v2/aggs/ticker/NOSUCH/.*", "polygon/aggs_none"),
    (r"/polygon/v2/aggs/ticker/[^/]+/range/.*\?cursor", "polygon/aggs_last_page"),
    (r"/polygon/v2/aggs/ticker/[^/]+/range/1/day/.*", "polygon/aggs"),
    (r"/polygon/v2/aggs/ticker/[^/]+/prev", "polygon/previous_close"),
    (r"/polygon/v2/last/trade/[^/]+", "polygon/last_trade"),
    (r"/polygon/v3/reference/tickers/[^/]+", "polygon/ticker_details"),
    (r"/polygon/v3/reference/tickers\?cursor", "polygon/tickers_last_page"),
    (r"/polygon/v3/reference/tickers", "polygon/tickers"),
    (r"/polygon/v2/reference/news\?cursor", "polygon/news_last_page"),
    (r"/polygon/v2/reference/news", "polygon/news"),
    (r"/polygon/v1/marketstatus/now", "polygon/market_status"),
    (r"/fmp/quote", "fmp/quote"),
    (r"/fmp/profile", "fmp/profile"),
    (r"/fmp/income-statement", "fmp/income_annual"),
    (r"/fmp/biggest-gainers", "fmp/gainers"),
    (r"/fmp/biggest-losers", "fmp/losers"),
    (r"/fmp/search-symbol", "fmp/search_symbol"),
    (r"/fmp/search-name", "fmp/search_name"),
    (r"/fmp/news/stock", "fmp/stock_news"),
    (r"/fmp/stock-price-change", "fmp/price_change"),
    (r"/fmp/historical-price-eod/light", "fmp/history_light"),
    (r"/tavily/search", "tavily/search"),
    (r"/tavily/extract", "tavily/extract"),
    (r"/slack/conversations.list\?cursor", "slack/channels_last_page"),
    (r"/slack/conversations.list", "slack/channels"),
    (r"/slack/conversations.history", "slack/history"),
    (r"/slack/conversations.replies", "slack/replies"),
    (r"/slack/users.list", "slack/users"),
    (r"/slack/chat.postMessage", "slack/posted"),
    (r"/slack/reactions.add", "slack/reacted"),
    (r"/slack/auth.test", "slack/auth_test"),
)


class ReplayService:
    """Serves while entered. `asked` is every request so far."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._queued: dict[str, deque[Reply]] = defaultdict(deque)
        self._standing: dict[str, Reply] = {}
        self._stopping = threading.Event()
        service = self

        class Handler(_Handler):
            replay = service

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """What points the live upstreams here, with the planted keys and without pacing."""
        urls = {f"MCPAGENT_{name.upper()}_BASE_URL": f"{self.url}/{name}" for name in KEY_NAMES}
        rates = {f"MCPAGENT_{name.upper()}_RATE": "100000/1" for name in KEY_NAMES}
        return {**KEYS, **urls, **rates, "MCPAGENT_SLACK_ALLOW_SEND": "general"}

    def answer(self, path: str, *replies: Reply) -> None:
        """The next answers to requests of `path`, before the documented shape."""
        self._queued[path] += replies

    def always(self, path: str, reply: Reply) -> None:
        """What every request of a path that begins with `path` gets."""
        self._standing[path] = reply

    def reply_to(self, asked: Asked) -> Reply:
        self.asked.append(asked)
        if self._queued[asked.path]:
            return self._queued[asked.path].popleft()
        for path, reply in self._standing.items():
            if asked.path.startswith(path):
                return reply
        if not asked.has_key:
            return Reply(status=401, body={"error": "no key, or not in its documented place"})
        cursor = "?cursor" if asked.query.get("cursor") else ""
        for pattern, name in _ROUTES:
            if re.fullmatch(pattern, asked.path) or re.fullmatch(pattern, asked.path + cursor):
                return Reply(body=shape(name))
        return Reply(status=404, raw=b"<html>no such page</html>")

    def hold(self) -> None:
        self._stopping.wait(_HOLD_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    replay: ReplayService
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        size = int(self.headers.get("Content-Length", 0))
        asked = Asked(
            method=self.command,
            path=parts.path,
            query=dict(parse_qsl(parts.query)),
            headers=dict(self.headers.items()),
            body=self.rfile.read(size),
        )
        reply = self.replay.reply_to(asked)
        data = reply.data
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[: reply.sent_bytes])
        self.wfile.flush()
        if reply.holds:
            self.replay.hold()
        if reply.sent_bytes is not None:
            self.close_connection = True

    do_GET = do_POST = _serve

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the test reads what was asked."""
