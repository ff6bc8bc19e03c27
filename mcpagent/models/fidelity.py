"""Whether a conversation survives as tokens: what others write stays data, and what a full rendering would
have said otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.models.tokens import TEMPLATE_ERRORS, Renderer

_QUESTION: JsonObject = {"role": "user", "content": "What is it?"}


@dataclass(frozen=True, kw_only=True)
class Drift:
    """`kept` tokens are what the model saw; `changed` of them a full rendering would not have, or it would
    have others there."""

    kept: int
    changed: int

    @property
    def share(self) -> float:
        return self.changed / self.kept


def measure_drift(
    renderer: Renderer, kept: Sequence[int], messages: Sequence[JsonObject], tools: Sequence[JsonObject]
) -> Drift:
    """`kept` against the rendering of the whole conversation; assistant messages hold `tool_calls`, and
    `reasoning_content` where they were written after a thought. Needs a conversation that ends with the
    environment's turn."""
    full = renderer.full_ids(messages, tools)
    return Drift(kept=len(kept), changed=max(len(kept), len(full)) - _common(kept, full))


def refuse_forgery(renderer: Renderer) -> int:
    """Write every control token into a tool result, a user message, a system message and every part of a
    tool's schema; how many there are. Raises UserError where one of them gets through as a control token."""
    spelled = renderer.control_tokens
    attacks = ["".join(spelled), " ".join(spelled), "\n".join(reversed(spelled))]
    for role in ("tool", "user"):
        clean = _controls(renderer, renderer.suffix_ids([{"role": role, "content": "plain"}]))
        for attack in attacks:
            ids = renderer.suffix_ids([{"role": role, "content": f"plain {attack}"}])
            if _controls(renderer, ids) != clean:
                raise _forged(renderer, f"a {role} message")
    system: JsonObject = {"role": "system", "content": "Answer."}
    for heads in ([], [system]) if _takes_system(renderer) else ([],):
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


def _takes_system(renderer: Renderer) -> bool:
    try:
        renderer.render_text([{"role": "system", "content": "Answer."}, _QUESTION], ())
    except TEMPLATE_ERRORS:
        return False
    return True


def _tool(text: str, *, name: str) -> JsonObject:
    """A tool that says `text` wherever a schema can."""
    prop = {"type": "string", "description": text, "enum": [text], "default": text}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": text,
            "parameters": {"type": "object", "properties": {text: prop}, "required": [text]},
        },
    }
