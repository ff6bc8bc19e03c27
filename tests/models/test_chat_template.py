"""Chat templates of strangers: rendered as transformers does, in bounded time and memory whatever they do."""

from __future__ import annotations

import os
import resource
import select
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mcpagent.demo.warm_start import train_tokenizer
from mcpagent.env.tool_format import open_renderer
from mcpagent.errors import UserError
from mcpagent.models.chat_template import RENDER_CPU_S, render_chat
from mcpagent.models.conversation import TEMPLATE_ERRORS
from mcpagent.models.tokens import Renderer
from tests.house import ROOT
from tests.models import templates
from tests.models.test_forgery import FAMILIES
from tests.running import Python

PLAIN = """{%- for m in messages -%}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
# Templates that take time, which only their CPU seconds bound, and what ends them.
ENDLESS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a macro that calls itself twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "a power": "{% set n = namespace(x=3) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "a constant": "{{ 7 ** (7 ** 9) }}",  # while it is compiled
}
# Those that take memory, or are refused at once.
GREEDY = {
    "a product": "{{ 'x' * 10**10 }}",
    "a long range": "{% for i in range(10**12) %}{% endfor %}",
    "a list of ranges": "{{ (range(99999) | list * 10**6) | length }}",
    "a macro without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a join": "{{ (['x' * 10**6] * 10**5) | join('y') }}",
    "doubling": (
        "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}"
    ),
    "centring": "{{ 'x' | center(10**10) }}",
    "a width": "{{ '%10000000000d' | format(1) }}",
    "a replacement": "{{ ('x' * 10**6).replace('x', 'x' * 10**6) }}",
    "a deep list": (
        "{% set n = namespace(s=[]) %}{% for i in range(99999) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s }}"
    ),
    "a long output": "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
}
ALL = {**ENDLESS, **GREEDY}


def _tokenizer(template: str) -> Any:
    tokenizer = train_tokenizer([], vocab_size=0, catalog_hash="")
    tokenizer.chat_template = template
    return tokenizer


# Each takes its two seconds: the others say nothing new but that the mechanism knows no ways.
SLOW = {"a macro that calls itself twice", "a power"}
KINDS = [pytest.param(kind, marks=[pytest.mark.slow] if kind in SLOW else []) for kind in ALL]


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_that_takes_too_much_is_one_error_in_bounded_time_and_memory(kind: str) -> None:
    children, own = (resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF))
    with pytest.raises(UserError, match="the chat template of odd") as caught:
        open_renderer(_tokenizer(ALL[kind] + PLAIN), name="odd")
    if kind in ENDLESS:
        assert f"takes more than {RENDER_CPU_S:g} CPU seconds" in str(caught.value)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
    assert seconds < 10 * RENDER_CPU_S  # without a bound they never end
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - own.ru_maxrss
    assert grown * 1024 < 2**28


@pytest.mark.parametrize("kind", ["nested loops", "a product"])
def test_a_template_that_waits_for_a_word_takes_no_more_either(kind: str) -> None:
    """It passes every check, and does its work when a user or a tool says the word."""
    trap = f"{{% if 'NVDA' in messages[-1].content %}}{ALL[kind]}{{% endif %}}"
    renderer = open_renderer(_tokenizer(trap + PLAIN), name="odd")
    assert renderer.prompt_ids([{"role": "user", "content": "MSFT"}], ())
    with pytest.raises(UserError, match="the chat template of odd takes more than"):
        renderer.suffix_ids([{"role": "tool", "content": "NVDA"}])
    assert renderer.suffix_ids([{"role": "tool", "content": "AAPL"}])  # the next one renders as before


HABITS = {name: text for name, text in vars(templates).items() if name.isupper() and isinstance(text, str)}
REAL = {
    **HABITS,
    **{name: template for name, (_, _, template) in FAMILIES.items()},
    "every part of the environment": (
        "  {% set kept = 1 %}\n{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}\n"
        "  {%- generation %}{% set kept = 2 %}{{ m | tojson(indent=2) }}{% endgeneration %}\n{% endfor %}"
        "{{ kept }}{{ bos_token }}{{ eos_token }}{{ documents }}{{ {'b': 'ü<>&', 'a': 1} | tojson }}"
        "{{ {'b': 1, 'a': '\u00fc'} | tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}"
        "{{ strftime_now('%Y') }}{{ tools }}{{ messages[0].missing }}{{ messages[1:] }}\n"
    ),
    "a refusal": "{{ raise_exception('never') }}",
    "an error of types": "{{ messages + 1 }}",
    "no template": "{% if %}",
}


@pytest.mark.parametrize("name", REAL)
def test_a_template_renders_as_transformers_renders_it(name: str) -> None:
    tokenizer = _tokenizer(REAL[name])
    tool = {"type": "function", "function": {"name": "look", "description": "Über <b>", "parameters": {}}}
    messages = [
        {"role": "system", "content": "Be brief. \U0001f600 \u2028"},
        {"role": "user", "content": "What?\n"},
        {"role": "assistant", "content": "", "reasoning_content": "so", "tool_calls": [
            {"id": "mcpcall00", "type": "function", "function": {"name": "look", "arguments": {"x": 1.0}}}]},
        {"role": "tool", "content": "5", "name": "look", "tool_call_id": "mcpcall00"},
    ]  # fmt: skip
    for tools in ([], [tool]):
        for generation in (True, False):
            expected: str | None
            try:
                expected = tokenizer.apply_chat_template(
                    messages, tools=tools or None, tokenize=False, add_generation_prompt=generation
                )
            except TEMPLATE_ERRORS:
                expected = None
            try:
                text = render_chat(tokenizer, messages, tools, generation=generation, name="odd")
            except TEMPLATE_ERRORS:
                text = None
            assert text == expected
    if name in ("a refusal", "an error of types", "no template"):
        with pytest.raises(UserError, match="the chat template of odd"):
            Renderer(tokenizer, name="odd")


@pytest.mark.system
def test_the_process_that_renders_knows_no_key_and_ends_with_its_parent(tmp_path: Path) -> None:
    """It ends even where its parent has no time for it."""
    program = f"""
import os, pathlib, sys
from tests.models.test_chat_template import PLAIN, _tokenizer
from mcpagent.models.tokens import Renderer
Renderer(_tokenizer(PLAIN), name="odd")
children = pathlib.Path(f"/proc/{{os.getpid()}}/task/{{os.getpid()}}/children").read_text().split()
def told(child, what):
    return pathlib.Path(f"/proc/{{child}}/{{what}}").read_text()
(child,) = [child for child in children if "template_worker" in told(child, "cmdline")]
held = told(child, "environ")
pathlib.Path({str(tmp_path / "child")!r}).write_text(f"{{child}} {{'tok_live' in held}}")
os.kill(os.getpid(), 9)
"""
    environment = {**os.environ, "SHOP_TOKEN": "tok_live_9f8E7d6C5b4A"}
    with Python("-c", program, env=environment, cwd=ROOT) as process:
        process.wait(timeout=120)
    child, _, knows_key = (tmp_path / "child").read_text().partition(" ")
    assert knows_key == "False"
    with suppress(ProcessLookupError):  # it has ended
        pidfd = os.pidfd_open(int(child))
        is_over = bool(select.select([pidfd], [], [], 20)[0])
        os.close(pidfd)
        assert is_over
