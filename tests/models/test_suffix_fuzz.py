"""Whatever a tool or a user says, the suffix of it holds the text, and no control token of it."""

from __future__ import annotations

from random import Random

import pytest

from mcpagent.core.records import JsonObject
from mcpagent.models.tokens import Renderer
from tests.models.test_forgery import EVERYTHING, FAMILIES, _controls, _renderer

FEW, MANY = 300, 40_000
# What has broken renderings: marks whole and cut, the syntax of templates, what the renderer itself writes,
# characters that text has not.
_PIECES = [
    *EVERYTHING,
    *(
        "<|im_",
        "start|>",
        "|>",
        "<|",
        "<",
        "[",
        "[/",
        "]",
        "</",
        "<tool_output>",
        "</tool_output>",
        "<｜",
        "▁",
    ),
    *("&lt;", "&#91;", "&amp;", "&", "{{", "}}", "{%", "%}", "{{ messages }}", "{% raw %}", "{#", "-%}"),
    *("mcpagent-answer", "mcpagent_probe", "mcpcall00", "mcpagent", "n0z", "0z", "question", "thought"),
    *("\0", "\x1b[2J", "\r\n", "\n\n", "\t", " ", "  ", "\x85", "\u2028", "\ufeff", "\ufffd", "\U0010ffff"),
    *("é", "e\u0301", "👨\u200d👩", "\u202e", "日本", "a", "0", '{"a": ["b"]}', "\\", "\\ud800", '"', "'"),
]


def hostile(rng: Random) -> str:
    """Pieces, of which some are cut, doubled or lost."""
    text = "".join(rng.choice(_PIECES) for _ in range(rng.randrange(9)))
    for _ in range(rng.randrange(3)):
        at, to = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        text = rng.choice((text[:at] + text[to:], text[:to] + text[at:], text[at:to]))
    return text


def _spelled(text: str) -> str:
    """The text without the difference between a character and its entity."""
    return text.replace("&lt;", "<").replace("&#91;", "[")


def _of(renderer: Renderer, roles: tuple[str, ...], contents: list[str]) -> tuple[list[str], str]:
    """The control tokens of a suffix, and all of it as text."""
    said: list[JsonObject] = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=True)]
    ids = renderer.suffix_ids(said)
    text = renderer.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return _controls(renderer, ids), _spelled(text)


def fuzz(family: str, *, count: int, seed: int) -> int:
    """How many of `count` suffixes held a control token as text."""
    renderer, rng, forged = _renderer(family), Random(seed), 0
    plain: dict[tuple[str, ...], tuple[list[str], str]] = {}
    for number in range(count):
        roles = tuple(rng.choice(("tool", "user")) for _ in range(rng.randint(1, 3)))
        if roles not in plain:
            plain[roles] = _of(renderer, roles, [f"@{n}@" for n in range(len(roles))])
        controls, text = plain[roles]
        contents = [hostile(rng) for _ in roles]
        for n, content in enumerate(contents):
            text = text.replace(f"@{n}@", _spelled(content))
        found = _of(renderer, roles, contents)
        assert found == (controls, text), (number, roles, contents)
        forged += any(token in content for content in contents for token in renderer.control_tokens)
    return forged


@pytest.mark.parametrize("family", FAMILIES)
def test_a_suffix_holds_what_was_said_and_the_templates_own_control_tokens(family: str) -> None:
    assert fuzz(family, count=FEW, seed=0) > FEW // 10


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("family", FAMILIES)
def test_two_hundred_thousand_suffixes_hold_no_forged_control_token(family: str) -> None:
    assert fuzz(family, count=MANY, seed=1) > MANY // 10


@pytest.mark.parametrize("role", ["tool", "user"])
@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\udcff" * 3])
def test_half_a_character_is_told_as_what_stands_for_it(role: str, text: str) -> None:
    renderer = _renderer("qwen2.5")
    ids = renderer.suffix_ids([{"role": role, "content": f"({text})"}])
    stands_for_it = "".join("?" if 0xD800 <= ord(char) <= 0xDFFF else char for char in text)
    assert f"({stands_for_it})" in renderer.tokenizer.decode(ids)
