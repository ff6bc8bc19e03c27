from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from mcpagent.tools.transports.jsonrpc import LineSplitter, OversizeLine

CHUNKS = st.lists(st.binary(max_size=30).map(lambda data: data.replace(b"\x00", b"\n")), max_size=20)


@given(CHUNKS)
def test_lines_do_not_depend_on_how_the_bytes_arrive(chunks: list[bytes]) -> None:
    splitter = LineSplitter(10)
    seen = [
        (len(line), None) if isinstance(line, bytes) else (line.size, line.head[:10])
        for chunk in chunks
        for line in splitter.feed(chunk)
    ]
    # What follows the last newline is no line yet.
    whole = b"".join(chunks).split(b"\n")[:-1]
    assert seen == [(len(line), None if len(line) <= 10 else line[:10]) for line in whole]


@given(CHUNKS)
def test_short_lines_arrive_as_they_are(chunks: list[bytes]) -> None:
    splitter = LineSplitter(10_000)
    seen = [line for chunk in chunks for line in splitter.feed(chunk)]
    assert seen == b"".join(chunks).split(b"\n")[:-1]


def test_a_line_past_the_limit_keeps_its_two_ends_and_no_memory() -> None:
    splitter = LineSplitter(1_000_000)
    tracemalloc.start()
    lines = list(splitter.feed(b"begin"))
    for _ in range(1000):
        lines += splitter.feed(b"x" * 50_000)
    lines += splitter.feed(b"end\nnext\n")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    oversize, following = lines
    assert isinstance(oversize, OversizeLine)
    assert oversize.size == 5 + 1000 * 50_000 + 3
    assert (oversize.head[:6], oversize.tail[-4:]) == (b"beginx", b"xend")
    assert following == b"next"
    assert peak < 3_000_000  # of 50 MB
