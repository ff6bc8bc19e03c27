"""What a chat template does with a conversation: which roles it takes, which token ends a turn, and what
stands between two turns.

All of it is read off renderings of fixed dummy conversations. Families differ in more than their marks:
Gemma 3 and Cohere have no tool messages and want roles to alternate, gpt-oss and Gemma 4 end a call with
another token than an answer and write the tool's name into its result, GLM-4 ends a turn with the first token
of the next message. A template that looks back at the history is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.models.chat_template import RenderLimitError, render_chat

_ANSWER = "mcpagent-answer"  # found again in a rendering: nothing before it spells it
_CALL_ID = "mcpcall"  # with two digits nine characters, as Mistral's template wants
_TOOL = "mcpagent_probe"
UNNAMED = "unknown"  # the tool of a result whose call could not be read; Gemma's template has the same word
# A template is its author's program, and fails in its own ways.
TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError)
RESULT_TAGS = "<tool_response></tool_response>"  # around results that are told as user messages, as Qwen's


def thought(text: str) -> JsonObject:
    """Return the keys of an assistant's message under which templates look for its reasoning."""
    return {"reasoning_content": text, "thinking": text}


def calling_message(*calls: tuple[str, JsonObject]) -> JsonObject:
    """Return an assistant's calls, each a name and arguments, as chat APIs hold them."""
    made = [
        {"id": _call_id(at), "type": "function", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": "", "tool_calls": made}


def tool_message(content: str, *, name: str = _TOOL, call: int = 0) -> JsonObject:
    """Return the answer to the call of `name` that was the message's number `call`."""
    return {"role": "tool", "content": content, "name": name, "tool_call_id": _call_id(call)}


def seen_messages(observations: Sequence[JsonObject]) -> list[JsonObject]:
    """Return what the environment said after a turn as chat APIs hold it: results numbered as the calls that
    they answer, each with the `name` by which the model called the tool."""
    return [
        tool_message(one["content"], name=one.get("name") or UNNAMED, call=place)
        if one["role"] == "tool"
        else {"role": one["role"], "content": one["content"]}
        for place, one in enumerate(observations)
    ]


def _call_id(number: int) -> str:
    return f"{_CALL_ID}{number:02}"


# Non-empty reasoning: plain Qwen3 puts an empty think block on the last assistant message only.
_QUESTION: JsonObject = {"role": "user", "content": "question"}
_UNTHINKING: JsonObject = {"role": "assistant", "content": _ANSWER}
_ANSWERED: JsonObject = {**_UNTHINKING, **thought("thought")}
_LONGER: tuple[JsonObject, ...] = (
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": "one", **thought("more")},
)
_SYSTEM = "mcpagent-system"
_RESULT = "a result"
_PROBE_TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Probe.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
    },
}


@dataclass(frozen=True, kw_only=True)
class TurnEnd:
    """The token that a model samples last in a turn. `closing` is what a rendering has from the end of the
    turn's text up to where `text` is over, once messages follow; there it may be another token (gpt-oss has
    <|end|> for <|return|>), and nothing if the template has none. `opens_next`: it is the first token of
    what follows, not the last of the turn."""

    text: str
    closing: str
    opens_next: bool = False


class ChatFormat:
    """The behaviour of one tokenizer's chat template with conversations.

    `control` are the tokenizer's control tokens, longest first. `is_told`: calls are taught in the system
    message, so that a turn with calls is text for the template. Raises UserError if the template's suffix
    for tool results or user messages depends on the history, or if no token ends a turn.
    """

    def __init__(self, tokenizer: Any, *, name: str, control: Sequence[str], is_told: bool) -> None:
        self._tokenizer, self._name = tokenizer, name
        self._control = re.compile("|".join(map(re.escape, control)) or r"(?!)")
        self._has_parts = False
        self._takes_system = True
        self.results_as_user = False
        self._find_form_of_content()
        self._takes_system = self._shows_system()
        self.has_tools = self._shows_tools()
        self._calls_are_text = is_told or not self._writes(1)
        self._takes_many_calls = not self._calls_are_text and self._writes(2)
        self.answer_end = self._end_of_answer()
        self._find_role_of_results()
        self.call_end = self._end_of_call()
        if self._calls_are_text and not self.results_as_user and self._looks_back_at_results():
            self.results_as_user = True  # DeepSeek: it has tool messages only after its own calls
            self.call_end = self._end_of_call()
        self._refuse_history_dependence()

    def render(
        self, messages: Sequence[JsonObject], tools: Sequence[JsonObject] = (), *, generation: bool = False
    ) -> str:
        """Return the conversation as the template writes it, `generation` with the header of the next
        turn."""
        taken = self._as_taken(messages)
        return render_chat(self._tokenizer, taken, tools, generation=generation, name=self._name)

    def _if_rendered(
        self, messages: Sequence[JsonObject], tools: Sequence[JsonObject] = (), *, generation: bool = False
    ) -> str | None:
        """Return what `render` does; None if the template does not take the conversation."""
        try:
            return self.render(messages, tools, generation=generation)
        except TEMPLATE_ERRORS:
            return None

    def between(
        self, said: Sequence[JsonObject], *, ended_by: str | None = None, history: Sequence[JsonObject] = ()
    ) -> str:
        """Return the text between a turn's last token, `ended_by` (None: the one that the template
        writes), and what the model writes next."""
        seen = seen_messages(said)
        names = [message["name"] for message in seen if message["role"] == "tool"]
        end = self.call_end if names else self.answer_end
        turn = self._turn(names)
        if history and history[-1]["role"] == "tool":  # the model goes on without a question
            turn = turn[1:]
        tail = self._tail([*history, *turn, *seen], names)
        if not tail.startswith(end.closing):
            raise self.refusal(
                f"ends a turn differently when messages follow ({end.closing!r} does not begin {tail!r}), so "
                "it cannot be told what comes after a sampled turn"
            )
        rest = tail[len(end.closing) :]
        if ended_by is None or ended_by == end.text:
            return rest
        opens_other = any(e.opens_next and e.text == ended_by for e in (self.answer_end, self.call_end))
        if end.opens_next or opens_other:  # the turn's own end, or what opens the next, was not sampled
            return end.text + rest
        return rest.removeprefix(ended_by)

    def turn_text(self, message: JsonObject, tools: Sequence[JsonObject]) -> str | None:
        """Return what the template has the model write for an assistant's message after the generation
        header, without the token that ends it; None if the two do not fit."""
        end = self.call_end if message.get("tool_calls") else self.answer_end
        header = self._if_rendered((_QUESTION,), tools, generation=True)
        text = self._if_rendered((_QUESTION, message), tools)
        if header is None or text is None or not text.startswith(header):
            return None
        written = text[len(header) :]
        if end.opens_next and end.text not in written:
            return written
        written, mark, _ = written.rpartition(end.text)
        return written if mark else None

    def call_text(self, name: str, arguments: JsonObject, tools: Sequence[JsonObject]) -> str | None:
        """Return what the template has the model write for a call, without the end of the turn; None if
        the template writes no calls."""
        answered = self._if_rendered((_QUESTION, _UNTHINKING), tools)
        text = self._if_rendered((_QUESTION, calling_message((name, arguments))), tools)
        if answered is None or text is None:
            return None
        header = answered.partition(_ANSWER)[0]
        shared = next((i for i, (a, b) in enumerate(zip(header, text, strict=False)) if a != b), len(header))
        written = text[shared:].partition(self.call_end.text)[0]
        return written if name in written else None

    @property
    def has_reasoning(self) -> bool:
        """Return True if the template shows the thought of the last assistant message."""
        thinking = self._if_rendered((_QUESTION, _ANSWERED))
        unthinking = self._if_rendered((_QUESTION, _UNTHINKING))
        return None not in (thinking, unthinking) and thinking != unthinking

    def refusal(self, reason: str) -> UserError:
        """Return the error that refuses this template."""
        return UserError(
            f"the chat template of {self._name} {reason}",
            remedy="use a model whose template appends messages without looking back, or set model.tokenizer "
            "to one with a training variant of this template",
        )

    def _as_taken(self, messages: Sequence[JsonObject]) -> list[JsonObject]:
        """Return the messages in the roles and forms that the template takes."""
        taken: list[JsonObject] = []
        for message in messages:
            if message["role"] == "tool" and self.results_as_user:
                opening, closing = RESULT_TAGS.split("</")
                content = f"{opening}\n{message['content']}\n</{closing}"
                message = {"role": "user", "content": content}
            before = taken[-1] if taken else None
            if before is not None and message["role"] == "user":
                if before["role"] == "user" and self.results_as_user:  # roles may have to alternate
                    taken[-1] = {**before, "content": f"{before['content']}\n{message['content']}"}
                    continue
                if before["role"] == "system" and not self._takes_system:
                    taken[-1] = {**message, "content": f"{before['content']}\n\n{message['content']}"}
                    continue
            taken.append(message)
        if not self._has_parts:
            return taken
        return [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in taken]

    def _turn(self, names: Sequence[str]) -> tuple[JsonObject, ...]:
        """Return the dummy that results of calls to `names` answer, or a user message if there are none."""
        if not names or self._calls_are_text:
            return (_QUESTION, _ANSWERED)
        called = names if self._takes_many_calls else names[:1]
        calling = calling_message(*((name, {"x": _ANSWER}) for name in called))
        return (_QUESTION, {**calling, **thought("thought")})

    def _tail(
        self, messages: Sequence[JsonObject], names: Sequence[str] = (), *, generation: bool = True
    ) -> str:
        """Return what a rendering has after the dummy's last turn."""
        try:
            text = self.render(messages, generation=generation)
        except TEMPLATE_ERRORS as error:
            raise self.refusal(f"cannot render a {messages[-1]['role']} message: {error}") from error
        spelled = max(1, len(names)) if self._takes_many_calls else 1
        pieces = text.split(_ANSWER, spelled)
        if len(pieces) <= spelled:
            raise self.refusal("leaves out what the assistant said")
        return pieces[-1]

    def _find_form_of_content(self) -> None:
        """Text, or a list of parts for the templates of models that see images too."""
        self._takes_many_calls = False
        try:
            self._tail((_QUESTION, _ANSWERED), generation=False)
        except RenderLimitError:
            raise  # asking again in another form would cost as much again
        except UserError as error:
            self._has_parts = True
            try:
                self._tail((_QUESTION, _ANSWERED), generation=False)
            except UserError:
                raise error from None

    def _shows_system(self) -> bool:
        text = self._if_rendered(({"role": "system", "content": _SYSTEM}, _QUESTION))
        return text is not None and _SYSTEM in text

    def _shows_tools(self) -> bool:
        offered = self._if_rendered((_QUESTION, _ANSWERED), (_PROBE_TOOL,))
        bare = self._if_rendered((_QUESTION, _ANSWERED))
        return None not in (offered, bare) and offered != bare

    def _writes(self, calls: int) -> bool:
        calling = calling_message(*((_TOOL, {"x": _ANSWER}) for _ in range(calls)))
        text = self._if_rendered((_QUESTION, calling))
        return text is not None and text.count(_ANSWER) == calls

    def _find_role_of_results(self) -> None:
        try:
            tail = self._tail([*self._turn([_TOOL]), tool_message(_RESULT)], [_TOOL])
        except RenderLimitError:
            raise
        except UserError:
            tail = ""
        if _RESULT not in tail:
            self.results_as_user = True

    def _end_of_answer(self) -> TurnEnd:
        before = self._tail((_QUESTION, _ANSWERED), generation=False)
        following = self._tail((_QUESTION, _ANSWERED, {"role": "user", "content": _RESULT}))
        end = self._control.search(before)
        if end is None:
            return self._next_role(before, following)
        closing = before[: end.end()]
        if not following.startswith(closing):
            # Another token in its place, if that ends the user's message too; else it only ends the text.
            other = self._control.search(following)
            after_user = following.partition(_RESULT)[2]
            if other is None or not after_user.startswith(other.group()):
                closing = ""
            else:
                closing = following[: other.end()]
        return TurnEnd(text=end.group(), closing=closing)

    def _end_of_call(self) -> TurnEnd:
        turn = self._turn([_TOOL])
        before = self._tail(turn, generation=False)
        following = self._tail([*turn, tool_message(_RESULT)])
        if self.answer_end.opens_next:
            return self._next_role(before, following)
        closing, shared, _ = before.partition(self.answer_end.text)
        if shared and following.startswith(closing + shared):
            return TurnEnd(text=shared, closing=closing + shared)
        if self._calls_are_text:
            return self.answer_end
        controls = list(self._control.finditer(before))
        if not controls:
            return self._next_role(before, following)
        end, closing = controls[-1].group(), before[: controls[-1].end()]
        if self._takes_many_calls:
            text = self.render(self._turn([_TOOL, _TOOL]))
            if end in text.split(_ANSWER)[1]:
                raise self.refusal(f"ends each call with {end!r} and no token ends the turn after the last")
        both = [tool_message(_RESULT, call=call) for call in range(2)]
        repeated = self._tail([*self._turn([_TOOL]), *both]).count(end) > following.count(end)
        return TurnEnd(text=end, closing=closing, opens_next=repeated)

    def _next_role(self, before: str, following: str) -> TurnEnd:
        """Return the first token of the message that follows, if nothing else ends a turn."""
        if not following.startswith(before):
            raise self.refusal(
                f"ends a turn differently when messages follow ({before!r} does not begin {following!r}), so "
                "it cannot be told what comes after a sampled turn"
            )
        first = self._control.search(following, len(before))
        if first is None or following[len(before) : first.start()].strip():
            raise self.refusal("ends an assistant turn without a special token")
        return TurnEnd(text=first.group(), closing=following[: first.end()], opens_next=True)

    def _looks_back_at_results(self) -> bool:
        result = tool_message(_RESULT)
        turn = {"role": "assistant", "content": "one"}
        if not self._calls_are_text:
            turn = calling_message((_TOOL, {"x": "one"}))
        earlier = [_QUESTION, {**turn, **thought("more")}, result]
        return self.between([result]) != self.between([result], history=earlier)

    def _refuse_history_dependence(self) -> None:
        for role in ("tool", "user"):
            probe = [{"role": role, "content": _RESULT, "name": _TOOL}]
            suffix = self.between(probe)
            if _RESULT not in suffix:
                raise self.refusal(f"leaves out what a {role} message says")
            if suffix != self.between(probe, history=_LONGER):
                raise self.refusal(f"renders a {role} message differently after a longer history")
            if _CALL_ID in suffix:
                raise self.refusal(f"writes the id of the call into the {role} message after it")
        if self._looks_back_at_results():
            raise self.refusal("renders a tool message differently after an earlier one")
