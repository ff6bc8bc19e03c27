"""Which isolation a server needs: what a probe saw, else what the server declares, else its tools' names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from enum import StrEnum
from pathlib import Path

from mcpagent.core.records import Record
from mcpagent.core.tools import ToolSpec
from mcpagent.tools.instance_cost import InstanceCost, started_instance
from mcpagent.tools.probe import Episodes, Probe, State
from mcpagent.tools.servers_config import Isolation, MemoryServer, ServerConfig, StdioServer

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
    """Whether the name of a tool speaks of reading alone; None where it has no verb that is known."""
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
