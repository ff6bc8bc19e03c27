"""How long a step takes over HTTP with many episodes open at once, and what the server costs meanwhile.

    python -m benchmarks.serving [--data DIR] [--episodes N] [--calls N] [--think S] [--json]

`mcpagent env serve` runs in a process of its own. Every client opens an episode and calls a tool again and
again, with a pause before each call that stands for a model's turn (`--think` seconds, give or take a half).
A step is timed from its request to the end of its response, so tool time is included, and so is the client's
own share of the machine. The gate is 100 ms for the 99th percentile, and 3 GB at the highest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

SAMPLES = Path(__file__).parents[1] / "data" / "samples"
P99_GATE_MS = 100.0
MEMORY_GATE_GB = 3.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """What was measured. `begin` is from a session's creation to its list of tools; `load_average` is of the
    minute before."""

    episodes: int
    most_open: int
    steps: int
    steps_per_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    begin_p99_ms: float
    cpu_ms_per_step: float
    memory_gb: float
    load_average: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=SAMPLES)
    parser.add_argument("--episodes", type=int, default=1024, help="open at once")
    parser.add_argument("--calls", type=int, default=5, help="tool calls of each episode")
    parser.add_argument("--think", type=float, default=8.0, help="seconds between two steps of an episode")
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    load = measure(options.data, episodes=options.episodes, calls=options.calls, think_s=options.think)
    if options.as_json:
        print(json.dumps(asdict(load), indent=2))
        return
    print(
        f"{load.most_open} episodes open, {load.steps_per_s:.0f} steps/s: {load.p50_ms:.1f} ms a step, "
        f"99th percentile {load.p99_ms:.1f} ms (gate {P99_GATE_MS:.0f}), at most {load.max_ms:.1f} ms\n"
        f"beginning an episode: 99th percentile {load.begin_p99_ms:.1f} ms\n"
        f"server: {load.cpu_ms_per_step:.2f} ms of CPU a step with its episode's share, "
        f"{load.memory_gb:.2f} GB at the highest (gate {MEMORY_GATE_GB:.0f}); "
        f"load average before: {load.load_average:.1f}"
    )


def measure(data: Path, *, episodes: int, calls: int, think_s: float) -> Load:
    """Serve `data` and play so many episodes at once. Raises RuntimeError for a response that is an error."""
    load_average = os.getloadavg()[0]
    command = [sys.executable, "-m", "mcpagent", "env", "serve", "--data", str(data), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            server = psutil.Process(process.pid)
            before = server.cpu_times()
            clients = Clients(url, think_s=think_s)
            begun = time.perf_counter()
            asyncio.run(clients.play(episodes, calls))
            wall_s = time.perf_counter() - begun
            after = server.cpu_times()
            peak = _peak_bytes(process.pid)
        finally:
            process.send_signal(signal.SIGINT)
    steps_ms = sorted(1000 * s for s in clients.steps_s)
    cpu_s = after.user + after.system - before.user - before.system
    return Load(
        episodes=episodes,
        most_open=clients.most_open,
        steps=len(steps_ms),
        steps_per_s=round(len(steps_ms) / wall_s, 1),
        p50_ms=round(_percentile(steps_ms, 0.5), 2),
        p99_ms=round(_percentile(steps_ms, 0.99), 2),
        max_ms=round(steps_ms[-1], 2),
        begin_p99_ms=round(_percentile(sorted(1000 * s for s in clients.begins_s), 0.99), 2),
        cpu_ms_per_step=round(1000 * cpu_s / len(steps_ms), 3),
        memory_gb=round(peak / 1e9, 3),
        load_average=round(load_average, 2),
    )


class Clients:
    """Clients of one server, each with a connection of its own."""

    def __init__(self, url: str, *, think_s: float) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._think_s, self._rng = think_s, random.Random(0)
        self.steps_s: list[float] = []
        self.begins_s: list[float] = []
        self.most_open = self._open = 0

    async def play(self, episodes: int, calls: int) -> None:
        """Begin one episode after another within one pause, and play all of them to their ends."""
        await asyncio.gather(
            *(
                self._episode(calls, begin_after_s=self._think_s * number / episodes)
                for number in range(episodes)
            )
        )

    async def _episode(self, calls: int, *, begin_after_s: float) -> None:
        await asyncio.sleep(begin_after_s)
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            begun = time.perf_counter()
            session = _events(await _ask(reader, writer, "POST", "/create_session"))["task_id"]
            await _ask(reader, writer, "POST", "/create", session, {"split": "train", "index": 0})
            listed = json.loads(await _ask(reader, writer, "GET", "/task_tools", session))
            self.begins_s.append(time.perf_counter() - begun)
            self._open += 1
            self.most_open = max(self.most_open, self._open)
            tool = next(tool for tool in listed["tools"] if not tool["input_schema"].get("required"))
            answer = listed["terminal_tool"]["name"]
            for name, arguments in [*[(tool["name"], {})] * calls, (answer, {"text": "Answer: 1"})]:
                await asyncio.sleep(self._think_s * self._rng.uniform(0.5, 1.5))
                begun = time.perf_counter()
                said = await _ask(
                    reader, writer, "POST", "/call", session, {"name": name, "input": arguments}
                )
                self.steps_s.append(time.perf_counter() - begun)
                result = json.loads(_events(said)["end"])
                if not result["ok"]:
                    raise RuntimeError(result["error"])
                if result["output"]["finished"]:
                    break
            self._open -= 1
            await _ask(reader, writer, "POST", "/delete", session)
        finally:
            writer.close()


async def _ask(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    method: str,
    path: str,
    session: str = "",
    body: Any = None,
) -> str:
    """Return the body of the response to one request on a connection that is kept."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: here\r\nx-session-id: {session}\r\n"
    writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    fields = (await reader.readuntil(b"\r\n\r\n")).decode().casefold().split("\r\n")
    lengths = [line.partition(":")[2] for line in fields if line.startswith("content-length:")]
    if lengths:
        said = await reader.readexactly(int(lengths[0]))
    else:  # in chunks: a call that took longer
        said = b""
        while size := int(await reader.readline(), 16):
            said += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    if " 200 " not in fields[0]:
        raise RuntimeError(f"{path}: {fields[0]}: {said.decode()}")
    return said.decode()


def _events(text: str) -> dict[str, str]:
    """The data of server-sent events by kind; the pieces of a result are joined as `end`."""
    found: dict[str, str] = {}
    pieces = ""
    for block in text.strip().split("\n\n"):
        kind, _, data = block.removeprefix("event: ").partition("\ndata: ")
        pieces += data if kind in ("chunk", "end") else ""
        found[kind] = pieces if kind == "end" else data
    return found


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _peak_bytes(pid: int) -> int:
    """The most memory that a process has had resident so far (Linux)."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return 1024 * int(fields["VmHWM"].split()[0])


if __name__ == "__main__":
    main()
