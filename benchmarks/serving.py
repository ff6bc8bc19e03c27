"""How long a step takes over HTTP with many episodes open at once, and what the server costs meanwhile.

    python -m benchmarks.serving [--data DIR] [--episodes N] [--calls N] [--think S] [--json]

`mcpagent env serve` runs in a process of its own. The episodes are opened one after the other; then each
makes one step, right after that of the one before it: what a request costs by itself, with all of them open.
Then every client calls a tool again and again, with a pause before each call that stands for a model's turn
(`--think` seconds, give or take a half): what it costs when many ask at once. A step is timed from its
request to the end of its response, with the time of the tool and the client's own share of the machine.
Opening is from a session's creation to its list of tools, three requests.
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
# 99th percentiles: a step and an opening by themselves, and a step among many.
STEP_GATE_MS = 20.0
OPEN_GATE_MS = 25.0
P99_GATE_MS = 100.0
MEMORY_GATE_GB = 3.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """What was measured. `open` and `step` are by themselves, `p50`, `p99` and `max` of steps among many;
    `load_average` is of the minute before."""

    episodes: int
    most_open: int
    open_p50_ms: float
    open_p99_ms: float
    step_p50_ms: float
    step_p99_ms: float
    steps: int
    steps_per_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float
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
        f"opening an episode: {load.open_p50_ms:.1f} ms, 99th percentile {load.open_p99_ms:.1f} ms "
        f"(gate {OPEN_GATE_MS:.0f})\n"
        f"{load.most_open} open, a step right after the other: {load.step_p50_ms:.1f} ms, 99th percentile "
        f"{load.step_p99_ms:.1f} ms (gate {STEP_GATE_MS:.0f})\n"
        f"{load.steps_per_s:.0f} steps/s at once: {load.p50_ms:.1f} ms a step, 99th percentile "
        f"{load.p99_ms:.1f} ms (gate {P99_GATE_MS:.0f}), at most {load.max_ms:.1f} ms\n"
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
            wall_s = asyncio.run(clients.play(episodes, calls))
            after = server.cpu_times()
            peak = _peak_bytes(process.pid)
        finally:
            process.send_signal(signal.SIGINT)
    steps_ms = sorted(1000 * s for s in clients.steps_s)
    alone_ms = sorted(1000 * s for s in clients.alone_s)
    opens_ms = sorted(1000 * s for s in clients.opens_s)
    cpu_s = after.user + after.system - before.user - before.system
    return Load(
        episodes=episodes,
        most_open=clients.most_open,
        open_p50_ms=round(_percentile(opens_ms, 0.5), 2),
        open_p99_ms=round(_percentile(opens_ms, 0.99), 2),
        step_p50_ms=round(_percentile(alone_ms, 0.5), 2),
        step_p99_ms=round(_percentile(alone_ms, 0.99), 2),
        steps=len(steps_ms),
        steps_per_s=round(len(steps_ms) / wall_s, 1),
        p50_ms=round(_percentile(steps_ms, 0.5), 2),
        p99_ms=round(_percentile(steps_ms, 0.99), 2),
        max_ms=round(steps_ms[-1], 2),
        cpu_ms_per_step=round(1000 * cpu_s / (len(steps_ms) + len(alone_ms)), 3),
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
        self.alone_s: list[float] = []
        self.opens_s: list[float] = []
        self.most_open = 0

    async def play(self, episodes: int, calls: int) -> float:
        """Open the episodes, make a step in each, and play all of them to their ends at once. Returns the
        seconds that the last took."""
        playing = [await self._open() for _ in range(episodes)]
        health = json.loads(await playing[0].ask("GET", "/health"))
        self.most_open = health["sessions"]
        for episode in playing:
            self.alone_s.append(await episode.step(episode.tool, {}))
        begun = time.perf_counter()
        await asyncio.gather(
            *(
                self._to_the_end(episode, calls - 1, begin_after_s=self._think_s * number / episodes)
                for number, episode in enumerate(playing)
            )
        )
        return time.perf_counter() - begun

    async def _open(self) -> Playing:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        episode = Playing(reader, writer, f"{self._host}:{self._port}")
        begun = time.perf_counter()
        await episode.open()
        self.opens_s.append(time.perf_counter() - begun)
        return episode

    async def _to_the_end(self, episode: Playing, calls: int, *, begin_after_s: float) -> None:
        await asyncio.sleep(begin_after_s)
        for name, arguments in [*[(episode.tool, {})] * calls, (episode.answer, {"text": "Answer: 1"})]:
            await asyncio.sleep(self._think_s * self._rng.uniform(0.5, 1.5))
            self.steps_s.append(await episode.step(name, arguments))
            if episode.has_ended:
                break
        await episode.ask("POST", "/delete")
        episode.writer.close()


@dataclass
class Playing:
    """One episode, over a connection that is kept."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    host: str
    session: str = ""
    tool: str = ""
    answer: str = ""
    has_ended: bool = False

    async def open(self) -> None:
        """Create the session and its episode, and read its tools."""
        self.session = _events(await self.ask("POST", "/create_session"))["task_id"]
        await self.ask("POST", "/create", {"split": "train", "index": 0})
        listed = json.loads(await self.ask("GET", "/task_tools"))
        self.tool = next(t["name"] for t in listed["tools"] if not t["input_schema"].get("required"))
        self.answer = listed["terminal_tool"]["name"]

    async def step(self, name: str, arguments: dict[str, Any]) -> float:
        """Make one call and return the seconds that it took. Raises RuntimeError if it is refused."""
        begun = time.perf_counter()
        said = await self.ask("POST", "/call", {"name": name, "input": arguments})
        took_s = time.perf_counter() - begun
        result = json.loads(_events(said)["end"])
        if not result["ok"]:
            raise RuntimeError(result["error"])
        self.has_ended = result["output"]["finished"]
        return took_s

    async def ask(self, method: str, path: str, body: Any = None) -> str:
        """Return the body of the response to one request."""
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: {self.host}\r\nx-session-id: {self.session}\r\n"
        kind = "content-type: application/json\r\n" if content else ""
        self.writer.write(f"{head}{kind}content-length: {len(content)}\r\n\r\n".encode() + content)
        fields = (await self.reader.readuntil(b"\r\n\r\n")).decode().casefold().split("\r\n")
        lengths = [line.partition(":")[2] for line in fields if line.startswith("content-length:")]
        if lengths:
            said = await self.reader.readexactly(int(lengths[0]))
        else:  # in chunks: a call that took longer
            said = b""
            while size := int(await self.reader.readline(), 16):
                said += await self.reader.readexactly(size)
                await self.reader.readline()
            await self.reader.readline()
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
