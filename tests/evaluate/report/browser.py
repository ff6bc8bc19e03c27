"""A headless Chromium that tests drive over its debugging pipe: pages as a reader sees them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync")


class Browser:
    """One page. `errors` are the console's errors and uncaught exceptions, `requests` what it asked for."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = os.fdopen(read, "rb"), os.fdopen(write, "wb")
        self._count = 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._session = ""
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")

    def open(self, url: str, *, width: int = 1400) -> None:
        """Load a page; wait until it is loaded."""
        self._send(
            "Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False
        )
        self._send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def value(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        answer = self._send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        """Until the expression holds; the browser itself looks at each frame."""
        waiting = (
            "new Promise(done => { const look = () => { let held = false; "
            f"try {{ held = !!({script}); }} catch {{}} "
            "held ? done(true) : setTimeout(look, 20); }; look(); })"
        )
        self.value(waiting)

    def theme(self, name: str) -> None:
        """`light` or `dark`, as the system's setting."""
        self._send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def close(self) -> None:
        """End the browser."""
        self._session = ""
        with contextlib.suppress(OSError):
            self._send("Browser.close")
        self._read.close()
        with contextlib.suppress(OSError):
            self._write.close()

    def _send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        self._write.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        letters = bytearray()
        while (letter := self._read.read(1)) not in (b"\0", b""):
            letters += letter
        if not letters:
            raise OSError("the browser is gone")
        event = json.loads(letters)
        details = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(details["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if details["type"] in ("error", "warning"):
                self.errors.append(json.dumps(details["args"]))
            case "Log.entryAdded" if details["entry"]["level"] in ("error", "warning"):
                self.errors.append(details["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(details["request"]["url"])
        return event


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser, or a skip where this machine has none."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no chromium on this machine")
    to_browser, write = os.pipe()
    read, from_browser = os.pipe()
    # Chromium reads from descriptor 3 and writes to descriptor 4.
    shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
    process = subprocess.Popen(
        [
            "bash",
            "-c",
            shell,
            "bash",
            path,
            *FLAGS,
            *QUIET,
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ],
        pass_fds=(to_browser, from_browser),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    browser = Browser(read, write)
    try:
        yield browser
    finally:
        browser.close()
        process.wait(timeout=30)
