"""Which isolation a server needs, by what a probe saw; and whether its episodes begin in the same state."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.core.records import JsonObject, Record
from mcpagent.core.shown_values import result_value
from mcpagent.core.tools import ToolCall, ToolResult, ToolSpec
from mcpagent.tools.contract import Purpose, ToolSession
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.probes.arguments import harmless_arguments, known_values
from mcpagent.tools.probes.handles import HandleState, may_give, probe_handles
from mcpagent.tools.servers_config import InProcessServer, Isolation, ServerConfig, StdioServer
from mcpagent.tools.workspace import below, tree_digest

_CALL_TIMEOUT_S = 10.0
_STARTS = 4  # of a server that begins each episode in the same state
_RESULT_LIMIT_CHARS = 1_000_000  # answers are compared, so they must not be cut
_PLACE = re.compile(r"(?i)path|file|folder|direct|(?:^|_)(?:dir|dest|destination|root|cwd)(?:$|_)")


class State(StrEnum):
    """The place where a server keeps what calls change."""

    NONE = "none"  # one episode's calls change nothing that another one reads
    INSTANCE = "instance"  # in its process or session: an instance of its own keeps an episode apart
    HANDLE = "handle"  # in what a handle names: an episode that takes a new one begins clean
    OUTSIDE = "outside"  # in a file, a database or a service that every instance shares
    UNKNOWN = "unknown"  # nothing was seen, and not everything could be tried


class IsolationVerdict(Record):
    """`evidence` is what was seen, what decided first; `writes` the tools that took a write carrying
    `probe_text`, `left` the files and folders of that name that they left where the server runs, `not_tried`
    why other tools were not called or not compared."""

    server: str
    recommended: Isolation
    state: State
    evidence: tuple[str, ...]
    probe_text: str
    writes: tuple[str, ...]
    left: tuple[str, ...] = ()
    not_tried: dict[str, str]


async def probe_isolation(
    config: ServerConfig,
    *,
    allow: Sequence[str] | None = None,
    read_only: Sequence[str] = (),
    allow_writes: bool = False,
    on_note: Callable[[str], None] = lambda _: None,
) -> IsolationVerdict:
    """Start two instances of a server and see whether one episode's calls show up in another's.

    Called are the tools that the server declares read-only, and those that it declares both additive (not
    destructive) and closed (not open-world) and that need no path: a relative one is in the folder that the
    server runs in, which is the user's. `allow_writes` calls every tool; so does a built-in server in memory,
    whose instances are thrown away. `allow` as for a ToolPool: what no episode may call does not count;
    `read_only` as in its settings, of any server.
    Raises UserError if the server does not start.
    """
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(_instance(config, read_only, on_note=on_note))
        second = await stack.enter_async_context(_instance(config, read_only))
        specs = [
            spec
            for spec in first.tools.values()
            if allow is None or {spec.dotted, spec.name, spec.server} & set(allow)
        ]
        writes_freely = allow_writes or (isinstance(config, InProcessServer) and config.is_builtin)
        probe = _Probe({} if writes_freely else _forbidden(specs), uses_found_names=writes_freely)
        state, evidence = await probe.run(
            specs, writer=first.session(), neighbour=first.session(), stranger=second.session()
        )
        return IsolationVerdict(
            server=config.name,
            # Outside: an instance of its own costs and does not help. By handle: nor is it needed.
            recommended="shared" if state in (State.NONE, State.HANDLE, State.OUTSIDE) else "episode",
            state=state,
            evidence=evidence,
            probe_text=probe.text,
            writes=tuple(probe.wrote),
            left=_left(config, probe.text),
            not_tried=probe.not_tried,
        )


def _instance(
    config: ServerConfig, read_only: Sequence[str], *, on_note: Callable[[str], None] = lambda _: None
) -> ToolPool:
    settings = ToolsConfig(
        timeout_s=_CALL_TIMEOUT_S,
        retry=0,
        result_limit_chars=_RESULT_LIMIT_CHARS,
        read_only=_of_server(config, read_only),
        per_server={config.name: ServerSection(isolation="shared")},
    )
    return ToolPool([config], settings, on_note=on_note)


def _of_server(config: ServerConfig, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name == config.name or name.startswith(f"{config.name}."))


class _Answer(NamedTuple):
    text: str
    is_error: bool
    is_lost: bool  # the tool gave no answer at all


async def _ask(session: ToolSession, calls: Sequence[ToolCall]) -> dict[str, _Answer]:
    """Return the answers by tool."""
    return {call.tool: _answer_of(await session.call(call, purpose=Purpose.SETUP)) for call in calls}


def _answer_of(result: ToolResult) -> _Answer:
    is_lost = result.failure is not None and result.failure.is_infrastructure
    return _Answer(result.content, result.is_error, is_lost)


class _Probe:
    """One look at one server; single use. `uses_found_names`: writes may name things that reads have found (a
    channel that exists), not only new ones."""

    def __init__(self, not_tried: Mapping[str, str], *, uses_found_names: bool) -> None:
        self.text = f"mcpagent-probe-{secrets.token_hex(4)}"  # what every write carries
        self.not_tried = dict(not_tried)
        self._forbidden = frozenset(not_tried)
        self._said: dict[str, JsonObject] = {}  # by tool, what it answered; nothing of a plain text
        self._was_refused = False  # a call, as one with a made-up handle is
        self.wrote: list[str] = []
        self._uses_found_names = uses_found_names
        self._found: dict[str, Any] = {}  # values of answers, by the names that parameters use for them
        self._seen: dict[State, list[str]] = {State.OUTSIDE: [], State.INSTANCE: [], State.HANDLE: []}

    async def run(
        self, specs: Sequence[ToolSpec], *, writer: ToolSession, neighbour: ToolSession, stranger: ToolSession
    ) -> tuple[State, tuple[str, ...]]:
        """Read, write with `writer`, and read again in `neighbour`, a session of the same instance, and in
        `stranger`, one of another instance."""
        reads, before = await self._first_reads(neighbour, [s for s in specs if s.annotations.read_only])
        again, fresh = await _ask(neighbour, reads), await _ask(stranger, reads)
        steady = self._steady(reads, before, again, fresh)
        looked = [call for call in steady if not before[call.tool].is_error]
        for spec in specs:
            if not spec.annotations.read_only and spec.name not in self.not_tried:
                await self._write(writer, spec)
        if self.wrote:
            seen = await _ask(neighbour, steady)
            self._compare(again, seen, State.INSTANCE, "another session of the same instance")
            seen = await _ask(stranger, steady)
            self._compare(fresh, seen, State.OUTSIDE, "another instance")
        may_call = [spec for spec in specs if spec.name not in self._forbidden]
        steady_names = {call.tool for call in steady}
        # A write more than needed may stay where the server keeps things: only of what may give a handle.
        givers = [
            spec
            for spec in may_call
            if spec.name in self._said and spec.name not in steady_names
            if self._was_refused or may_give(self._said[spec.name], [s for s in may_call if s is not spec])
        ]
        handles = await probe_handles(
            may_call, givers, text=self.text, writer=writer, neighbour=neighbour, stranger=stranger
        )
        if handles is not None:
            self._note_handles(handles)
        evidence = tuple(text for texts in self._seen.values() for text in texts)
        if evidence:
            return next(state for state, texts in self._seen.items() if texts), evidence
        watched = self.wrote if looked else []
        if any(not spec.annotations.read_only and spec.name not in watched for spec in specs):
            return State.UNKNOWN, ("it has tools that may write and were not tried, or not seen to write",)
        n, after = len(looked), f"after {', '.join(self.wrote)}, " if self.wrote else ""
        seen_same = f"{n} read-only {'tool' if n == 1 else 'tools'} answered the same to every session"
        return State.NONE, (f"{after}{seen_same}" if looked else "it declares all its tools read-only",)

    def _note_answer(self, spec: ToolSpec, result: ToolResult) -> None:
        if result.is_error:
            self._was_refused = True
        else:
            is_text = result.structured is None and not result.content.lstrip().startswith(("{", "["))
            self._said[spec.name] = {} if is_text else result_value(result)

    def _note_handles(self, handles: HandleState) -> None:
        for tool in (*handles.reads, *handles.writes):
            self.not_tried.pop(tool, None)  # they refused what was made up
        self.wrote += [tool for tool in handles.writes if tool not in self.wrote]
        takers = ", ".join((*handles.writes, *handles.reads))
        places = [
            *(["another session of the same instance"] if handles.neighbour else []),
            *(["another instance"] if handles.stranger else []),
        ]
        reach = f"from {' and from '.join(places)} too" if places else "in its own session alone"
        if handles.is_apart:
            writes = ", and what is written by one does not show by another" if handles.shows else ""
            text = f"{handles.giver} gives a handle that {takers} take, {reach}{writes}"
            self._seen[State.HANDLE].append(text)
        else:
            text = f"{takers} take a handle of {handles.giver}, but what is written by one shows by another"
            self._seen[State.OUTSIDE if handles.stranger else State.INSTANCE].append(text)

    async def _first_reads(
        self, session: ToolSession, readers: Sequence[ToolSpec]
    ) -> tuple[list[ToolCall], dict[str, _Answer]]:
        """Calls and their answers. Tools without arguments come first: the others take names from them."""
        calls: list[ToolCall] = []
        answers: dict[str, _Answer] = {}
        for spec in sorted(readers, key=lambda spec: len(spec.input_schema.get("required", ()))):
            call = self._call(spec, self._found)
            if call is None:
                continue
            result = await session.call(call, purpose=Purpose.SETUP)
            answer = _answer_of(result)
            if answer.is_lost:
                self.not_tried[spec.name] = answer.text
                continue
            calls.append(call)
            answers[spec.name] = answer
            self._note_answer(spec, result)
            self._found = {**known_values(result_value(result)), **self._found}
        return calls, answers

    def _steady(
        self,
        reads: Sequence[ToolCall],
        before: Mapping[str, _Answer],
        again: Mapping[str, _Answer],
        fresh: Mapping[str, _Answer],
    ) -> list[ToolCall]:
        """Return the reads whose answers can be compared: two calls in a row agree."""
        steady: list[ToolCall] = []
        for call in reads:
            tool = call.tool
            if before[tool] == again[tool]:
                steady.append(call)
            elif before[tool] == fresh[tool]:
                text = f"{tool} answers differently at its second call, and a new instance starts over"
                self._seen[State.INSTANCE].append(text)
            else:
                self.not_tried[tool] = "the answers differ from call to call"
        return steady

    async def _write(self, session: ToolSession, spec: ToolSpec) -> None:
        call = self._call(spec, self._found if self._uses_found_names else {})
        if call is not None:
            result = await session.call(call, purpose=Purpose.SETUP)
            self._note_answer(spec, result)
            if result.is_error:
                self.not_tried[spec.name] = f"it refused the probe: {result.content.partition(chr(10))[0]}"
            else:
                self.wrote.append(spec.name)

    def _call(self, spec: ToolSpec, values: Mapping[str, Any]) -> ToolCall | None:
        arguments = harmless_arguments(spec.input_schema, text=self.text, values=values)
        if arguments is None:
            self.not_tried[spec.name] = "no valid arguments could be made from its schema"
            return None
        return _call_of(spec, arguments)

    def _compare(
        self, before: Mapping[str, _Answer], after: Mapping[str, _Answer], state: State, place: str
    ) -> None:
        for tool, answer in after.items():
            if answer != before[tool] and not answer.is_lost:
                shows = self.text in answer.text and self.text not in before[tool].text
                holds = f" and holds {self.text!r}" if shows else ""
                text = f"after {', '.join(self.wrote)}, {tool} in {place} answers differently{holds}"
                self._seen[state].append(text)


def _forbidden(specs: Sequence[ToolSpec]) -> dict[str, str]:
    """The tools that a probe must not call unasked. A hint that was not given has the default of the MCP
    specification, the dangerous one, so only what is declared harmless passes."""
    reasons: dict[str, str] = {}
    for spec in specs:
        hints = spec.annotations
        if hints.read_only:
            continue
        if not hints.model_fields_set:
            reasons[spec.name] = "without annotations it may do anything"
        elif hints.destructive:
            reasons[spec.name] = "it may destroy"
        elif hints.open_world:
            reasons[spec.name] = "it may act on the world outside the server"
        elif _needs_a_place(spec.input_schema):
            reasons[spec.name] = "it writes to a path"
    return reasons


def _needs_a_place(schema: object) -> bool:
    """Return whether a property without which there is no call names a file or a folder, at any depth."""
    match schema:
        case {"properties": dict(properties), "required": [*required]}:
            return any(
                _PLACE.search(str(name)) is not None or _needs_a_place(properties.get(name))
                for name in required
            )
        case {"items": items}:
            return _needs_a_place(items)
        case _:
            return False


def _left(config: ServerConfig, text: str) -> tuple[str, ...]:
    """Return what a probe that may write has left in the folder of a server of ours, as far as its name
    tells."""
    if not isinstance(config, StdioServer):
        return ()
    return tuple(sorted(str(path) for path in Path(config.cwd or ".").glob(f"*{text}*")))


@dataclass(frozen=True, kw_only=True)
class StartState:
    """The facts that the starts of a server have in common. `differs` says what did not, if anything."""

    server: str
    starts: int
    digest: str | None  # of the bytes of its workspace; None if it has none
    reads: tuple[str, ...]  # the tools whose answers were compared
    seconds: float  # of one copy or one reset, the longest
    differs: str | None


async def probe_start(
    config: ServerConfig,
    limits: ServerSection,
    *,
    read_only: Sequence[str] = (),
    on_note: Callable[[str], None],
) -> StartState:
    """Start a server's episodes one after another, change in each what there is to change, and compare the
    states that they begin in: the bytes of the workspace, and what the tools answer that only read.

    A workspace is changed directly, file by file; without one, the additive tools that `probe_isolation`
    would call are called. Raises UserError if the server does not start.
    """
    text = f"mcpagent-probe-{secrets.token_hex(4)}"
    reads: dict[str, str] = {}
    digest = differs = None
    number, longest_s = 0, 0.0
    settings = ToolsConfig(read_only=_of_server(config, read_only), per_server={config.name: limits})
    async with ToolPool([config], settings, on_note=on_note) as pool:
        specs = list(pool.tools.values())
        forbidden = _forbidden(specs)
        while differs is None and number < _STARTS:
            number += 1
            async with pool.session() as session:
                begun_s = time.perf_counter()
                folder = await session.workspace(config.name)
                longest_s = max(longest_s, time.perf_counter() - begun_s)
                current = None if folder is None else await asyncio.to_thread(tree_digest, folder)
                answers = await _read_all(session, specs)
                if number == 1:
                    digest, reads = current, answers
                unlike = [tool for tool in reads.keys() & answers.keys() if reads[tool] != answers[tool]]
                if current != digest:
                    differs = "the bytes of its workspace"
                elif unlike:
                    differs = f"what {min(unlike)} answers"
                elif folder is not None:
                    await asyncio.to_thread(_spoil, folder, text)
                else:
                    for spec in specs:
                        if not spec.annotations.read_only and spec.name not in forbidden:
                            arguments = harmless_arguments(spec.input_schema, text=text)
                            if arguments is not None:
                                await session.call(_call_of(spec, arguments))
        return StartState(
            server=config.name,
            starts=number,
            digest=digest,
            reads=tuple(sorted(reads)),
            seconds=max(longest_s, pool.reset_s),
            differs=differs,
        )


async def _read_all(session: ToolSession, specs: Sequence[ToolSpec]) -> dict[str, str]:
    """Return what the tools that only read, and need nothing, answer twice in a row."""
    answers: dict[str, str] = {}
    for spec in specs:
        if spec.annotations.read_only and not spec.input_schema.get("required"):
            twice = [await session.call(_call_of(spec, {})) for _ in range(2)]
            if twice[0].content == twice[1].content and not twice[0].is_error:
                answers[spec.name] = twice[0].content
    return answers


def _call_of(spec: ToolSpec, arguments: JsonObject) -> ToolCall:
    return ToolCall(id="probe", server=spec.server, tool=spec.name, arguments=arguments)


def _spoil(folder: Path, text: str) -> None:
    """Write into every file of a copy, and one more next to them."""
    files = [folder] if folder.is_file() else [path for path in below(folder) if path.is_file()]
    for path in files:
        with path.open("ab") as file:
            file.write(text.encode())
    if folder.is_dir():
        (folder / text).write_text(text)
