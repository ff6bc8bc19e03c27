"""A server that greets, takes adapters, and closes the connection in the middle of every turn: what a client
sees of one that dies. Its port is the line that it prints."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Dying(BaseHTTPRequestHandler):
    turns = 0

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "dying", "max_model_len": 100_000}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/completions":
            print("turn", flush=True)
            self.close_connection = True
        else:
            self._answer({})

    def _answer(self, document: dict[str, object]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Stdout is for the port and the turns."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dying)
    print(server.server_address[1], flush=True)
    sys.exit(server.serve_forever())
