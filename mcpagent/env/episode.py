"""One episode: a task, a tool session, the model's steps, the grade."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import StateCheck, Task
from mcpagent.core.tools import SEARCH_TOOL, FailureKind, ParseFailure, ToolCall, ToolResult
from mcpagent.core.trajectory import FinishReason, RewardTerm, SimulatedUser, StopReason
from mcpagent.env.offer import Discovery, OfferedTool, OfferedTools, SearchableTools, offer
from mcpagent.env.parsing import error_content, observations, parse_action
from mcpagent.env.user import UserSimulator, UserTurn
from mcpagent.errors import EpisodeError
from mcpagent.reward.record import EpisodeRecord, RecordedTurn, checks_with_before, grade, state_checks
from mcpagent.reward.rule import turn_terms
from mcpagent.tools.contract import Purpose, ToolProvider, ToolSession
from mcpagent.tools.wire import cut_middle


@dataclass(frozen=True, kw_only=True)
class CallBudget:
    """Limits over the whole episode; None: no limit. `max_tools` counts calls, as the task's limit does.
    `deadline_s` is a time of the running loop's clock."""

    max_calls: int
    max_tools: int | None = None
    max_servers: int | None = None
    deadline_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class CallOutcome:
    """Calls with the catalog's names (an unknown tool keeps an empty server), and one result for each."""

    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    stop_reason: StopReason | None = None
    errors: tuple[str, ...] = ()
    loaded: tuple[JsonObject, ...] = ()  # schemas that searches have loaded

    @property
    def only_searched(self) -> bool:
        """Whether its calls were searches for tools, all of them."""
        return bool(self.results) and all(result.is_search for result in self.results)


@dataclass(frozen=True, kw_only=True)
class _Planned:
    call: ToolCall
    refusal: ToolResult | None = None  # set where the call is not made
    may_overlap: bool = True
    is_search: bool = False


@dataclass
class CallRunner:
    """Makes the model's calls of one episode and counts them against its limits. With `tools` some of them
    are searches, whose results are in `offer` from the next step on; they count against `max_calls` alone."""

    session: ToolSession
    offer: OfferedTools
    limits: CallBudget
    tools: SearchableTools | None = None
    made: int = 0
    _searched: int = 0
    _loaded: list[JsonObject] = field(default_factory=list)
    _servers: set[str] = field(default_factory=set)

    async def run(self, calls: Sequence[ToolCall]) -> CallOutcome:
        """Results in the order of `calls`. Neighbouring read-only calls run at once; any other call waits for
        those before it and holds up those after it, so that the outcome does not depend on timing."""
        planned: list[_Planned] = []
        stop: StopReason | None = None
        for call in calls:
            stop = stop or self._limit_reached(call)
            planned.append(self._plan(call, stop))
        results: list[ToolResult] = []
        for may_overlap, batch in groupby(planned, key=lambda item: item.may_overlap):
            if may_overlap:
                results += await asyncio.gather(*(self._make(item) for item in batch))
            else:
                for item in batch:
                    results.append(await self._make(item))
        loaded, self._loaded = tuple(self._loaded), []
        if self.tools is not None and loaded:
            self.offer = self.tools.offered
        failures = [r for r in results if r.is_lost or r.is_chosen_miss]
        if any(r.is_chosen_miss for r in results):
            stop = StopReason.NOT_RECORDED
        elif failures and stop is None:
            stop = StopReason.TIMEOUT if self.deadline_passed else StopReason.FAILED
        return CallOutcome(
            calls=tuple(item.call for item in planned),
            results=tuple(results),
            stop_reason=stop,
            errors=tuple(f"{r.server}.{r.tool}: {r.failure}: {r.content[:200]}" for r in failures),
            loaded=loaded,
        )

    def _limit_reached(self, call: ToolCall) -> StopReason | None:
        """Count the call; which limit it breaks, if any."""
        self.made += 1
        tool = self.offer.find(call.tool)
        if self._is_search(tool):
            self._searched += 1
        elif tool is not None:
            self._servers.add(tool.spec.server)
        if self.limits.max_tools is not None and self.made - self._searched > self.limits.max_tools:
            return StopReason.LIMIT
        if self.limits.max_servers is not None and len(self._servers) > self.limits.max_servers:
            return StopReason.LIMIT
        return StopReason.MAX_TOOL_CALLS if self.made > self.limits.max_calls else None

    def _plan(self, call: ToolCall, stop: StopReason | None) -> _Planned:
        tool = self.offer.find(call.tool)
        if tool is None:
            none = f"there is no tool {call.tool!r}"
            why = none if self.tools is None else self.tools.why_unknown(call.tool)
            return _refused(call, FailureKind.UNKNOWN_TOOL, why)
        is_search = self._is_search(tool)
        call = call.resolved(tool.spec)
        problem = tool.argument_problem(call.arguments)
        if problem is not None:
            why = f"invalid arguments: {problem}"
            return _refused(call, FailureKind.INVALID_ARGUMENTS, why, is_search=is_search)
        if stop is not None:
            return _refused(call, FailureKind.LIMIT, "no calls are left", is_search=is_search)
        return _Planned(call=call, may_overlap=tool.spec.annotations.read_only, is_search=is_search)

    def _is_search(self, tool: OfferedTool | None) -> bool:
        return self.tools is not None and tool is not None and tool.spec is SEARCH_TOOL

    async def _make(self, item: _Planned) -> ToolResult:
        if item.refusal is not None:
            return item.refusal
        if item.is_search and self.tools is not None:
            content, schemas, names = self.tools.search(item.call.arguments)
            self._loaded += schemas
            return ToolResult(
                call_id=item.call.id,
                server=item.call.server,
                tool=item.call.tool,
                content=content,
                loaded=names,
            )
        try:
            async with asyncio.timeout_at(self.limits.deadline_s):
                return await self.session.call(item.call)
        except TimeoutError:
            return _result(item.call, FailureKind.TIMEOUT, "the deadline of the episode passed")

    @property
    def deadline_passed(self) -> bool:
        """Whether the time limit of the episode is over; never without one."""
        deadline_s = self.limits.deadline_s
        return deadline_s is not None and asyncio.get_running_loop().time() >= deadline_s


def _refused(call: ToolCall, failure: FailureKind, message: str, *, is_search: bool = False) -> _Planned:
    return _Planned(call=call, refusal=_result(call, failure, message, is_search=is_search))


def _result(call: ToolCall, failure: FailureKind, message: str, *, is_search: bool = False) -> ToolResult:
    return ToolResult(
        call_id=call.id,
        server=call.server,
        tool=call.tool,
        content=error_content(message[:500]),
        is_error=True,
        failure=failure,
        loaded=() if is_search else None,
    )


# Stands before the schemas in a user message that brings more tools: the system message stays as it is.
_TOOLS_ADDED = "From now on there are these tools, too:"
_MORE_TO_FIND = "From now on {} finds more tools."


@dataclass(frozen=True, kw_only=True)
class EpisodeLimits:
    """Hard limits of the environment, besides those of the task. `timeout_s` is wall clock from `start`;
    messages of the task that are longer than `message_limit_chars` are cut in the middle."""

    max_turns: int | None = None
    max_tool_calls: int = 64
    timeout_s: float | None = None
    message_limit_chars: int = 1_000_000


@dataclass(frozen=True, kw_only=True)
class EpisodeStart:
    """What the model sees first: messages `{"role", "content"}` and the schemas of the offered tools."""

    messages: list[JsonObject]
    tool_schemas: tuple[JsonObject, ...]


@dataclass(frozen=True, kw_only=True)
class StepOutput:
    """What one model step led to. `observations` (`{"role": "tool" | "user", "content"}`, results with a
    `name`) go to the model; `tool_results` has one result for each call, in order; `stop_reason` is set
    exactly when `done`.
    `tool_schemas` are those of tools that are offered from now on; an observation has them too."""

    observations: list[JsonObject]
    done: bool
    stop_reason: StopReason | None
    user_turn: int
    tool_calls: tuple[ToolCall, ...] = ()
    parse_failures: tuple[ParseFailure, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    user_message: str | None = None
    simulated_user: SimulatedUser | None = None
    tool_schemas: tuple[JsonObject, ...] = ()


class Episode:
    """Single use: `start`, then `step` until done (or `finish` from outside), then `grade`, then `close`.

    `tool_format` is the dialect that actions are read in (`env.parsing`). Infrastructure failures end
    it and leave it unscored; they are listed in `errors`.
    """

    def __init__(
        self,
        task: Task,
        tools: ToolProvider,
        *,
        limits: EpisodeLimits | None = None,
        episode_id: str,
        tool_format: str = "auto",
        discovery: Discovery | None = None,
        user: UserSimulator | None = None,
        seed: int = 0,
    ) -> None:
        """`discovery`: tools are searched for; None offers all of the task's at once. `user` says the later
        user messages in its own words, by `seed`; None says them as the task has them."""
        self.task = task
        self.episode_id = episode_id
        self.errors: list[str] = []
        self.final_answer: str | None = None
        self.stop_reason: StopReason | None = None
        self.turn_terms: tuple[tuple[RewardTerm, ...], ...] = ()  # one entry a turn, once graded
        self._limits = limits or EpisodeLimits()
        self._catalog = tools.tools
        self._session = tools.session()
        self._tool_format = tool_format
        self._discovery = discovery
        self._user, self._seed, self._said = user, seed, [m.content for m in task.prompt if m.role == "user"]
        self._searchable: SearchableTools | None = None
        self._search_turns = 0
        self._offer: OfferedTools | None = None
        self._runner: CallRunner | None = None
        self._turns: list[RecordedTurn] = []
        self._user_turn = 0
        self._setup_results: list[ToolResult] = []
        self._before: list[ToolResult] = []  # of the state checks that compare with it
        self._state: list[ToolResult] = []  # of the first so many state checks
        self._terms: tuple[RewardTerm, ...] | None = None

    @property
    def done(self) -> bool:
        """Whether the episode has ended; `stop_reason` says why."""
        return self.stop_reason is not None

    @property
    def state_results(self) -> tuple[ToolResult, ...]:
        """The environment's own calls: set-up first, then the state before the episode where a check compares
        with it, then the state checks in the order of `state_checks`."""
        return (*self._setup_results, *self._before, *self._state)

    @property
    def read_only(self) -> tuple[str, ...]:
        """The tools of the plan (`server.tool`) of which their servers say that they only read."""
        planned = {f"{step.server}.{step.tool}" for step in self.task.truth.tool_sequence}
        read_only_tools = {spec.dotted for spec in self._catalog.values() if spec.annotations.read_only}
        return tuple(sorted(planned & read_only_tools))

    @property
    def record(self) -> EpisodeRecord:
        """What the reward sees. An episode that has not ended counts as failed."""
        return EpisodeRecord(
            turns=tuple(self._turns),
            final_answer=self.final_answer,
            stop_reason=self.stop_reason or StopReason.FAILED,
            state_results=tuple(self._state),
            state_before=tuple(self._before),
            read_only=frozenset(self.read_only),
        )

    async def start(self) -> EpisodeStart:
        """Put the servers into their initial state.

        Raises UserError where the catalog lacks a tool that is or will be offered, EpisodeError where the
        set-up fails.
        """
        truth, timeout_s = self.task.truth, self._limits.timeout_s
        if truth.tools_added:
            self._offered_in(len(truth.user_turns))
        offered = self._offered_in(0)
        if self._discovery is not None:
            names = self.task.offered_in(0)
            self._searchable = SearchableTools(self._catalog, names, self._discovery, task_id=self.task.id)
            offered = self._searchable.offered
        limits = CallBudget(
            max_calls=self._limits.max_tool_calls,
            max_tools=truth.limits.max_tools,
            max_servers=truth.limits.max_servers,
            deadline_s=None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s,
        )
        self._offer, self._runner = offered, CallRunner(self._session, offered, limits, self._searchable)
        for server, calls in truth.setup.items():
            for call in calls:
                result = await self._own_call(server, call.tool, call.arguments, purpose=Purpose.SETUP)
                self._setup_results.append(result)
                if result.failure is not None or result.is_error:
                    self._stop(StopReason.FAILED)
                    raise EpisodeError(
                        f"set-up call {server}.{call.tool} failed: {result.content[:200]}",
                        where=f"task {self.task.id}, ground_truth.setup",
                    )
        for server, check in checks_with_before(truth):
            self._before.append(await self._read(server, check))
        messages = prompt_messages(self.task, self._limits.message_limit_chars)
        return EpisodeStart(messages=messages, tool_schemas=offered.schemas)

    async def step(self, action: str, *, finish: FinishReason = FinishReason.STOP) -> StepOutput:
        """Carry out what the model wrote; `finish` says what ended its completion."""
        if self._runner is None or self._offer is None or self.done:
            raise RuntimeError("step needs an episode that was started and is not done")
        parsed = parse_action(
            action,
            first_id=self._runner.made,
            tool_format=self._tool_format,
            schema_of=self._offer.schema_of,
        )
        if finish is not FinishReason.STOP:
            # A cut completion is not a decision: its calls are not made, its broken ones still count.
            length = finish is FinishReason.LENGTH
            self._stop(StopReason.MAX_TOKENS if length else StopReason.CONTEXT_OVERFLOW)
            return self._advance(CallOutcome(), parsed.failures)
        if self._runner.deadline_passed:
            self._stop(StopReason.TIMEOUT, f"the episode took longer than {self._limits.timeout_s} s")
            return self._advance(CallOutcome(), parsed.failures)
        if not parsed.calls and not parsed.failures:
            return await self._end_user_turn(parsed.text)
        outcome = await self._runner.run(parsed.calls)
        self._offer = self._runner.offer
        if outcome.stop_reason is not None:
            self._stop(outcome.stop_reason, *outcome.errors)
        return self._advance(outcome, parsed.failures, added=outcome.loaded)

    async def finish(self, stop_reason: StopReason, *, error: str | None = None) -> None:
        """End the episode from outside: the context is full, or the policy failed. The first reason stands,
        except that FAILED always does: a failure is never scored."""
        if stop_reason is StopReason.FAILED:
            self.stop_reason = stop_reason
        self._stop(stop_reason, *([error] if error else []))

    async def grade(self) -> tuple[RewardTerm, ...]:
        """The reward terms; reads the state that is still to be checked first. Needs a finished episode."""
        if not self.done:
            raise RuntimeError("grade needs a finished episode; call finish first")
        if self._terms is None:
            if self.stop_reason is not StopReason.FAILED:
                await self._read_state(state_checks(self.task.truth)[len(self._state) :])
            self._terms = grade(self.task, self.record)
            self.turn_terms = turn_terms(self.task, self.record)
        return self._terms

    async def close(self) -> None:
        """End the episode's own server instances. May be called more than once."""
        await self._session.close()

    def _stop(self, reason: StopReason, *errors: str) -> None:
        self.errors += errors
        self.stop_reason = self.stop_reason or reason

    async def _end_user_turn(self, text: str) -> StepOutput:
        """Text without a call: the final answer where no user message remains."""
        remaining = self.task.truth.user_turns[self._user_turn :]
        if remaining:
            checks = state_checks(self.task.truth)
            await self._read_state([item for item in checks if item[1].user_turn == self._user_turn])
            message, _ = cut_middle(remaining[0], self._limits.message_limit_chars)
            simulated = None
            if self._user is not None:
                message, simulated = await self._user.say(self._turn_of_user(message, text), seed=self._seed)
            self._said.append(message)
            message, added = self._add_tools(message)
            output = self._advance(CallOutcome(), (), user_message=message, added=added)
            return replace(output, simulated_user=simulated)
        self.final_answer = text
        self._stop(StopReason.ANSWERED)
        return self._advance(CallOutcome(), ())

    def _turn_of_user(self, goal: str, heard: str) -> UserTurn:
        made, names = [r for t in self._turns for r in t.results], self._catalog
        return UserTurn.of(self.task, goal=goal, said=self._said, heard=heard, results=made, tool_names=names)

    def _advance(
        self,
        outcome: CallOutcome,
        failures: tuple[ParseFailure, ...],
        *,
        user_message: str | None = None,
        added: tuple[JsonObject, ...] = (),
    ) -> StepOutput:
        """Record the model step and make what the model sees next."""
        turn = RecordedTurn.of(
            outcome.calls, outcome.results, user_turn=self._user_turn, parse_failures=failures
        )
        self._turns.append(turn)
        if outcome.only_searched and not failures and self._search_turns < search_turns(self.task):
            self._search_turns += 1
        allowed = self.task.truth.max_turns
        if self._limits.max_turns is not None:
            allowed = min(allowed, self._limits.max_turns)
        if len(self._turns) - self._search_turns >= allowed:
            self._stop(StopReason.MAX_TURNS)
        if user_message is not None:
            self._user_turn += 1
        return StepOutput(
            observations=observations(outcome.results, failures, user_message, calls=outcome.calls),
            done=self.done,
            stop_reason=self.stop_reason,
            user_turn=turn.user_turn,
            tool_calls=outcome.calls,
            parse_failures=failures,
            tool_results=outcome.results,
            user_message=user_message,
            tool_schemas=added,
        )

    def _add_tools(self, message: str) -> tuple[str, tuple[JsonObject, ...]]:
        """Offer what the next user turn brings: its message with the schemas of that, and the schemas."""
        names = self.task.truth.tools_added.get(self._user_turn + 1, ())
        if not names or self._runner is None:
            return message, ()
        if self._searchable is not None:
            added = self._searchable.widen(names)
            self._offer = self._runner.offer = self._searchable.offered
        else:
            self._offer = self._runner.offer = self._offered_in(self._user_turn + 1)
            added = self._offer.schemas[-len(names) :]
        lines = [_TOOLS_ADDED, *(json.dumps(schema, ensure_ascii=False) for schema in added)] if added else []
        if self._searchable is not None and len(added) < len(names):
            lines.append(_MORE_TO_FIND.format(self._searchable.search_name))
        return "\n".join([*lines, "", message]), added

    def _offered_in(self, user_turn: int) -> OfferedTools:
        return offer(self._catalog, self.task.offered_in(user_turn), task_id=self.task.id)

    async def _read_state(self, checks: Sequence[tuple[str, StateCheck]]) -> None:
        for server, check in checks:
            self._state.append(await self._read(server, check))

    async def _read(self, server: str, check: StateCheck) -> ToolResult:
        return await self._own_call(server, check.call.tool, check.call.arguments, purpose=Purpose.GRADE)

    async def _own_call(
        self, server: str, tool: str, arguments: JsonObject, *, purpose: Purpose
    ) -> ToolResult:
        call = ToolCall(id=f"{purpose.value}:{tool}", server=server, tool=tool, arguments=arguments)
        return await self._session.call(call, purpose=purpose)


def search_turns(task: Task) -> int:
    """Model steps that may do nothing but search besides the steps that a task allows: one for each call of
    its plan and each user turn, and two more."""
    return len(task.truth.tool_sequence) + len(task.truth.user_turns) + 3


def prompt_messages(task: Task, limit_chars: int) -> list[JsonObject]:
    """What a model sees of the task first; longer messages are cut in the middle."""
    return [
        {**message.model_dump(), "content": cut_middle(message.content, limit_chars)[0]}
        for message in task.prompt
    ]
