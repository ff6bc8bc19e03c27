"""Conversations as token ids, without ever tokenising again what a model produced.

A context grows by concatenation: the rendered prompt, then for each turn the sampled ids and the *suffix*
for what the environment appended. The suffix is the difference of two renderings of a fixed dummy
conversation, so it cannot depend on the history; a template where it does is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError

# Non-empty reasoning: plain Qwen3 puts an empty think block on the last assistant message only, which would
# make the two renderings differ before the suffix begins.
_DUMMY: tuple[JsonObject, ...] = (
    {"role": "user", "content": "question"},
    {"role": "assistant", "content": "answer", "reasoning_content": "thought"},
)
_LONGER_DUMMY: tuple[JsonObject, ...] = (
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": "one", "reasoning_content": "more"},
    {"role": "user", "content": "second"},
    {"role": "assistant", "content": "two", "reasoning_content": "thoughts"},
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
        self._specials = tuple(t.content for t in tokenizer.added_tokens_decoder.values() if t.content)
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
        return tuple(self._suffix_ids_after(_DUMMY, observations))

    def _suffix_ids_after(
        self, dummy: Sequence[JsonObject], observations: tuple[tuple[str, str], ...]
    ) -> list[int]:
        contents = [content for _, content in observations]
        if not any(special in content for content in contents for special in self._specials):
            return self._encode(self._suffix_between(dummy, observations))
        # A tool result that spells a control token must stay text: its content is encoded apart, with
        # control tokens switched off, between the pieces of the scaffold.
        marks = [f"\x02{i}\x03" for i in range(len(contents))]
        scaffold = self._suffix_between(
            dummy, tuple((r, m) for (r, _), m in zip(observations, marks, strict=True))
        )
        ids: list[int] = []
        for mark, content in zip(marks, contents, strict=True):
            before, _, scaffold = scaffold.partition(mark)
            ids += self._encode(before)
            ids += self.tokenizer.encode(content, add_special_tokens=False, split_special_tokens=True)
        return ids + self._encode(scaffold)

    def _suffix_between(self, dummy: Sequence[JsonObject], observations: tuple[tuple[str, str], ...]) -> str:
        base = self._render(dummy)
        messages = [*dummy, *({"role": r, "content": c} for r, c in observations)]
        full = self._render(messages, generation=True)
        if not full.startswith(base):
            raise UserError(
                f"the chat template of {self._name} rewrites earlier messages when one is appended, so "
                "tokens kept from sampling would drift from what the template gives",
                remedy="use a model whose template only appends, or a training variant of this template",
            )
        end = base.rfind(self._turn_end_text) + len(self._turn_end_text)
        return base[end:] + full[len(base) :]

    def _refuse_history_dependence(self) -> None:
        for role in ("tool", "user"):
            probe = ((role, "a result"),)
            if self._suffix_ids_after(_DUMMY, probe) != self._suffix_ids_after(_LONGER_DUMMY, probe):
                raise UserError(
                    f"the chat template of {self._name} renders a {role} message differently after a longer "
                    "history",
                    remedy="use a model whose template only appends, or a training variant of this template",
                )

    def _turn_end_ids(self) -> list[int]:
        """The token that ends an assistant turn in this template, and the tokenizer's eos."""
        text = self._render(_DUMMY)
        tail = text[text.rfind("answer") + len("answer") :]
        ids = [i for i in self._encode(tail) if i in self.tokenizer.added_tokens_decoder]
        eos = self.tokenizer.eos_token_id
        if not ids and eos is None:
            raise UserError(
                f"the chat template of {self._name} ends an assistant turn without a special token",
                remedy="use a model whose template marks the end of a turn",
            )
        self._turn_end: int = ids[0] if ids else eos
        self._turn_end_text: str = self.tokenizer.decode([self._turn_end])
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
