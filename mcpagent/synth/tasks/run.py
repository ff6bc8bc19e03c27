"""The gold plan of a task, run for real: in a session of its own, whole or with steps left out."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mcpagent.core.placeholders import reference_texts, resolve_references
from mcpagent.core.records import JsonObject
from mcpagent.core.shown_values import shown_value
from mcpagent.core.tasks import PlanStep, StateCall, Task
from mcpagent.core.tools import FailureKind, ToolCall, ToolResult, ToolSpec
from mcpagent.core.trajectory import StopReason, total_reward
from mcpagent.reward.record import EpisodeRecord, RecordedTurn, checks_with_before, state_checks
from mcpagent.reward.rule import grade_by_rule
from mcpagent.synth.tasks.stages import RejectCode, RejectedTask
from mcpagent.tools.catalog import near_match
from mcpagent.tools.contract import Purpose, ToolProvider, ToolSession
from mcpagent.tools.schemas import SchemaCheck

# Tools that answer instead of failing say so in words.
_SAYS_NO = re.compile(r"\b([Ee]rror|E[A-Z]{4,7}|[Nn]ot found|[Nn]o matches|does not exist|[Ii]nvalid)\b")
_BEGINS_NO = re.compile(r"\W*(?:No [a-z]|There (?:is|are) no |Unknown )[^\n]{,200}")  # all of a text
_NO_ERROR = re.compile(r"\"errors?\": (null|\"\"|false|\[\]|\{\}|0)", re.I)

NO_NAME = "mcpagent-probe"  # names nothing: what a tool says of it, it says of everything
_ANSWERS = 20_000  # of read-only tools that a cache keeps: a gold plan and its proof ask the same soon after


class ToolShelf:
    """The tools of the servers in use, by server and name."""

    def __init__(self, specs: Iterable[ToolSpec]) -> None:
        self._specs: dict[tuple[str, str], ToolSpec] = {(t.server, t.name): t for t in specs}
        self._checks: dict[tuple[str, str, tuple[str, ...]], SchemaCheck] = {}

    @property
    def specs(self) -> Collection[ToolSpec]:
        """The catalog, in its order."""
        return self._specs.values()

    def argument_fault(self, server: str, tool: str, arguments: JsonObject) -> str | None:
        """Return where and why `arguments` break the input schema of a tool of the catalog, or which of them
        it does not have; None if they hold. Of those with a reference only the name is known so far."""
        schema = self._specs[server, tool].input_schema
        properties = schema.get("properties", {})
        unknown = sorted(arguments.keys() - properties.keys())
        if properties and unknown and not schema.get("additionalProperties"):
            hint = near_match(unknown[0], properties) or f"there are: {', '.join(properties)}"
            return f"{unknown[0]!r} is not an argument. {hint}"
        later = tuple(sorted(name for name, value in arguments.items() if reference_texts(value)))
        key = (server, tool, later)
        if key not in self._checks:
            required = [name for name in schema.get("required", ()) if name not in later]
            self._checks[key] = SchemaCheck({**schema, "required": required} if later else schema)
        return self._checks[key].fault({n: value for n, value in arguments.items() if n not in later})

    def is_read_only(self, server: str, tool: str) -> bool:
        """Return what the server says of the tool; False for one that it does not have."""
        spec = self._specs.get((server, tool))
        return spec is not None and spec.annotations.read_only


class CallCache(ToolShelf):
    """Answers of the read-only tools, for the length of one generation run.

    The same quote occurs in many plans, and one execution of it is evidence for all of them. A call is
    answered from the cache only while its server has seen nothing but read-only calls in that session;
    everything after a change is executed. Each `generation` of sessions has a cache of its own: a replay
    in another generation is not answered by what it is to be compared with.

    A session that only reads shares one instance of the servers in `own_instances` with the others of its
    generation, instead of starting one. If one read changes what another gives, a plan that was shown here is
    wrong in an instance of its own: what a dataset keeps is played in one once more (`generate`).

    Plans that change something take a `turn`: a user's own server may keep one state for all sessions, and
    then two of them at once would read each other's end state.
    """

    def __init__(
        self,
        provider: ToolProvider,
        *,
        own_instances: Collection[str] = (),
        turn: asyncio.Lock | None = None,
    ) -> None:
        super().__init__(provider.tools.values())
        self._provider = provider
        self.turn = turn or asyncio.Lock()
        self._answers: dict[str, ToolResult] = {}  # the latest, of `_ANSWERS` at most
        self._own_instances = frozenset(own_instances)
        self._reading: dict[int, ToolSession] = {}  # by generation; the provider's end closes them
        self.executed = 0  # calls that reached a server

    @asynccontextmanager
    async def session(self, *, generation: int = 0, only_reads: bool = False) -> AsyncIterator[SynthSession]:
        """A session of its own: stateful servers are as they were at the start. One that `only_reads` may
        share instances that were only read."""
        inner = self._provider.session()
        try:
            yield SynthSession(self, inner, generation, only_reads=only_reads)
        finally:
            await inner.close()

    def only_reads(self, task: Task) -> bool:
        """Return whether neither the plan of a task nor what is done around it changes anything."""
        truth = task.truth
        changes = any(check.expect for checks in truth.state.values() for check in checks)
        return not (truth.setup or changes) and all(
            self.is_read_only(step.server, step.tool) for step in truth.tool_sequence
        )

    def _keep(self, key: str, answer: ToolResult) -> None:
        """Keep it for plans to come; the oldest goes if there are too many, and is asked for again."""
        self._answers[key] = answer
        if len(self._answers) > _ANSWERS:
            del self._answers[next(iter(self._answers))]

    def _reader(self, generation: int) -> ToolSession:
        """The session of which the plans of a generation share the instances."""
        if generation not in self._reading:
            self._reading[generation] = self._provider.session()
        return self._reading[generation]


class SynthSession:
    """The calls of one plan."""

    def __init__(
        self, cache: CallCache, inner: ToolSession, generation: int, *, only_reads: bool = False
    ) -> None:
        self._cache = cache
        self._inner = inner
        self._generation = generation
        self._only_reads = only_reads
        self._changed: set[str] = set()
        self._count = 0

    async def call(self, *, server: str, tool: str, arguments: JsonObject) -> ToolResult:
        """Like `ToolSession.call`: a failing tool is a result."""
        self._count += 1
        call = ToolCall(id=f"call_{self._count}", server=server, tool=tool, arguments=arguments)
        is_read = self._cache.is_read_only(server, tool)
        if not is_read:
            self._changed.add(server)
        key = json.dumps([self._generation, server, tool, arguments], sort_keys=True)
        is_cacheable = is_read and server not in self._changed
        cached = self._cache._answers.get(key) if is_cacheable else None
        if cached is not None:
            return cached.model_copy(update={"call_id": call.id})
        is_shared = is_read and self._only_reads and server in self._cache._own_instances
        asked = self._cache._reader(self._generation) if is_shared else self._inner
        result = await asked.call(call, purpose=Purpose.SYNTH)
        self._cache.executed += 1
        if is_cacheable and result.failure is None:
            self._cache._keep(key, result)
        return result


GoldCalls = tuple[tuple[PlanStep, ToolCall, ToolResult], ...]


@dataclass(frozen=True, kw_only=True)
class GoldRun:
    """`results["step1"]` is what references to step 1 see; `state` are the results of the state checks, in
    the order of `state_checks`."""

    results: dict[str, Any]
    calls: GoldCalls
    state: tuple[ToolResult, ...]
    before: tuple[ToolResult, ...] = ()  # the state before the first call, if a check compares with it


async def run_plan(session: SynthSession, task: Task, *, without: Collection[int] = ()) -> GoldRun:
    """Set the state up, and for each user turn make its gold calls, those of the steps in `without` apart,
    and read the state. Raises Rejected, and PlaceholderError for a reference that does not resolve."""
    truth = task.truth
    for server, calls in truth.setup.items():
        for call in calls:
            await _ask(session, server, call, RejectCode.SETUP_FAILED)
    before = [
        await _ask(session, server, check.call, RejectCode.STATE_UNREADABLE)
        for server, check in checks_with_before(truth)
    ]
    results: dict[str, Any] = {}
    made: list[tuple[PlanStep, ToolCall, ToolResult]] = []
    state: list[ToolResult] = []
    for user_turn in (*range(len(truth.user_turns) + 1), None):
        for step in truth.tool_sequence:
            if step.user_turn == user_turn and step.step not in without:
                made.append(await _carry_out(session, step, results))
        for server, check in state_checks(truth):
            if check.user_turn == user_turn:
                # What the steps left out would have put there is missing: such a check does not hold.
                code, may_fail = RejectCode.STATE_UNREADABLE, bool(without)
                state.append(await _ask(session, server, check.call, code, may_fail=may_fail))
    return GoldRun(results=results, calls=tuple(made), state=tuple(state), before=tuple(before))


async def replay(
    cache: CallCache, task: Task, *, generation: int = 0, without: Collection[int] = ()
) -> GoldRun:
    """Return the plan in a new session."""
    async with cache.session(generation=generation, only_reads=cache.only_reads(task)) as session:
        return await run_plan(session, task, without=without)


async def _carry_out(
    session: SynthSession, step: PlanStep, results: dict[str, Any]
) -> tuple[PlanStep, ToolCall, ToolResult]:
    """Make the call of a step; what it finds joins `results`."""
    arguments = resolve_references(step.params, results)
    result = await session.call(server=step.server, tool=step.tool, arguments=arguments)
    if result.is_error and not (step.finds_nothing and result.failure is FailureKind.TOOL_ERROR):
        detail = f"step {step.step}: {step.server}.{step.tool}({arguments}): {result.content[:200]}"
        raise RejectedTask(RejectCode.STEP_FAILED, detail)
    results[f"step{step.step}"] = shown_value(result)
    return step, ToolCall(id=result.call_id, server=step.server, tool=step.tool, arguments=arguments), result


async def _ask(
    session: SynthSession, server: str, call: StateCall, code: RejectCode, *, may_fail: bool = False
) -> ToolResult:
    """Make a call about the state of a server. Raises RejectedTask with `code` if it fails; if it `may_fail`,
    only if it did not reach the tool."""
    result = await session.call(server=server, tool=call.tool, arguments=call.arguments)
    if result.is_error and not (may_fail and result.failure is FailureKind.TOOL_ERROR):
        raise RejectedTask(code, f"{server}.{call.tool}({call.arguments}): {result.content[:200]}")
    return result


def as_text(result: ToolResult) -> str:
    """Return what a result says, written the same for the same."""
    return json.dumps(shown_value(result), sort_keys=True, ensure_ascii=False)


def anonymous(result: ToolResult, names: Iterable[str]) -> str:
    """Return what a result says, with `NO_NAME` for each of the names."""
    said = as_text(result)
    for name in names:
        said = said.replace(json.dumps(name, ensure_ascii=False)[1:-1], NO_NAME)
    return said


def replaced_in(value: Any, text: str, other: str | int) -> Any:
    """Return `value` with `other` for each of its values that is `text`."""
    if isinstance(value, dict):
        return {name: replaced_in(item, text, other) for name, item in value.items()}
    if isinstance(value, list):
        return [replaced_in(item, text, other) for item in value]
    return other if not isinstance(value, bool) and str(value) == text else value


def says_no(result: ToolResult) -> bool:
    """Return whether a result that is no error speaks of one, or of nothing that there is."""
    said = as_text(result)
    head = _NO_ERROR.sub("", said)[: 400 if len(said) < 400 else 60]
    has_failed = any(shown_value(result).get(name) is False for name in ("success", "ok"))
    return has_failed or bool(_SAYS_NO.search(head) or _BEGINS_NO.fullmatch(result.content.strip()))


def gold_record(
    task: Task,
    run: GoldRun,
    *,
    answer: str | None,
    read_only: frozenset[str],
    extra: tuple[RecordedTurn, ...] = (),
) -> EpisodeRecord:
    """Return the episode of a policy that makes the calls of `run` one a turn and says `answer` at the end;
    `extra` are turns before those of the plan, `read_only` the tools (`server.tool`) that only read."""
    turns: list[RecordedTurn] = list(extra)
    for user_turn in range(len(task.truth.user_turns) + 1):
        for step, call, result in run.calls:
            if step.user_turn == user_turn:
                turns.append(RecordedTurn(user_turn=user_turn, calls=(call,), results=(result,)))
        turns.append(RecordedTurn(user_turn=user_turn, calls=(), results=()))
    return EpisodeRecord(
        turns=tuple(turns),
        final_answer=answer,
        stop_reason=StopReason.ANSWERED,
        state_results=run.state,
        state_before=run.before,
        read_only=read_only,
    )


def score(task: Task, record: EpisodeRecord) -> dict[str, float | None]:
    """Return the terms of an episode by name, and its `reward`, by the rule: of a task that a judge grades as
    well it says what can be proven."""
    terms = grade_by_rule(task, record)
    return {**{term.name: term.value for term in terms}, "reward": total_reward(terms)}
