"""Conversations as token ids, without ever tokenising again what a model produced.

A context grows by concatenation: the rendered prompt, then for each turn the sampled ids and the *suffix*
for what the environment appended. The suffix is what a rendering of a fixed dummy conversation has after its
last answer, so it cannot depend on the history; a template where it does is refused. What a template does to
earlier messages (Qwen3 drops their reasoning) is not followed: what was sampled stays as it was sampled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError

from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError

_ANSWER = "mcpagent-answer"  # found again in a rendering: nothing before it spells it
# Non-empty reasoning: plain Qwen3 puts an empty think block on the last assistant message only.
_LAST: JsonObject = {"role": "assistant", "content": _ANSWER, "reasoning_content": "thought"}
_DUMMY: tuple[JsonObject, ...] = ({"role": "user", "content": "question"}, _LAST)
_LONGER_DUMMY: tuple[JsonObject, ...] = (
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": "one", "reasoning_content": "more"},
    {"role": "user", "content": "second"},
    _LAST,
)


class Renderer:
    """Renders with one tokenizer and its chat template.

    Raises UserError when the tokenizer has no chat template, or when the template's suffix for tool results
    or user messages depends on the history.
    """

    def __init__(self, tokenizer: Any, *, name: str = "model") -> None:
        self.tokenizer = tokenizer
        self._name = name
        if not tokenizer.chat_template:
            raise UserError(
                f"the tokenizer of {name} has no chat template",
                remedy="use an instruction-tuned model, or set model.tokenizer to one with a chat template",
            )
        self.stop_ids: frozenset[int] = frozenset(self._turn_end_ids())
        self._control = self._control_pattern()
        self._native_tools = self._render(_DUMMY, tools=(_PROBE_TOOL,)) != self._render(_DUMMY)
        self._suffix = lru_cache(maxsize=8192)(self._compute_suffix)
        self._prompt = lru_cache(maxsize=512)(self._compute_prompt)
        self._refuse_history_dependence()

    def prompt_ids(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> tuple[int, ...]:
        """The rendered prompt with the generation header. Schemas go through the template's `tools` where it
        has one, into the system message otherwise."""
        return self._prompt(json.dumps(list(messages)), json.dumps(list(tools)))

    def suffix_ids(self, observations: Sequence[JsonObject]) -> tuple[int, ...]:
        """What follows a sampled turn: its closing text, the observations, the next generation header."""
        return self._suffix(tuple((o["role"], o["content"]) for o in observations))

    def action_ids(self, text: str) -> tuple[int, ...]:
        """A demonstration's turn as a model would have sampled it, with the end-of-turn token."""
        return (*self._encode(text), self._turn_end)

    def suffix_text(self, observations: Sequence[JsonObject]) -> str:
        """The suffix as text, for tokenizer training and for people."""
        return self._suffix_between(_DUMMY, tuple((o["role"], o["content"]) for o in observations))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a sampled turn, special tokens visible, the end-of-turn token dropped."""
        ids = list(token_ids)
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def render_text(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> str:
        """The prompt as text, for tokenizer training and for people."""
        return self._render(*self._with_tools(messages, tools), generation=True)

    def _compute_prompt(self, messages_json: str, tools_json: str) -> tuple[int, ...]:
        return tuple(self._encode(self.render_text(json.loads(messages_json), json.loads(tools_json))))

    def _with_tools(
        self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]
    ) -> tuple[Sequence[JsonObject], Sequence[JsonObject]]:
        if self._native_tools or not tools:
            return messages, tools
        schemas = "\n".join(json.dumps(t) for t in tools)
        text = (
            'Call a tool by writing <tool_call>{"name": ..., "arguments": {...}}</tool_call>. '
            f"Tools:\n{schemas}"
        )
        if messages[0]["role"] == "system":
            head = {"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}
            return [head, *messages[1:]], ()
        return [{"role": "system", "content": text}, *messages], ()

    def _compute_suffix(self, observations: tuple[tuple[str, str], ...]) -> tuple[int, ...]:
        """A tool result that spells a control token stays text: such a spelling is hidden from the template
        by a mark, and encoded in two pieces, neither of which is the token."""
        mark = "mcpagentmark"
        while any(mark in content for _, content in observations):
            mark += "x"
        spelled: list[str] = []

        def hide(match: re.Match[str]) -> str:
            spelled.append(match.group())
            return f"{mark}{len(spelled) - 1}z"

        hidden = tuple((role, self._control.sub(hide, content)) for role, content in observations)
        text, *rest = re.split(f"{mark}([0-9]+)z", self._suffix_between(_DUMMY, hidden))
        ids: list[int] = []
        for number, following in zip(rest[::2], rest[1::2], strict=True):
            control = spelled[int(number)]
            ids += self._encode(text + control[0])
            text = control[1:] + following
        return (*ids, *self._encode(text))

    def _control_pattern(self) -> re.Pattern[str]:
        """Control tokens: special ones, and added ones that the template uses (Qwen's <tool_call> is not
        special). Added tokens that merely abbreviate text, such as runs of spaces, are none."""
        template = str(self.tokenizer.chat_template)
        controls = [
            token.content
            for token in self.tokenizer.added_tokens_decoder.values()
            if len(token.content.strip()) > 1 and (token.special or token.content in template)
        ]
        return re.compile("|".join(map(re.escape, sorted(controls, key=len, reverse=True))) or r"(?!)")

    def _suffix_between(self, dummy: Sequence[JsonObject], observations: tuple[tuple[str, str], ...]) -> str:
        """The text between the end of the dummy's last turn and what the model writes next."""
        before = self._after_answer(dummy, generation=False)
        messages = [*dummy, *({"role": r, "content": c} for r, c in observations)]
        after = self._after_answer(messages, generation=True)
        if not after.startswith(before):
            raise self._refusal(
                f"ends a turn differently when messages follow ({before!r} does not begin {after!r}), so it "
                "cannot be told what comes after a sampled turn"
            )
        return after[before.index(self._turn_end_text) + len(self._turn_end_text) :]

    def _after_answer(self, messages: Sequence[JsonObject], *, generation: bool) -> str:
        try:
            text = self._render(messages, generation=generation)
        except TemplateError as error:
            raise self._refusal(f"cannot render a {messages[-1]['role']} message: {error}") from error
        _, answer, tail = text.partition(_ANSWER)
        if not answer:
            raise self._refusal("leaves out what the assistant said")
        return tail

    def _refuse_history_dependence(self) -> None:
        for role in ("tool", "user"):
            probe = ((role, "a result"),)
            suffix = self._suffix_between(_DUMMY, probe)
            if "a result" not in suffix:
                raise self._refusal(f"leaves out what a {role} message says")
            if suffix != self._suffix_between(_LONGER_DUMMY, probe):
                raise self._refusal(f"renders a {role} message differently after a longer history")

    def _refusal(self, reason: str) -> UserError:
        return UserError(
            f"the chat template of {self._name} {reason}",
            remedy="use a model whose template appends messages without looking back, or set model.tokenizer "
            "to one with a training variant of this template",
        )

    def _turn_end_ids(self) -> list[int]:
        """The token that ends an assistant turn in this template, and the tokenizer's eos."""
        tail = self._after_answer(_DUMMY, generation=False)
        ids = [i for i in self._encode(tail) if i in self.tokenizer.added_tokens_decoder]
        if not ids:
            raise self._refusal("ends an assistant turn without a special token")
        self._turn_end: int = ids[0]
        self._turn_end_text: str = self.tokenizer.decode(ids[:1])
        eos = self.tokenizer.eos_token_id
        return [self._turn_end] + ([eos] if eos is not None else [])

    def _render(
        self, messages: Sequence[JsonObject], tools: Sequence[JsonObject] = (), *, generation: bool = False
    ) -> str:
        return self.tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=generation
        )

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)


_PROBE_TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Probe.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
    },
}
