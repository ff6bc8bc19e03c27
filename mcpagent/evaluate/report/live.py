"""The live view of a run: its report served on the loopback while it trains. It only reads."""

from __future__ import annotations

import hashlib
import threading
import time
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from mcpagent.core.hidden_text import printable
from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.evaluate.report.document import document_of
from mcpagent.evaluate.report.episode_html import Pieces, episode_html, token_pieces
from mcpagent.evaluate.report.episodes import EpisodeFiles, gold_tasks
from mcpagent.evaluate.report.page import live_html, summary_html
from mcpagent.evaluate.report.run_data import read_run
from mcpagent.evaluate.report.template import render, script_json

LISTED_EPISODES = 20_000  # in the page's list
_LOOPBACK = "127.0.0.1"
_SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class LiveRun:
    """The content of a run's page now. The run is read again when the run's files have changed, but at most a
    tenth of the time is spent on reading. Safe for several threads."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._episodes = EpisodeFiles(run_dir / "trajectories")
        self._lock = threading.Lock()
        self._signature = ""
        self._state: JsonObject = {}
        self._config: JsonObject = {}
        self._pieces: Pieces | None = None
        self._next_look_s = 0.0

    @property
    def title(self) -> str:
        """The name of the run's folder."""
        return self._run_dir.resolve().name

    def state(self) -> JsonObject:
        """Return what the page shows: `version` changes with the rest, `summary` (HTML), `figures` by id,
        `episodes` (rows by file), `left_out` (episodes that the list has no room for)."""
        with self._lock:
            began_s = time.monotonic()
            if began_s >= self._next_look_s:
                is_first, signature = not self._signature, self._look()
                if signature != self._signature:
                    self._state = self._read(signature)
                    self._signature = signature
                # What was there before is read only once, and does not keep the page from following.
                took_s = 0.0 if is_first else time.monotonic() - began_s
                self._next_look_s = time.monotonic() + 9 * took_s
            return self._state

    def episode(self, stem: str, place: int) -> str | None:
        """Return one episode of a file as HTML; None if it is not there."""
        with self._lock:
            file = self._episodes.files.get(stem)
            if file is None or not 0 <= place < len(file.rows):
                return None
            trajectory = next(islice(self._episodes.read(stem), place, None), None)
            if trajectory is None:
                return None
            if self._pieces is None:
                self._pieces = token_pieces(self._run_dir)
            task = gold_tasks(self._config, {trajectory.task_id}).get(trajectory.task_id)
            relative = file.rows[place].get("relative")
        return episode_html(trajectory, label=stem, task=task, relative=relative, pieces=self._pieces)

    def _look(self) -> str:
        """Return a text that changes when a file that the page is made of does."""
        folders = (self._run_dir, self._run_dir / "eval", self._run_dir / "trajectories")
        stats = [
            (path.name, status.st_mtime_ns, status.st_size)
            for folder in folders
            if folder.is_dir()
            for path in sorted(folder.iterdir())
            if path.is_file() and not path.name.startswith(".") and (status := path.stat())
        ]
        return hashlib.blake2b(repr(stats).encode(), digest_size=16).hexdigest()

    def _read(self, version: str) -> JsonObject:
        try:
            run = read_run(self._run_dir, episodes=self._episodes)
        except UserError as error:
            # A run that has just begun has no step yet; a broken file is named, and its next version read.
            waiting = render("waiting.html", title=self.title, text=str(error))
            return {"version": version, "summary": waiting, "figures": {}, "episodes": {}, "left_out": 0}
        self._config = run.config
        summary, figures = summary_html(run, document_of(run))
        rows, left_out = self._episodes.listed(LISTED_EPISODES)
        return {
            "version": version,
            "summary": summary,
            "figures": figures,
            "episodes": rows,
            "left_out": left_out,
        }


class LiveServer(ThreadingHTTPServer):
    """Serve the page of a run on the loopback. Raises UserError if the port is taken."""

    daemon_threads = True

    def __init__(self, run_dir: Path, *, port: int = 0) -> None:
        self.live = LiveRun(run_dir)
        self.page = live_html(self.live.title)
        try:
            super().__init__((_LOOPBACK, port), _Handler)
        except OSError as error:
            raise UserError(
                f"port {port} cannot be used: {error.strerror or error}",
                where="--port",
                remedy="name another one, or leave it out: any free port is taken",
            ) from error

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{_LOOPBACK}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer  # type: ignore[assignment]
    server_version, sys_version = "mcpagent", ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        # A page of the internet whose name was made to point here (DNS rebinding) sends that name.
        if self.headers.get("Host") not in self._names():
            self._answer(HTTPStatus.FORBIDDEN, "only for this machine's own browser")
            return
        address = urlsplit(self.path)
        asked = {name: values[-1] for name, values in parse_qs(address.query).items()}
        try:
            match address.path:
                case "/":
                    self._send(HTTPStatus.OK, self.server.page)
                case "/state":
                    self._state(asked.get("version"))
                case "/episode":
                    self._episode(asked.get("file", ""), asked.get("place", ""))
                case _:
                    self._answer(HTTPStatus.NOT_FOUND, "there is no such page")
        except ConnectionError:
            self.close_connection = True  # the reader closed the page
        except (UserError, OSError) as error:  # a file that the run replaced or removed while it was read
            self._answer(HTTPStatus.CONFLICT, printable(str(error)))

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the page asks every other second."""

    def _names(self) -> set[str]:
        return {f"{name}:{self.server.server_port}" for name in (_LOOPBACK, "localhost")}

    def _state(self, version: str | None) -> None:
        state = self.server.live.state()
        changes = state if version != state["version"] else {"version": version}
        self._send(HTTPStatus.OK, script_json(changes), "application/json")

    def _episode(self, file: str, place: str) -> None:
        html = self.server.live.episode(file, int(place)) if place.isdecimal() else None
        if html is None:
            self._answer(HTTPStatus.NOT_FOUND, "there is no such episode (any more): load the page again")
        else:
            self._send(HTTPStatus.OK, html)

    def _answer(self, status: HTTPStatus, text: str) -> None:
        self._send(status, f"<p>{escape(text)}</p>")

    def _send(self, status: HTTPStatus, text: str, kind: str = "text/html; charset=utf-8") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in _SECURITY.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
