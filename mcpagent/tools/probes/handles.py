"""State under handles: values that one tool of a server gives out, and that others take as an argument.

A protocol without sessions (2026-07-28) has no other place for the state of one client. A new session is then
no clean state, but a new handle may be; and whoever names a handle may reach what it holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.shown_values import result_value
from mcpagent.core.tools import ToolCall, ToolResult, ToolSpec
from mcpagent.tools.contract import Purpose, ToolSession
from mcpagent.tools.probes.arguments import harmless_arguments
from mcpagent.tools.schemas import SchemaCheck

_MOST_TOOLS = 20  # that are tried as givers, and as takers of what one gave
_MOST_VALUES = 4  # of one answer that may be handles
_WORD = re.compile(r"[\w.:~-]+")


@dataclass(frozen=True, kw_only=True)
class HandleState:
    """The behaviour of the handles that `giver` gives, and that `reads` and `writes` take. `shows` if what is
    written by one is read by it, `is_apart` if not by another one; `neighbour` and `stranger` if other
    sessions read it by it too, one of the same instance and one of another."""

    giver: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    shows: bool
    is_apart: bool
    neighbour: bool
    stranger: bool


async def probe_handles(
    specs: Sequence[ToolSpec],
    givers: Sequence[ToolSpec],
    *,
    text: str,
    writer: ToolSession,
    neighbour: ToolSession,
    stranger: ToolSession,
) -> HandleState | None:
    """Find the one of `givers` that gives handles, write by one with `writer`, and read by it in all three
    sessions. None if none gives what a tool of `specs` that reads takes. All of them may be called; writes
    carry `text`."""
    specs = specs[:_MOST_TOOLS]
    for giver in givers[:_MOST_TOOLS]:
        first, second = await _ask(writer, giver, text), await _ask(writer, giver, text)
        if first is None or second is None or first.is_error or second.is_error:
            continue
        for name, one, other in list(_fresh(result_value(first), result_value(second)))[:_MOST_VALUES]:
            takers = [
                (spec, parameter)
                for spec in specs
                if spec is not giver
                and (parameter := await _taken_as(writer, spec, text, name=name, value=one)) is not None
            ]
            if any(spec.annotations.read_only for spec, _ in takers):
                return await _seen(giver, takers, (one, other), text, (writer, neighbour, stranger))
    return None


async def _seen(
    giver: ToolSpec,
    takers: Sequence[tuple[ToolSpec, str]],
    handles: tuple[Any, Any],
    text: str,
    sessions: tuple[ToolSession, ToolSession, ToolSession],
) -> HandleState:
    reads = [taker for taker in takers if taker[0].annotations.read_only]
    writes = [taker for taker in takers if not taker[0].annotations.read_only]
    one, other = handles

    async def read(session: ToolSession, handle: Any) -> list[str | None]:
        answers = [await _ask(session, spec, text, {parameter: handle}) for spec, parameter in reads]
        return [None if a is None or a.is_error else a.content for a in answers]

    before, before_other = await read(sessions[0], one), await read(sessions[0], other)
    for spec, parameter in writes:
        await _ask(sessions[0], spec, text, {parameter: one})
    after, after_other = await read(sessions[0], one), await read(sessions[0], other)
    return HandleState(
        giver=giver.name,
        reads=tuple(spec.name for spec, _ in reads),
        writes=tuple(spec.name for spec, _ in writes),
        shows=before != after,
        is_apart=before_other == after_other,
        neighbour=await read(sessions[1], one) == after,
        stranger=await read(sessions[2], one) == after,
    )


async def _taken_as(session: ToolSession, spec: ToolSpec, text: str, *, name: str, value: Any) -> str | None:
    """Return the parameter as which a tool takes a value that another one called `name`, though it refuses
    what is made up or has that very name; None if there is none."""
    arguments = harmless_arguments(spec.input_schema, text=text)
    if arguments is None:
        return None
    made_up = await _ask(session, spec, text)
    for parameter in spec.input_schema.get("required", ()):
        if made_up is None or not (made_up.is_error or parameter == name):
            continue
        if SchemaCheck(spec.input_schema).fault({**arguments, parameter: value}) is None:
            given = await _ask(session, spec, text, {parameter: value})
            if given is not None and not given.is_error:
                return parameter
    return None


async def _ask(
    session: ToolSession, spec: ToolSpec, text: str, given: dict[str, Any] | None = None
) -> ToolResult | None:
    """Return the answer to harmless arguments, with those that are `given` in their place."""
    arguments = harmless_arguments(spec.input_schema, text=text)
    if arguments is None:
        return None
    call = ToolCall(id="probe", server=spec.server, tool=spec.name, arguments={**arguments, **(given or {})})
    return await session.call(call, purpose=Purpose.SETUP)


def may_give(answer: JsonObject, takers: Sequence[ToolSpec]) -> bool:
    """Return whether something in an answer is called as an argument that another tool needs."""
    needed = {name for spec in takers for name in spec.input_schema.get("required", ())}
    pending: list[Any] = [answer]
    while pending:
        match pending.pop():
            case {**members}:
                if needed & members.keys():
                    return True
                pending += members.values()
            case [*items]:
                pending += items
            case _:
                pass
    return False


def _fresh(one: Any, other: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield what differs between two answers of one tool, by its name: values, and words of a text."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() & other.keys():
            yield from _fresh(one[key], other[key], key)
    elif isinstance(one, list) and isinstance(other, list):
        for pair in zip(one, other, strict=False):
            yield from _fresh(*pair, name)
    elif isinstance(one, str) and isinstance(other, str) and one != other:
        yield name, one, other
        words = _WORD.findall(one), _WORD.findall(other)
        if len(words[0]) == len(words[1]) > 1:
            yield from ((name, *pair) for pair in zip(*words, strict=True) if pair[0] != pair[1])
    elif type(one) is int and type(other) is int and one != other:
        yield name, one, other
