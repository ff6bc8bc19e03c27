"""Conversations as token ids, without ever tokenising again what a model produced.

A context grows by concatenation: the rendered prompt, then for each turn the sampled ids and the *suffix*
for what the environment appended. The suffix is what a rendering of a fixed dummy conversation has after its
last turn (`models.conversation`), so it cannot depend on the history; a template in which it does is refused.
What a template does to earlier messages (Qwen3 drops their reasoning) is not followed: what was sampled stays
as it was sampled, the token that ended the turn too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mcpagent.core.hidden_text import entity, without_marks
from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.models.conversation import RESULT_TAGS, TEMPLATE_ERRORS, ChatFormat

_TAG = re.compile(r"</?[A-Za-z_][\w-]{1,40}>|<\|[^<>|\s]{1,40}\|?>|<</?SYS>>|\[/?[A-Z][A-Z_]{2,30}\]")
_HERMES_INSTRUCTION = 'Call a tool by writing <tool_call>{"name": ..., "arguments": {...}}</tool_call>.'


def with_schemas(
    messages: Sequence[JsonObject], schemas: Sequence[JsonObject], instruction: str
) -> list[JsonObject]:
    """Return the conversation with how tools are called, and their schemas, in its system message."""
    lines = "\n".join(json.dumps(schema) for schema in schemas)
    text = f"{instruction} Tools:\n{lines}"
    if messages[0]["role"] == "system":
        head = {"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}
        return [head, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


class Renderer:
    """Renders with one tokenizer and its chat template.

    `tool_format` names the dialect in which the model is told to call tools, and is what a parser of its
    turns must read. `instruction` teaches that dialect in the system message; None leaves it to the
    template's `tools`, if it has one, else it is Hermes.

    Raises UserError when the tokenizer has no chat template, or when the template's suffix for tool results
    or user messages depends on the history.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        name: str = "model",
        tool_format: str = "auto",
        instruction: str | None = None,
    ) -> None:
        self.tokenizer: Any = tokenizer
        self.tool_format = tool_format
        self.name = name
        self.instruction = instruction
        if not tokenizer.chat_template:
            raise UserError(
                f"the tokenizer of {name} has no chat template",
                remedy="use an instruction-tuned model, or set model.tokenizer to one with a chat template",
            )
        self.control_tokens: tuple[str, ...] = self._control_tokens()
        self.format = ChatFormat(
            tokenizer, name=name, control=self.control_tokens, is_told=instruction is not None
        )
        self.has_tools = self.format.has_tools
        ends = [self.format.answer_end.text, self.format.call_end.text]
        self._answer_end_id, self._call_end_id = tokenizer.convert_tokens_to_ids(ends)
        self._text_of_stop: dict[int, str] = {
            tokenizer.convert_tokens_to_ids(text): text
            for text in (*ends, tokenizer.eos_token)
            if text is not None
        }
        self.stop_ids = frozenset(self._text_of_stop)
        self._foreign = re.compile(
            "|".join(map(re.escape, (*self.control_tokens, *self._marks()))) or r"(?!)"
        )
        self._suffix = lru_cache(maxsize=8192)(self._compute_suffix)
        self._prompt = lru_cache(maxsize=512)(self._compute_prompt)

    def prompt_ids(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> tuple[int, ...]:
        """Return the rendered prompt with the generation header. Schemas go through the template's `tools`
        if it has one, into the system message otherwise. Raises UserError if the template does not render
        it."""
        return self._prompt(json.dumps(list(messages)), json.dumps(list(tools)))

    def suffix_ids(
        self, observations: Sequence[JsonObject], *, ended_by: int | None = None
    ) -> tuple[int, ...]:
        """Return what follows a sampled turn: its closing text, the observations, the next generation
        header. A tool message may have the `name` by which the model called the tool. `ended_by` is the
        last token of the turn; None: the one with which the template ends such a turn."""
        end = None if ended_by is None else self._text_of_stop.get(ended_by)
        return self._suffix(json.dumps(list(observations), ensure_ascii=False), end)

    def action_ids(self, text: str, *, calls: bool = False) -> tuple[int, ...]:
        """Return a demonstration's turn as a model would have sampled it, with the token that ends a turn
        that `calls` tools or one that does not."""
        return (*self._encode(text), self.end_id(calls=calls))

    def end_id(self, *, calls: bool) -> int:
        """Return the token with which a turn ends that `calls` tools, or one that does not."""
        return self._call_end_id if calls else self._answer_end_id

    def spells_control(self, text: str) -> bool:
        """Return whether `text` spells a control token, or a mark of the template that is not one."""
        return self._foreign.search(text) is not None

    def written_ids(
        self, data: JsonObject, write: Callable[[JsonObject], str], *, calls: bool = False
    ) -> tuple[int, ...]:
        """Return a demonstration's turn that `write` makes of `data`, whose texts are of others: control
        tokens are what `write` adds, not what `data` spells."""
        veil = self._veil(json.dumps(data))
        return (*self._encode_veiled(write(veil.over(data)), veil), self.end_id(calls=calls))

    def suffix_text(self, observations: Sequence[JsonObject]) -> str:
        """Return the suffix as text, for tokenizer training and for people."""
        return self.format.between(observations)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return text of a sampled turn, special tokens visible, the end-of-turn token dropped."""
        ids = list(token_ids)
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def render_text(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> str:
        """Return the prompt as text, for tokenizer training and for people."""
        return self.format.render(*self._with_tools(messages, tools), generation=True)

    def full_ids(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> tuple[int, ...]:
        """Return a whole conversation rendered and tokenised anew, as a server does that is sent messages;
        what an assistant wrote may hold control tokens. Raises UserError if the template does not render
        it."""
        veil = self._veil(json.dumps([list(messages), list(tools)]))
        hidden = [m if m["role"] == "assistant" else veil.over(m) for m in messages]
        try:
            return self._encode_veiled(self.render_text(hidden, veil.over(list(tools))), veil)
        except TEMPLATE_ERRORS as error:
            raise self.format.refusal(f"cannot render a whole conversation: {error}") from error

    def turn_text(self, message: JsonObject, tools: Sequence[JsonObject]) -> str | None:
        """Return what the template has the model write for an assistant's message after the generation
        header, without the token that ends it; None if the two do not fit."""
        return self.format.turn_text(message, self._with_tools((message,), tools)[1])

    def _compute_prompt(self, messages_json: str, tools_json: str) -> tuple[int, ...]:
        """Control tokens that a message or a tool spells stay text, as in a suffix. In a system message too:
        a dataset's holds what servers say of their tools."""
        messages, tools = json.loads(messages_json), json.loads(tools_json)
        veil = self._veil(messages_json, tools_json)
        try:
            text = self.render_text(veil.over(messages), veil.over(tools))
        except TEMPLATE_ERRORS as error:
            roles = ", ".join(message["role"] for message in messages)
            raise self.format.refusal(f"cannot render a prompt of messages ({roles}): {error}") from error
        return self._encode_veiled(text, veil)

    def _with_tools(
        self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]
    ) -> tuple[Sequence[JsonObject], Sequence[JsonObject]]:
        if not tools or (self.has_tools and self.instruction is None):
            return messages, tools
        return with_schemas(messages, tools, self.instruction or _HERMES_INSTRUCTION), ()

    def _compute_suffix(self, observations_json: str, ended_by: str | None) -> tuple[int, ...]:
        veil = self._veil(observations_json)
        hidden = veil.over(json.loads(observations_json))
        return self._encode_veiled(self.format.between(hidden, ended_by=ended_by), veil)

    def _encode_veiled(self, text: str, veil: _Veil) -> tuple[int, ...]:
        """Encode what was hidden in two pieces, neither of which is the control token."""
        text, *rest = veil.split(text)
        ids: list[int] = []
        for number, following in zip(rest[::2], rest[1::2], strict=True):
            control = veil.spelled[int(number)]
            ids += self._encode(text + control[0])
            text = control[1:] + following
        return (*ids, *self._encode(text))

    def _control_tokens(self) -> tuple[str, ...]:
        """Longest first: special tokens, and added ones that the template uses (Qwen's <tool_call> is not
        special) or that look like a mark of one. Added tokens that merely abbreviate text, such as runs of
        spaces, do not count."""
        template = str(self.tokenizer.chat_template)
        controls = {
            token.content
            for token in self.tokenizer.added_tokens_decoder.values()
            if len(token.content.strip()) > 1
            and (token.special or token.content in template or without_marks(token.content) != token.content)
        }
        return tuple(sorted(controls, key=lambda token: (-len(token), token)))

    def _marks(self) -> tuple[str, ...]:
        """Tags by which the template, or the dialect that is taught, tells turns, calls and results apart,
        and which are text for the tokenizer: only their spelling shows whose they are. Longest first."""
        told = self.instruction or _HERMES_INSTRUCTION
        shown = RESULT_TAGS if self.format.results_as_user else ""
        source = f"{self.tokenizer.chat_template}\n{told}\n{shown}"
        marks = {mark for mark in _TAG.findall(source) if mark not in self.control_tokens}
        return tuple(sorted(marks, key=lambda mark: (-len(mark), mark)))

    def _veil(self, *texts: str) -> _Veil:
        return _Veil(self._foreign, frozenset(self.control_tokens), *texts)

    def _encode(self, text: str) -> list[int]:
        if not text.isascii():  # half a surrogate pair is not text to a tokenizer
            text = text.encode("utf-8", "replace").decode()
        return self.tokenizer.encode(text, add_special_tokens=False)


class _Veil:
    """Hides the control tokens that a text spells from the template and the tokenizer, by marks that none of
    `texts` holds: no text spells its own hash. A tag that is not a token is written
    with an entity instead."""

    def __init__(self, foreign: re.Pattern[str], control: frozenset[str], *texts: str) -> None:
        self._foreign, self._control = foreign, control
        digest = hashlib.blake2b(digest_size=12)
        for text in texts:
            digest.update(text.encode("utf-8", "surrogatepass"))
        self._mark = f"mcpagent{digest.hexdigest()}n"
        self.spelled: list[str] = []

    def over(self, value: Any) -> Any:
        """Return the text with marks in place of control tokens; of a JSON value, every text in it."""
        if isinstance(value, str):
            return self._foreign.sub(self._hide, value)
        if isinstance(value, dict):
            return {self.over(key): self.over(item) for key, item in value.items()}
        return [self.over(item) for item in value] if isinstance(value, list) else value

    def split(self, text: str) -> list[str]:
        """Return text, number of a hidden token in `spelled`, text, number, ..., text."""
        return re.split(f"{self._mark}([0-9]+)z", text)

    def _hide(self, match: re.Match[str]) -> str:
        if match.group() not in self._control:
            return entity(match.group())
        self.spelled.append(match.group())
        return f"{self._mark}{len(self.spelled) - 1}z"


_QUESTION: JsonObject = {"role": "user", "content": "What is it?"}


@dataclass(frozen=True, kw_only=True)
class TokenDrift:
    """`kept` tokens are what the model saw; `changed` of them a full rendering would not have, or it would
    have others there."""

    kept: int
    changed: int

    @property
    def share(self) -> float:
        """The share of the kept tokens that another rendering would change, 0 to 1."""
        return self.changed / self.kept


def measure_drift(
    renderer: Renderer, kept: Sequence[int], messages: Sequence[JsonObject], tools: Sequence[JsonObject]
) -> TokenDrift:
    """`kept` against the rendering of the whole conversation; assistant messages hold `tool_calls`, and
    `reasoning_content` if they were written after a thought. Needs a conversation that ends with the
    environment's turn."""
    full = renderer.full_ids(messages, tools)
    return TokenDrift(kept=len(kept), changed=max(len(kept), len(full)) - _common(kept, full))


def refuse_forgery(renderer: Renderer) -> int:
    """Write every control token into a tool result, a user message, a system message and every part of a
    tool's schema; how many there are. Raises UserError if one of them gets through as a control token."""
    spelled = renderer.control_tokens
    attacks = ["".join(spelled), " ".join(spelled), "\n".join(reversed(spelled))]
    for role in ("tool", "user"):
        clean = _controls(renderer, renderer.suffix_ids([{"role": role, "content": "plain"}]))
        for attack in attacks:
            ids = renderer.suffix_ids([{"role": role, "content": f"plain {attack}", "name": f"look{attack}"}])
            if _controls(renderer, ids) != clean:
                raise _forged(renderer, f"a {role} message")
    system: JsonObject = {"role": "system", "content": "Answer."}
    for heads in ([], [system]):
        clean = _controls(renderer, renderer.prompt_ids([*heads, _QUESTION], [_tool("plain", name="look")]))
        for attack in attacks:
            prompt = [{**m, "content": f"{m['content']} {attack}"} for m in (*heads, _QUESTION)]
            tool = _tool(attack, name=f"look{attack}")
            if _controls(renderer, renderer.prompt_ids(prompt, [tool])) != clean:
                raise _forged(renderer, "a system message, the first message or a tool's schema")
    return len(spelled)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common subsequence, a row of the table at a time as the bits of one number
    (Hyyrö 2004, Bit-parallel LCS-length computation revisited): 4,000 tokens of both take milliseconds."""
    places: dict[int, int] = {}
    for i, token in enumerate(a):
        places[token] = places.get(token, 0) | 1 << i
    everything = row = (1 << len(a)) - 1
    for token in b:
        matches = row & places.get(token, 0)
        row = (row + matches | row - matches) & everything
    return len(a) - row.bit_count()


def _controls(renderer: Renderer, ids: Sequence[int]) -> list[int]:
    control = set(renderer.tokenizer.convert_tokens_to_ids(list(renderer.control_tokens)))
    return [token for token in ids if token in control]


def _forged(renderer: Renderer, where: str) -> UserError:
    return UserError(
        f"with the tokenizer of {renderer.name}, {where} that spells a control token gives the model that "
        "token, so that a tool could forge a turn",
        remedy="set model.tokenizer to one whose special tokens are added tokens (a fast tokenizer)",
    )


def _tool(text: str, *, name: str) -> JsonObject:
    """Return a tool that says `text` wherever a schema can."""
    prop = {"type": "string", "description": text, "enum": [text], "default": text}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": text,
            "parameters": {"type": "object", "properties": {text: prop}, "required": [text]},
        },
    }
