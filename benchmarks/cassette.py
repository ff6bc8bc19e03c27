"""What a replayed tool call costs, and a tape of many calls: python -m benchmarks.cassette [--entries N]."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
import tracemalloc
from pathlib import Path

from mcpagent.core.tools import ToolCall
from mcpagent.servers.embedded import build
from mcpagent.tools.cassettes.cassette import Cassette, ServerFacts
from mcpagent.tools.cassettes.tape import CALLS_NAME, CallKey, RecordedAnswer, Tape
from mcpagent.tools.contract import ToolProvider
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import MemoryServer

LIMIT_CHARS = 8000
ROUNDS = 20


async def _cpu_per_call_us(tools: ToolProvider, symbols: list[str], *, rounds: int) -> float:
    session = tools.session()
    started = time.process_time()
    for _ in range(rounds):
        for symbol in symbols:
            wanted = ToolCall(id="1", server="fmp", tool="fmp_get_quote", arguments={"symbol": symbol})
            result = await session.call(wanted)
            assert result.failure is None, result.content
    return 1e6 * (time.process_time() - started) / (rounds * len(symbols))


async def _calls(folder: Path) -> None:
    symbols = [company.ticker for company in build().companies[:100]]
    async with ToolPool([MemoryServer(name="fmp")]) as pool:
        live = min([await _cpu_per_call_us(pool, symbols, rounds=2) for _ in range(5)])
        facts = ServerFacts()
        with Cassette.around(
            pool, folder, mode="record", servers=facts, result_limit_chars=LIMIT_CHARS
        ) as cassette:
            first = await _cpu_per_call_us(cassette, symbols, rounds=1)
    with Cassette.alone(folder, result_limit_chars=LIMIT_CHARS) as cassette:
        replayed = min([await _cpu_per_call_us(cassette, symbols, rounds=ROUNDS) for _ in range(5)])
    print(f"live, in memory     {live:8.1f} us of CPU a call")
    print(f"live and recorded   {first:8.1f} us   {first / live:.2f}x")
    print(f"replayed            {replayed:8.1f} us   {replayed / live:.2f}x")


def _tape(folder: Path, entries: int) -> None:
    tape = Tape(folder, writable=True)
    started = time.process_time()
    for number in range(entries):
        key = CallKey("fmp", "1.0", "quote", "abcd", {"symbol": f"S{number}"})
        tape.add(key, RecordedAnswer(content="x" * 300, structured={"price": number}), replace=False)
    recorded = time.process_time() - started
    started = time.process_time()
    tape.close()
    closed = time.process_time() - started
    size = (folder / CALLS_NAME).stat().st_size
    started = time.process_time()
    Tape(folder, writable=False)
    loaded = time.process_time() - started
    tracemalloc.start()
    kept = Tape(folder, writable=False)
    held, _ = tracemalloc.get_traced_memory()
    assert len(kept) == entries
    print(f"{entries:,} entries, {size / 1e6:.0f} MB on disk, {held / 1e6:.1f} MB in memory")
    print(f"CPU s: recorded {recorded:.2f}, sorted {closed:.2f}, loaded {loaded:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    entries = parser.parse_args().entries
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_calls(Path(folder, "calls")))
        _tape(Path(folder, "tape"), entries)


if __name__ == "__main__":
    main()
