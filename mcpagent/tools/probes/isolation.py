"""Which isolation a server needs: what a probe saw, else what the server declares, else its tools' names."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from mcpagent.core.records import JsonObject, Record
from mcpagent.core.tools import ToolCall, ToolSpec
from mcpagent.tools.contract import Purpose, ToolSession
from mcpagent.tools.limits import CallLimits, ServerLimits
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.probes.arguments import as_json, harmless_arguments, known_values
from mcpagent.tools.probes.processes import InstanceCost, started_instance
from mcpagent.tools.servers_config import Isolation, MemoryServer, ServerConfig, StdioServer
from mcpagent.tools.workspace import tree_digest, walk

_NO_ARGUMENTS = "no valid arguments could be made from its schema"
_STARTS_OVER = "answers differently at its second call, and a new instance starts over"


class State(StrEnum):
    """Where a server keeps what calls change."""

    NONE = "none"  # one episode's calls change nothing that another one reads
    INSTANCE = "instance"  # in its process or session: an instance of its own keeps an episode apart
    OUTSIDE = "outside"  # in a file, a database or a service that every instance shares
    UNKNOWN = "unknown"  # nothing was seen, and not everything could be tried


@dataclass(frozen=True)
class Episodes:
    """Three sessions: the first two on one instance, the stranger on another."""

    writer: ToolSession
    neighbour: ToolSession
    stranger: ToolSession


@dataclass(frozen=True)
class _Answer:
    text: str
    is_error: bool
    is_lost: bool  # the tool gave no answer at all
    structured: Any = field(compare=False)


class _Written(NamedTuple):
    arguments: JsonObject
    answer: _Answer


class Probe:
    """One look at one server; single use. Afterwards `states` and `evidence` hold what was seen, `looked` the
    tools that answered the same twice, `wrote` those that accepted a write, `not_tried` why others were not
    called or not compared."""

    def __init__(self, server: str, episodes: Episodes) -> None:
        self._server = server
        self._episodes = episodes
        self.text = f"mcpagent-probe-{secrets.token_hex(4)}"  # what every write carries
        self.states: set[State] = set()
        self.evidence: list[tuple[State, str]] = []
        self.looked: list[str] = []
        self.wrote: list[str] = []
        self.not_tried: dict[str, str] = {}
        self._seen_values: dict[str, Any] = {}

    async def run(
        self, readers: Sequence[ToolSpec], writers: Sequence[ToolSpec], *, uses_found_names: bool
    ) -> None:
        """Read, write, read again. `uses_found_names`: writes may name things that reads have found (a
        channel that exists), not only new ones."""
        reads, before = await self._first_reads(readers)
        again = await self._answers(self._episodes.neighbour, reads)
        fresh = await self._answers(self._episodes.stranger, reads)
        steady = self._steady(before, again, fresh)
        self.looked = [tool for tool in steady if not before[tool].is_error]
        written = await self._write(writers, values=self._seen_values if uses_found_names else {})
        if not self.wrote:
            return
        watched = {tool: reads[tool] for tool in steady}
        seen = await self._answers(self._episodes.neighbour, watched)
        self._compare(again, seen, State.INSTANCE, "another session of the same instance")
        seen = await self._answers(self._episodes.stranger, watched)
        self._compare(fresh, seen, State.OUTSIDE, "another instance")
        if not self.states:
            await self._compare_writes(written)

    async def _first_reads(
        self, readers: Sequence[ToolSpec]
    ) -> tuple[dict[str, JsonObject], dict[str, _Answer]]:
        """Arguments and answers. Tools that need no arguments come first: the others take names from them."""
        reads: dict[str, JsonObject] = {}
        answers: dict[str, _Answer] = {}
        for spec in sorted(readers, key=lambda spec: len(spec.input_schema.get("required", ()))):
            arguments = harmless_arguments(spec.input_schema, text=self.text, values=self._seen_values)
            if arguments is None:
                self.not_tried[spec.name] = _NO_ARGUMENTS
                continue
            answer = await self._ask(self._episodes.neighbour, spec.name, arguments)
            if answer.is_lost:
                self.not_tried[spec.name] = answer.text
                continue
            reads[spec.name], answers[spec.name] = arguments, answer
            self._seen_values = {**known_values(answer.structured), **self._seen_values}
        return reads, answers

    def _steady(
        self,
        before: Mapping[str, _Answer],
        again: Mapping[str, _Answer],
        fresh: Mapping[str, _Answer],
    ) -> list[str]:
        """The tools whose answers can be compared: two calls in a row agree."""
        steady: list[str] = []
        for tool, first in before.items():
            if first == again[tool]:
                steady.append(tool)
            elif first == fresh[tool]:
                self._saw(State.INSTANCE, f"{tool} {_STARTS_OVER}")
            else:
                self.not_tried[tool] = "the answers differ from call to call"
        return steady

    async def _write(self, writers: Sequence[ToolSpec], *, values: Mapping[str, Any]) -> dict[str, _Written]:
        """The writes that the server accepted."""
        written: dict[str, _Written] = {}
        for spec in writers:
            arguments = harmless_arguments(spec.input_schema, text=self.text, values=values)
            if arguments is None:
                self.not_tried[spec.name] = _NO_ARGUMENTS
                continue
            answer = await self._ask(self._episodes.writer, spec.name, arguments)
            if answer.is_error:
                self.not_tried[spec.name] = f"it refused the probe: {answer.text.partition(chr(10))[0]}"
                continue
            written[spec.name] = _Written(arguments, answer)
        self.wrote = list(written)
        return written

    def _compare(
        self, before: Mapping[str, _Answer], after: Mapping[str, _Answer], state: State, place: str
    ) -> None:
        for tool, answer in after.items():
            if answer != before[tool] and not answer.is_lost:
                shows = self.text in answer.text and self.text not in before[tool].text
                proof = f" and holds {self.text!r}" if shows else ""
                self._saw(
                    state, f"after {', '.join(self.wrote)}, {tool} in {place} answers differently{proof}"
                )

    async def _compare_writes(self, written: Mapping[str, _Written]) -> None:
        """Where reads show nothing, look whether a write's own answer tells of earlier writes."""
        other = f"{self.text}-2"
        for tool, (arguments, first) in written.items():
            second = await self._ask(self._episodes.writer, tool, arguments)
            if second == first:
                continue
            renamed = json.loads(json.dumps(arguments).replace(self.text, other))
            stranger = await self._ask(self._episodes.stranger, tool, renamed)
            if self.text in stranger.text.replace(other, ""):
                self._saw(State.OUTSIDE, f"{tool} in another instance answers with {self.text!r}")
            elif stranger.text.replace(other, self.text) == first.text:
                self._saw(State.INSTANCE, f"{tool} {_STARTS_OVER}")

    async def _answers(self, session: ToolSession, reads: Mapping[str, JsonObject]) -> dict[str, _Answer]:
        return {tool: await self._ask(session, tool, arguments) for tool, arguments in reads.items()}

    async def _ask(self, session: ToolSession, tool: str, arguments: JsonObject) -> _Answer:
        call = ToolCall(id=self.text, server=self._server, tool=tool, arguments=arguments)
        result = await session.call(call, purpose=Purpose.SETUP)
        return _Answer(
            text=result.content,
            is_error=result.is_error,
            is_lost=result.failure is not None and result.failure.is_infrastructure,
            structured=result.structured if result.structured is not None else as_json(result.content),
        )

    def _saw(self, state: State, evidence: str) -> None:
        self.states.add(state)
        self.evidence.append((state, evidence))


_READS = re.compile(
    "calculate|check|compare|count|crawl|describe|diff|echo|explain|extract|fetch|find|get|inspect|list|log|"
    "lookup|map|ping|query|read|research|retrieve|search|show|status|summarize|validate|view"
)
_PLACE = re.compile(r"(?i)path|file|folder|direct|(?:^|_)(?:dir|dest|destination|root|cwd)(?:$|_)")
_WRITES = re.compile(
    "add|append|apply|archive|assign|book|buy|cancel|checkout|clear|close|commit|create|delete|drop|edit|"
    "execute|import|insert|invite|kill|merge|move|pay|post|publish|push|put|register|remove|rename|replace|"
    "reply|reset|restart|restore|run|save|schedule|sell|send|set|start|stop|store|submit|sync|transfer|trigger|"
    "undo|update|upload|upsert|write"
)


class Basis(StrEnum):
    """What a recommendation rests on, the strongest first."""

    OBSERVED = "observed"  # the server's behaviour
    DECLARED = "declared"  # its annotations; what they speak of could not be tried
    NAMES = "names"  # the names of tools without annotations: a hint


class IsolationVerdict(Record):
    """`evidence` is what was seen, `writes` the tools that took a write carrying `probe_text`, `left` the
    files and folders of that name that they left where the server runs, `not_tried` why other tools were not
    called or not compared."""

    server: str
    recommended: Isolation
    state: State
    basis: Basis
    evidence: tuple[str, ...]
    probe_text: str
    writes: tuple[str, ...]
    left: tuple[str, ...] = ()
    not_tried: dict[str, str]
    cost: InstanceCost


async def probe_isolation(
    config: ServerConfig,
    *,
    allow: Sequence[str] | None = None,
    allow_writes: bool = False,
    timeout_s: float = 10.0,
    on_note: Callable[[str], None] = lambda _: None,
) -> IsolationVerdict:
    """Start two instances of a server and see whether one episode's calls show up in another's.

    Called are the tools that the server declares read-only, and those that it declares both additive (not
    destructive) and closed (not open-world) and that need no path: a relative one is in the folder that the
    server runs in, which is the user's. `allow_writes` calls every tool; so does a built-in server in memory,
    whose instances are thrown away. `allow` as for a ToolPool: what no episode may call does not count.
    Raises UserError where the server does not start.
    """
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(
            started_instance(config, timeout_s=timeout_s, on_note=on_note)
        )
        second = await stack.enter_async_context(started_instance(config, timeout_s=timeout_s))
        specs = [spec for spec in first.pool.tools.values() if _is_offered(spec, allow)]
        sessions = (first.pool.session(), first.pool.session(), second.pool.session())
        probe = Probe(config.name, Episodes(*sessions))
        writes_freely = allow_writes or isinstance(config, MemoryServer)
        forbidden = {} if writes_freely else _forbidden(specs)
        await probe.run(
            [spec for spec in specs if spec.annotations.read_only],
            [spec for spec in specs if not spec.annotations.read_only and spec.name not in forbidden],
            uses_found_names=writes_freely,
        )
        state, basis = _judge(specs, probe)
        return IsolationVerdict(
            server=config.name,
            recommended=_recommended(specs, probe, state, basis),
            state=state,
            basis=basis,
            evidence=_evidence(probe, state),
            probe_text=probe.text,
            writes=tuple(probe.wrote),
            left=_left(config, probe.text),
            not_tried={**forbidden, **probe.not_tried},
            cost=first.cost,
        )


def name_reads(tool: str) -> bool | None:
    """Whether the name of a tool speaks of reading alone; None where it has none of the verbs that tell."""
    words = re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", tool).lower())
    if any(_WRITES.fullmatch(word) for word in words):
        return False
    return True if any(_READS.fullmatch(word) for word in words) else None


def _is_offered(spec: ToolSpec, allow: Sequence[str] | None) -> bool:
    return allow is None or not {spec.dotted, spec.name, spec.server}.isdisjoint(allow)


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
    """Whether a property without which there is no call names a file or a folder, at any depth."""
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
    """What a probe that may write has left in the folder of a server of ours, as far as its name tells."""
    if not isinstance(config, StdioServer):
        return ()
    return tuple(sorted(str(path) for path in Path(config.cwd or ".").glob(f"*{text}*")))


def _judge(specs: Sequence[ToolSpec], probe: Probe) -> tuple[State, Basis]:
    if State.OUTSIDE in probe.states:
        return State.OUTSIDE, Basis.OBSERVED
    if State.INSTANCE in probe.states:
        return State.INSTANCE, Basis.OBSERVED
    open_questions = _open_questions(specs, probe)
    if not open_questions:
        return State.NONE, Basis.OBSERVED if probe.looked else Basis.DECLARED
    is_declared = any(spec.annotations.model_fields_set for spec in open_questions)
    return State.UNKNOWN, Basis.DECLARED if is_declared else Basis.NAMES


def _open_questions(specs: Sequence[ToolSpec], probe: Probe) -> list[ToolSpec]:
    """The tools that may write and whose writing was not watched."""
    watched = set(probe.wrote) if probe.looked else set[str]()
    return [spec for spec in specs if not spec.annotations.read_only and spec.name not in watched]


def _recommended(specs: Sequence[ToolSpec], probe: Probe, state: State, basis: Basis) -> Isolation:
    match state:
        case State.NONE | State.OUTSIDE:  # outside: an instance of its own costs and does not help
            return "shared"
        case State.INSTANCE:
            return "episode"
        case State.UNKNOWN:
            only_reads = basis is Basis.NAMES and all(
                name_reads(spec.name) for spec in _open_questions(specs, probe)
            )
            return "shared" if only_reads else "episode"


def _evidence(probe: Probe, state: State) -> tuple[str, ...]:
    """What decided comes first."""
    seen = sorted(probe.evidence, key=lambda evidence: evidence[0] is not state)
    return tuple(text for _, text in seen) or (_nothing_seen(probe),)


def _nothing_seen(probe: Probe) -> str:
    n = len(probe.looked)
    looked = f"{n} read-only {'tool' if n == 1 else 'tools'} answered the same to every session"
    if probe.wrote:
        return f"after {', '.join(probe.wrote)}, {looked}"
    return looked if probe.looked else "no tool could be called"


@dataclass(frozen=True, kw_only=True)
class StartState:
    """What the starts of a server were found to have in common. `differs` says what did not, if anything."""

    server: str
    starts: int
    digest: str | None  # of the bytes of its workspace; None where it has none
    reads: tuple[str, ...]  # the tools whose answers were compared
    seconds: float  # of one copy or one reset, the longest
    differs: str | None


async def probe_start(
    config: ServerConfig, limits: ServerLimits, *, starts: int = 4, on_note: Callable[[str], None]
) -> StartState:
    """Start a server's episodes one after another, change in each what there is to change, and compare the
    states that they begin in: the bytes of the workspace, and what the tools answer that only read.

    A workspace is changed directly, file by file; without one, the additive tools that `probe_isolation`
    would call are called. Raises UserError where the server does not start.
    """
    calls = CallLimits(per_server={config.name: limits})
    first: dict[str, str] = {}
    digest: str | None = None
    longest_s = 0.0
    text = f"mcpagent-probe-{secrets.token_hex(4)}"
    async with ToolPool([config], limits=calls, on_note=on_note) as pool:
        specs = list(pool.tools.values())
        forbidden = _forbidden(specs)
        for number in range(starts):
            async with pool.session() as session:
                begun_s = time.perf_counter()
                folder = await session.workspace(config.name)
                longest_s = max(longest_s, time.perf_counter() - begun_s)
                if folder is not None:
                    current = await asyncio.to_thread(tree_digest, folder)
                    if digest not in (None, current):
                        return _differs(config.name, number, first, longest_s, "the bytes of its workspace")
                    digest = current
                answers = await _read_all(session, specs)
                if limits.reset is not None:
                    longest_s = max(longest_s, pool.reset_s)
                if number == 0:
                    first = answers
                unlike = [tool for tool in first.keys() & answers.keys() if first[tool] != answers[tool]]
                if unlike:
                    return _differs(config.name, number, first, longest_s, f"what {min(unlike)} answers")
                if folder is not None:
                    await asyncio.to_thread(_spoil, folder, text)
                    continue
                for spec in specs:
                    if not spec.annotations.read_only and spec.name not in forbidden:
                        arguments = harmless_arguments(spec.input_schema, text=text, values={})
                        if arguments is not None:
                            await session.call(_call_of(spec, arguments))
    return StartState(
        server=config.name,
        starts=starts,
        digest=digest,
        reads=tuple(sorted(first)),
        seconds=longest_s,
        differs=None,
    )


def _differs(server: str, number: int, reads: Mapping[str, str], seconds: float, what: str) -> StartState:
    names = tuple(sorted(reads))
    return StartState(
        server=server, starts=number + 1, digest=None, reads=names, seconds=seconds, differs=what
    )


async def _read_all(session: ToolSession, specs: Sequence[ToolSpec]) -> dict[str, str]:
    """What the tools that only read, and need nothing, answer twice in a row."""
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
    """Write into every file of a copy, and one more beside them."""
    files = [folder] if folder.is_file() else [path for path in walk(folder) if path.is_file()]
    for path in files:
        with path.open("ab") as file:
            file.write(text.encode())
    if folder.is_dir():
        (folder / text).write_text(text)
