"""The families that the package `renderers` knows token by token: what it appends after a turn is what we
append, and it reads the same calls. It is installed into pytest's cache; its gpt-oss needs a vocabulary from
the network."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
from filelock import FileLock

from mcpagent.env.parsing import parse_action
from tests.models import test_templates
from tests.models.test_templates import _TOOLS, ONE_CALL, _calls, _renderer, _results, _tokenizer
from tests.third_party.registries import install

pytestmark = pytest.mark.registry
templates = test_templates.templates
PACKAGES = ("renderers==0.1.12", "prime-pydantic-config==0.4.3", "openai-harmony==0.0.8", "tiktoken==0.14.0")
# The template, the configuration of its renderer there, special tokens that it looks for besides.
FAMILIES = [
    (
        "gemma4_v5",
        "Gemma4RendererConfig",
        ("<bos>", "<eos>", "<|think|>", "<|image>", "<|image|>", "<image|>"),
    ),
    ("glm4moe", "GLM45RendererConfig", ()),
    (
        "llama3_1",
        "Llama3RendererConfig",
        ("<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|python_tag|>"),
    ),
    ("qwen3", "Qwen3RendererConfig", ()),
    ("qwen3_5_think", "Qwen35RendererConfig", ()),
    ("qwen3_vl", "Qwen3VLRendererConfig", ()),
]


@pytest.fixture(scope="module")
def package(pytestconfig: pytest.Config) -> Any:
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("third_party") / "renderers"
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / "renderers").is_dir():
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
            install([*pip, "--target", str(folder), *PACKAGES])
    sys.path.append(str(folder))
    yield importlib.import_module("renderers")
    sys.path.remove(str(folder))


@pytest.mark.parametrize(("name", "config", "added"), FAMILIES)
def test_another_librarys_tokens_after_a_turn_are_ours(
    package: Any, templates: dict[str, str], name: str, config: str, added: tuple[str, ...]
) -> None:
    tokenizer = _tokenizer(templates[name])
    tokenizer.add_tokens(list(added), special_tokens=True)
    ours = _renderer(templates, name, tokenizer=tokenizer)
    theirs = package.create_renderer(tokenizer, getattr(package, config)())
    head = [{"role": "system", "content": "Help me."}, {"role": "user", "content": "Weigh it."}]
    prompt = list(ours.prompt_ids(head, _TOOLS))
    tools = [tool["function"] for tool in _TOOLS]
    called = ("look",) if name in ONE_CALL else ("look", "weigh")
    cases: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        (_calls(*called), _results(*called)),
        ({"role": "assistant", "content": "It is 5."}, [{"role": "user", "content": "And?"}]),
    ]
    for turn, said in cases:
        text = ours.turn_text(turn, _TOOLS)
        assert text is not None
        sampled = list(ours.action_ids(text, calls="tool_calls" in turn))
        assert set(sampled[-1:]) <= set(theirs.get_stop_token_ids())
        bridged = theirs.bridge_to_next_turn(prompt, sampled, said, tools=tools)
        if bridged is None:  # it renders the whole anew there, as a server would
            assert turn is cases[1][0]
            continue
        assert bridged.token_ids == [*prompt, *sampled, *ours.suffix_ids(said, ended_by=sampled[-1])]
        parsed = theirs.parse_response(sampled, tools=tools, prompt_ids=prompt)
        read = parse_action(
            ours.decode(sampled),
            tool_format=ours.tool_format,
            schema_of=lambda _: _TOOLS[0]["function"]["parameters"],
        )
        assert [(c.name, c.arguments) for c in parsed.tool_calls] == [
            (c.tool, c.arguments) for c in read.calls
        ]
