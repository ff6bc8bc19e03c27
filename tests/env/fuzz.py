"""Texts for parsers: fragments of every dialect, joined and injured, from one seed."""

from __future__ import annotations

import random

from mcpagent.env.parsing import DIALECT_OF

_CALLS = [
    dialect.write([("quote", {"ticker": "AAPL", "days": 5, "deep": {"a": [1, None, "</tool_call>"]}})])
    for dialect in DIALECT_OF.values()
]
_TAGS = (
    *("<tool_call>", "</tool_call>", "<tool>", "</tool>", "<quote>", "</quote>", "<think>", "</think>"),
    *("<function=quote>", "</function>", "<parameter=a>", "</parameter>", "<arg_key>", "</arg_key>"),
    *("<arg_value>", "</arg_value>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<|eot_id|>"),
    *("<|tool_call>", "<tool_call|>", "<|channel>", "<channel|>", '<|"|>', "call:quote{", "quote(a="),
    *("<|tool_call_start|>", "<|tool_call_end|>", "<|start|>", "<|message|>", "<|channel|>analysis"),
    *("<|end|>", "<|call|>", "<|eom|>", " to=functions.quote", " to=self", '<atem:parameter name="a">'),
    *("```json\n", "```tool_call\n", "\n```", "<|im_end|>", "<tool_response>", "[/INST]"),
)
_PIECES = (
    *(
        '{"name": "quote", "arguments": ',
        '{"name": "q", "parameters": ',
        '{"tool": "q"',
        '"',
        "\\",
        "\\u",
        "\\ud800",
    ),
    *(
        "{}",
        "{",
        "}",
        "[",
        "]",
        "}}",
        ";",
        ":",
        ",",
        "\n",
        " ",
        "\t",
        "\x00",
        "\x1c",
        "\u2028",
        "\ufeff",
        "\ud800",
    ),
    *("1e999", "-0", "NaN", "null", "True", "9" * 30, "[" * 60, "]" * 60, "quote", "\U0001f600", "a b c"),
)
_WORDS = [
    "the",
    "price",
    "of",
    "AAPL",
    "is",
    "187.2,",
    "so",
    "5",
    "<",
    "7",
    "&",
    "{x}",
    "[y]",
    "(z)",
    "'q'",
    '"r"',
    "\n\t:",
    ";",
    "{",
    "}",
    "#",
    "`",
    "```",
    "é",
    "日本",
]
# What begins a call in any dialect: a text without all of these is plain for all of them.
TRIGGERS = (
    *("<tool_call>", "</tool_call>", "<tool>", "</tool>", "<function=", "</function>"),
    *("<arg_key>", "<arg_value>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"),
    *("<|tool_call>", "<tool_call|>", "<|tool_call_start|>", "<|tool_call_end|>", "<|message|>"),
    *('"tool"', '"name"', "\\u"),  # a JSON object with a call's keys
)


def action(random_: random.Random) -> str:
    """A text that begins like calls often enough for parsers to go deep into it."""
    kind = random_.random()
    if kind < 0.2:
        return " ".join(random_.choices(_WORDS, k=random_.randrange(30)))
    if kind < 0.35:
        call = random_.choice(_CALLS)
        return call if kind < 0.25 else _injured(call, random_)
    pools = (_CALLS, _TAGS, _PIECES, _WORDS)
    text = "".join(
        random_.choice(random_.choices(pools, weights=(3, 3, 4, 1))[0])
        for _ in range(random_.randrange(1, 9))
    )
    return text if kind < 0.6 else _injured(text, random_)


def _injured(text: str, random_: random.Random) -> str:
    """Cut, doubled, or with characters taken out, changed and put in."""
    for _ in range(random_.randrange(1, 4)):
        if not text:
            return text
        at, to = sorted((random_.randrange(len(text)), random_.randrange(len(text))))
        match random_.randrange(5):
            case 0:
                text = text[:at]
            case 1:
                text = text[:at] + text[to:]
            case 2:
                text = text[:to] + text[at:]
            case 3:
                text = text[:at] + random_.choice(_PIECES) + text[at:]
            case _:
                text = text[:at] + chr(random_.randrange(128)) + text[at + 1 :]
    return text
