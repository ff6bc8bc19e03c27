"""A million outputs of a model that writes anything: no parser fails, and plain text stays text."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from mcpagent.core.records import JsonObject
from mcpagent.env.parsing import DIALECT_OF, ParsedAction, parse_action
from tests.env.fuzz import TRIGGERS, action

SCHEMA: JsonObject = {
    "properties": {
        "ticker": {"type": "string"},
        "days": {"type": ["integer", "null"]},
        "a": {"$ref": "#/$defs/b"},
        "deep": {"type": "object"},
    },
    "$defs": {"b": {"$ref": "#/$defs/b"}},  # refers to itself: schemas come from strangers
}


def _parse(text: str, tool_format: str) -> ParsedAction:
    return parse_action(text, tool_format=tool_format, schema_of=lambda _: SCHEMA)


def _fuzz(n: int, *, seed: int) -> Counter[str]:
    """`n` outputs, each to one parser in turn; what was found."""
    source, formats = random.Random(seed), list(DIALECT_OF)
    counts: Counter[str] = Counter()
    for index in range(n):
        text, tool_format = action(source), formats[index % len(formats)]
        parsed = _parse(text, tool_format)
        for record in (*parsed.calls, *parsed.failures):
            record.model_dump_json()  # it can be stored and sent
        is_plain = not any(trigger in text for trigger in TRIGGERS)
        if is_plain:
            assert not parsed.calls and not parsed.failures, (tool_format, text)
        if is_plain and "think>" not in text and "channel" not in text:
            # Nothing of an answer is lost; a surrogate without its other half cannot be kept.
            assert parsed.text == text.encode("utf-8", "replace").decode().strip(), (tool_format, text)
        counts["plain"] += is_plain
        counts[f"{tool_format} calls"] += bool(parsed.calls)
        counts[f"{tool_format} failures"] += bool(parsed.failures)
    return counts


def test_no_output_makes_a_parser_fail_and_plain_text_is_no_call() -> None:
    counts = _fuzz(30_000, seed=1)
    assert counts["plain"] > 2_000
    for tool_format in DIALECT_OF:  # the fuzzer reaches both ends of every parser
        assert counts[f"{tool_format} calls"] > 10, counts
        assert counts[f"{tool_format} failures"] > 10, counts


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_million_outputs_make_no_parser_fail(seed: int) -> None:
    assert _fuzz(100_000, seed=100 + seed)["plain"] > 10_000


_REPEATED = (
    *("<|tool_call>", "<|tool_call>call:q{a:", '<|tool_call>call:q{a:<|"|>', "<tool_call|>", "<|channel>"),
    *("<|tool_call_start|>", "<|tool_call_start|>[q(a=", "<|tool_call_start|>[q(a='", "<|tool_call_end|>"),
    *(
        "<|start|>assistant",
        "<|message|>",
        ' to=f<|message|>{"a": "<|start|>',
        "<|channel|>analysis<|message|>",
    ),
    ' to=f<|message|><atem:function_calls><atem:invoke name="f"><atem:parameter name="k"><|start|>',
    *("<tool_call>", "</tool_call>", "<tool_call></tool_call>", '<tool_call>{"name": "a"', '<tool_call>["'),
    *(
        '<tool_call>["</tool_call>',
        '<tool_call>{"name": "q", "arguments": {}}</tool_call>',
        "<tool>",
        "<tool><q>",
    ),
    *(
        "<tool><q>{}</q></tool>",
        "<tool><q>{}</q>",
        "<think>",
        "</think>",
        "<think></think>",
        "<think>x</think>y",
    ),
    *(
        "```json\n",
        "```json\n{}\n```\n",
        '```json\n{"tool": "q"}\n```\n',
        '{"tool": "q"}\n',
        '{"tool": 5}\n',
        "```json\n \n",
        "\n   ```",
        "{",
        "[",
        '"',
    ),
    *("<tool_call><function=f>", "<tool_call><function=f><parameter=a>", "<parameter=a>x</parameter>"),
    *("<tool_call><function=f><parameter=a>x</tool_call>", "</parameter>   ", "<function=f"),
    *("<tool_call>f<arg_key>", "<arg_key>a</arg_key><arg_value>", "</arg_value>   ", "<tool_call>f\n"),
    *(
        "[TOOL_CALLS]",
        "[TOOL_CALLS]f",
        "[TOOL_CALLS]f[ARGS]{}",
        "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS][",
        "f[CALL_ID]",
    ),
    *("<|python_tag|>", '{"name": "f", "parameters": {}};', ';{"name": "f"', " ", "\n", "a", "\\", "9", "{}"),
)
_OPENINGS = (
    *(
        "",
        "<tool_call>",
        "<tool_call><function=f><parameter=a>",
        "<tool_call>f<arg_key>a</arg_key><arg_value>",
    ),
    *("[TOOL_CALLS]", "<|python_tag|>", '<tool_call>{"name": "', "<tool>"),
)


@pytest.mark.parametrize("tool_format", DIALECT_OF)
def test_reading_takes_time_in_proportion_to_the_length(tool_format: str) -> None:
    """CPU seconds of 100 KB against those of 12.5 KB: 8 times as much, 64 times where time is quadratic."""
    slow: list[tuple[str, str, float, float]] = []
    blocks = tuple(DIALECT_OF[tool_format].blocks)
    for opening in [opening for opening in _OPENINGS if not opening or opening.startswith(blocks)]:
        for piece in _REPEATED:
            short, long = (opening + piece * (size // len(piece)) for size in (12_500, 100_000))
            seconds = _cpu_s(long, tool_format)
            if seconds > 0.05:  # most are over in a millisecond, and a clock's grain is no finding
                base = min(_cpu_s(short, tool_format) for _ in range(3))
                seconds = min(seconds, _cpu_s(long, tool_format))
                if seconds > 24 * base:
                    slow.append((opening, piece, base, seconds))
    assert not slow


def _cpu_s(text: str, tool_format: str) -> float:
    begun = time.process_time()
    _parse(text, tool_format)
    return time.process_time() - begun
