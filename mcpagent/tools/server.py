"""A server of the pool: its tools as they are offered, its limits, and what its connections share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from mcp.types import Tool

from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.config.source import set_option
from mcpagent.core.hidden_text import over_schema_texts, without_hidden
from mcpagent.core.redact import SECRETS
from mcpagent.core.tools import FailureKind, ToolAnnotations, ToolCall, ToolSpec, catalog_hash
from mcpagent.errors import UserError
from mcpagent.tools.catalog import (
    DESCRIPTION_CHARS,
    CatalogChange,
    ToolList,
    cut_texts,
    near_match,
    to_spec,
    why_illegible,
    why_schema_too_long,
    why_too_long,
)
from mcpagent.tools.faults import CallFailed, OpenFailed
from mcpagent.tools.languages import SqlGuard
from mcpagent.tools.limits import CircuitBreaker, Gate
from mcpagent.tools.metrics import CallCounts, ServerMetrics
from mcpagent.tools.schemas import SchemaCheck, pattern_notes, usable_schema
from mcpagent.tools.supervisor import ServerSupervisor
from mcpagent.tools.transports.open import Launcher, MemoryLauncher, StdioLauncher
from mcpagent.tools.wire import cut_middle
from mcpagent.tools.workspace import Workspace, WorkspaceCopy

T = TypeVar("T")

_VERSION_CHARS = 200
_WHY_CHARS = 500  # of what a note says of a failure
_STILL_STARTING_S = (5.0, 15.0, 20.0)  # the pauses between notes on a server that does not answer its start
_LONG_DESCRIPTION = 4000  # characters; longer ones are worth a look before a model reads them


class StartedServer:
    """A server of the pool. `shared` is its one connection; None if every session has its own.

    `limits` are its own (`limits_of`), `config` those of all servers. `on_note` is told what
    of its tool list was left out, cleaned, cut or changed.
    """

    def __init__(
        self,
        name: str,
        launcher: Launcher,
        *,
        limits: ServerSection,
        config: ToolsConfig,
        on_note: Callable[[str], None],
        workspace: Workspace | None = None,
    ) -> None:
        self._config = config
        self.name = name
        self._workspace = workspace
        self.reset_s = 0.0  # the longest
        self.limits = limits
        assert limits.timeout_s is not None and limits.max_in_flight is not None  # `limits_of`
        self.timeout_s = limits.timeout_s
        self.repeats = config.retry  # of a call that is safe to repeat, or that the server never got
        self.shared: ServerSupervisor | None = None
        self.inputs: dict[str, SchemaCheck] = {}
        self.outputs: dict[str, SchemaCheck] = {}
        self.sql: dict[str, SqlGuard] = {}  # by tool, of those that take SQL
        self.counts = CallCounts()
        self.version = ""  # what the server says of itself, when it is started
        self.protocol = ""
        self.forms = launcher.forms
        self._launcher = launcher
        self.gate = Gate(limits.max_in_flight, calls_per_minute=limits.calls_per_minute)
        self.breaker = CircuitBreaker()
        self._on_note = on_note
        self._first: dict[str, Tool] | None = None  # its first tools, against which later ones are held
        self._noted: set[str] = set()  # the events, and the hashes of other lists, that a note has named
        # Built-in ones never change theirs, and a list at every error would cost more than the call.
        self.may_change = not (isinstance(launcher, MemoryLauncher) and launcher.keeps_schemas)

    async def start(self) -> Sequence[ToolSpec]:
        """Open the server and list its tools; one that every session has its own of is closed again.

        Raises OpenFailed, and UserError if `safe_to_retry` does not name a tool.
        """
        supervisor = self.connect()
        waiting = asyncio.create_task(self._say_that_it_starts())
        try:
            tool_list = await supervisor.open()
        finally:
            waiting.cancel()
            if self.limits.isolation == "shared":
                self.shared = supervisor
            else:
                await supervisor.close()
        self.protocol = tool_list.protocol
        # A server object is reached without the handshake that would report it.
        launcher = self._launcher
        self.version = (
            launcher.server.version or "" if isinstance(launcher, MemoryLauncher) else tool_list.version
        )
        self.version, _ = cut_middle(SECRETS.text(self.version), _VERSION_CHARS)
        for note in tool_list.notes:
            self._on_note(f"server {self.name!r}: {note}")
        specs: list[ToolSpec] = []
        for tool in self._offered(tool_list, supervisor.workspace):
            spec = to_spec(self.name, tool)
            fault = why_illegible(spec)
            if fault is None:  # only then may notes name it
                spec = self._cleaned(spec)
                fault = why_too_long(spec)
            if fault is None:
                specs.append(spec)
            else:
                name = spec.name if len(spec.name) <= 60 else f"{spec.name[:60]}..."
                self._on_note(f"server {self.name!r}: tool {name!r} is left out: {fault}")
        if self.may_change:
            # In a thread: a large schema takes half a second, and a server may have many.
            specs, notes = await asyncio.to_thread(_with_usable_schemas, specs)
            for note in notes:
                self._on_note(note)
        names = [spec.name for spec in specs]
        self._check_names("safe_to_retry", self.limits.safe_to_retry, names)
        if self.limits.reset is not None:
            self._check_names("reset", [call.tool for call in self.limits.reset.calls], names)
        self.inputs = {s.name: SchemaCheck(s.input_schema) for s in specs}
        if not self.limits.allow_writes:
            guards = {s.name: SqlGuard(s) for s in specs}
            self.sql = {name: guard for name, guard in guards.items() if guard.is_needed}
        if not self.may_change:
            return specs  # a check of every result would be an eighth of what an episode costs
        self.outputs = {s.name: SchemaCheck(s.output_schema) for s in specs if s.output_schema is not None}
        return specs

    async def _say_that_it_starts(self) -> None:
        """Note now and then that the server has not answered its start yet."""
        limit_s, waited_s = self.limits.start_timeout_s, 0.0
        for pause_s in _STILL_STARTING_S:
            await asyncio.sleep(pause_s)
            waited_s += pause_s
            self._on_note(
                f"server {self.name!r} has not answered for {waited_s:g} s; it is waited for {limit_s:g} s "
                "(tools.per_server.NAME.start_timeout_s)"
            )

    def connect(self) -> ServerSupervisor:
        """Return a new connection, which opens at its first call; it shares gate and breaker with the
        others."""
        # A server object in this process is the same one each time: nothing to compare, and a list of many
        # tools would cost more than an episode's calls.
        is_known = self._first is not None and isinstance(self._launcher, MemoryLauncher)
        launcher, workspace = self._launcher, None
        if isinstance(launcher, StdioLauncher) and self._workspace is not None:
            workspace = self._workspace.copy()
            launcher = replace(launcher, workspace=workspace)
        return ServerSupervisor(
            self.name,
            launcher,
            breaker=self.breaker,
            start_timeout_s=self.limits.start_timeout_s,
            on_tool_list=partial(self._compare, workspace),
            lists_tools=not is_known,
            on_restart=self._count_restart,
            on_death=self._note_death,
            workspace=workspace,
        )

    def is_safe(self, spec: ToolSpec) -> bool:
        """Return True if a second effect of a call does no harm."""
        hints: ToolAnnotations = spec.annotations
        return hints.read_only or hints.idempotent or spec.name in self.limits.safe_to_retry

    def guard(self, call: ToolCall) -> None:
        """Raise CallFailed for a call that hands over SQL which is more than one plain SELECT."""
        guard = self.sql.get(call.tool)
        if guard is None or (why := guard.refusal(call.arguments)) is None:
            return
        self._note_once(
            FailureKind.DENIED,
            f"was not sent a call of {call.tool}: {why}. If its calls may change something: "
            f"{set_option('tools', 'per_server', self.name, 'allow_writes', value=True)}",
        )
        raise CallFailed(FailureKind.DENIED, why)

    def timed_out(self) -> None:
        """Say, once, that a call had no answer in time, and how many the server had."""
        self._note_once(
            FailureKind.TIMEOUT,
            f"did not answer a call within {self.timeout_s:g} s; it had {self.gate.in_flight} at once. If it "
            f"takes one after the other, lower tools.per_server.{self.name}.max_in_flight, else raise its "
            "timeout_s",
        )

    def failed(self, tool: str, kind: FailureKind, why: str) -> None:
        """Say, once for each kind of failure that is not the model's, which call it was and why. What has a
        note of its own is not said twice."""
        if kind.is_infrastructure and kind not in (FailureKind.TIMEOUT, FailureKind.CHANGED):
            why, _ = cut_middle(why, _WHY_CHARS)
            self._note_once(
                kind,
                f"failed a call of {tool} ({kind}): {why}; its episode is not scored, and the report counts "
                "further ones",
            )

    def _note_death(self, reason: str) -> None:
        why, _ = cut_middle(SECRETS.text(reason), _WHY_CHARS)
        self._note_once("death", f"ended in mid-run: {why}; it is started again when it is called")

    def _note_once(self, event: str, text: str) -> None:
        if event not in self._noted:
            self._noted.add(event)
            self._on_note(f"server {self.name!r} {text}")

    def metrics(self) -> ServerMetrics:
        """Return what its calls came to so far."""
        return ServerMetrics(
            server=self.name,
            in_flight=self.gate.in_flight,
            most_in_flight=self.gate.most_in_flight,
            restarts=self.counts.restarts,
            breaker=self.breaker.state,
            next_try_s=self.breaker.delay_s,
            waited_s=self.counts.waited_s,
            waited_max_s=self.counts.waited_max_s,
            forms=0 if self.forms is None else self.forms.answered,
            tools=self.counts.tools(),
        )

    def without_secrets(self, said: T, *, tool: str) -> T:
        """Return what the server said of or through a tool, without the values that it was given to keep."""
        where = f"{self.name}.{tool}"
        clean: T = SECRETS.value(said, where=where)
        if clean is not said and self.counts.note_secret(tool) == 1:
            names = sorted({name for name, met_at in SECRETS.met if met_at == where})
            self._on_note(
                f"{where} said the value of {', '.join(names)}; the name stands in its place, for the model "
                "and in everything that is written"
            )
        return clean

    def _count_restart(self) -> None:
        self.counts.restarts += 1

    def _compare(self, workspace: WorkspaceCopy | None, tool_list: ToolList) -> CatalogChange:
        """Hold a tool list against the one that the run began with, and say, once for each, that it is
        another. Raises OpenFailed if `on_catalog_change` refuses it."""
        now = {tool.name: tool for tool in self._offered(tool_list, workspace)}
        if self._first is None:
            self._first = now
        if now == self._first:
            return CatalogChange()
        change = CatalogChange.between(self._first, now)
        digest, first = (
            catalog_hash(to_spec(self.name, t) for t in tools.values()) for tools in (now, self._first)
        )
        if digest == first:
            return change
        what = change.text or "in what they say of themselves"
        text = f"has other tools than at the start ({what})"
        if self._config.on_catalog_change == "refuse":
            raise OpenFailed(f"it {text} (tools.on_catalog_change is refuse)", permanent=True)
        self._note_once(
            digest, f"{text}; the first ones stay on offer, and an episode that fails by it is not scored"
        )
        return change

    @staticmethod
    def _offered(tool_list: ToolList, workspace: WorkspaceCopy | None) -> Sequence[Tool]:
        """Return the tools of a list, which may name the folder of the workspace."""
        return tool_list.tools if workspace is None else [workspace.mapped(tool) for tool in tool_list.tools]

    def _cleaned(self, spec: ToolSpec) -> ToolSpec:
        spec = spec.model_copy(
            update={
                "description": self.without_secrets(spec.description, tool=spec.name),
                "input_schema": self.without_secrets(spec.input_schema, tool=spec.name),
                "output_schema": self.without_secrets(spec.output_schema, tool=spec.name),
            }
        )
        description, removed = without_hidden(spec.description)
        schema, removed_inside = over_schema_texts(spec.input_schema, without_hidden)
        if removed + removed_inside:
            self._on_note(
                f"tool {spec.dotted}: {removed + removed_inside} invisible characters were removed from its "
                "description or schema; look at what it says before you train on it"
            )
            spec = spec.model_copy(update={"description": description, "input_schema": schema})
        spec, cut = cut_texts(spec)
        if cut:
            self._on_note(
                f"tool {spec.dotted}: {cut:,} characters were cut out of its descriptions; one may have "
                f"{DESCRIPTION_CHARS:,}"
            )
        elif len(description) > _LONG_DESCRIPTION:
            self._on_note(f"tool {spec.dotted}: its description has {len(description):,} characters")
        return spec

    def _check_names(self, setting: str, named: Sequence[str], tools: Sequence[str]) -> None:
        for name in named:
            if name not in tools:
                raise UserError(
                    f"{setting} names a tool that server {self.name!r} does not have: {name!r}",
                    where=f"tools.per_server.{self.name}",
                    remedy=near_match(name, tools),
                )


def _with_usable_schemas(specs: Sequence[ToolSpec]) -> tuple[list[ToolSpec], list[str]]:
    """Return the tools whose arguments can be checked, and notes on what is not checked."""
    usable: list[ToolSpec] = []
    notes: list[str] = []
    for spec in specs:
        taken, problem = usable_schema(spec.input_schema)
        if problem is not None:
            notes.append(f"tool {spec.dotted} is left out: its input schema cannot be used: {problem}")
            continue
        promised, problem = usable_schema(spec.output_schema or {})
        problem = problem or why_schema_too_long(promised)
        if problem is not None:
            notes.append(f"tool {spec.dotted}: its output schema cannot be used and is dropped: {problem}")
        unpromised = spec.output_schema is None or problem is not None
        schemas = {"input_schema": taken, "output_schema": None if unpromised else promised}
        usable.append(spec.model_copy(update=schemas))
        for kind, schema in (("input", taken), ("output", {} if unpromised else promised)):
            notes += [
                f"tool {spec.dotted}: a pattern of its {kind} schema is not checked: {note}"
                for note in pattern_notes(schema)
            ]
    return usable, notes
