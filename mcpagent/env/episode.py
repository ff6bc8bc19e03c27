"""One episode: a task, a tool session, the model's steps, the grade."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mcpagent.core.answer_line import without_form
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import StateCheck, Task
from mcpagent.core.tools import ParseFailure, ToolCall, ToolResult
from mcpagent.core.trajectory import (
    Completion,
    FinishReason,
    Judgement,
    RewardTerm,
    SimulatedUser,
    StopReason,
    Trajectory,
    Turn,
)
from mcpagent.env.calls import CallOutcome, CallRunner
from mcpagent.env.offer import Discovery, OfferedTools, SearchableTools, offer
from mcpagent.env.parsing import observations, parse_action
from mcpagent.env.user import UserSimulator, UserTurn, secrets_of
from mcpagent.errors import EpisodeError
from mcpagent.reward.answer.verdict import GRADER
from mcpagent.reward.judge import Judge
from mcpagent.reward.record import EpisodeRecord, RecordedTurn, Reward, checks_with_before, state_checks
from mcpagent.reward.rule import turn_terms
from mcpagent.reward.terms import DEFAULT_REWARD
from mcpagent.tools.contract import Purpose, ToolProvider
from mcpagent.tools.wire import cut_middle

# Stands before the schemas in a user message that brings more tools: the system message stays as it is.
_TOOLS_ADDED = "From now on there are these tools, too:"
_MORE_TO_FIND = "From now on {} finds more tools."


@dataclass(frozen=True, kw_only=True)
class EpisodeLimits:
    """Hard limits of the environment, on top of those of the task. `timeout_s` is wall clock from `start`;
    messages of the task that are longer than `message_limit_chars` are cut in the middle."""

    max_turns: int | None = None
    max_tool_calls: int = 64
    timeout_s: float | None = None
    message_limit_chars: int = 1_000_000


@dataclass(frozen=True, kw_only=True)
class EpisodeStart:
    """The first things that the model sees: messages `{"role", "content"}` and the schemas of the offered
    tools."""

    messages: list[JsonObject]
    tool_schemas: tuple[JsonObject, ...]


@dataclass(frozen=True, kw_only=True)
class StepOutput:
    """The outcome of one model step. `observations` (`{"role": "tool" | "user", "content"}`, results with a
    `name`) go to the model; `tool_results` has one result for each call, in order; `stop_reason` is set
    exactly when `done`. `tool_schemas` are those of tools that are offered from now on; an observation has
    them too."""

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

    def as_turn(
        self, index: int, completion: Completion, *, added_token_ids: tuple[int, ...] = (), wall_s: float
    ) -> Turn:
        """Return the record of the step; `added_token_ids` is what stood between the completion before and
        this."""
        return Turn(
            index=index,
            user_turn=self.user_turn,
            added_token_ids=added_token_ids,
            completion=completion,
            tool_calls=self.tool_calls,
            parse_failures=self.parse_failures,
            tool_results=self.tool_results,
            user_message=self.user_message,
            simulated_user=self.simulated_user,
            wall_s=wall_s,
        )


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
        reward: Reward = DEFAULT_REWARD,
        judge: Judge | None = None,
    ) -> None:
        """`discovery`: tools are searched for; None offers all of the task's at once. `user` says the later
        user messages in its own words, by `seed`; None says them as the task has them. `judge` is asked if
        the task names one; None leaves its terms unscored."""
        self.task = task
        self.episode_id = episode_id
        self.errors: list[str] = []
        self.final_answer: str | None = None
        self.stop_reason: StopReason | None = None
        self.turn_terms: tuple[tuple[RewardTerm, ...], ...] = ()  # one entry a turn, once graded
        self._limits = limits or EpisodeLimits()
        self._catalog, self._session = tools.tools, tools.session()
        self._tool_format, self._reward, self._judge = tool_format, reward, judge
        self.judgement: Judgement | None = None
        self._discovery = discovery
        self._user, self._seed, self._said = user, seed, [m.content for m in task.prompt if m.role == "user"]
        self._searchable: SearchableTools | None = None
        self._runner: CallRunner | None = None
        self._turns: list[RecordedTurn] = []
        self._user_turn = self._search_turns = 0
        self._setup_results: list[ToolResult] = []
        self._before: list[ToolResult] = []  # of the state checks that compare with it
        self._state: list[ToolResult] = []  # of the first so many state checks
        self._terms: tuple[RewardTerm, ...] | None = None

    @property
    def done(self) -> bool:
        """Return whether the episode has ended; `stop_reason` says why."""
        return self.stop_reason is not None

    @property
    def state_results(self) -> tuple[ToolResult, ...]:
        """The environment's own calls: set-up first, then the state before the episode if a check compares
        with it, then the state checks in the order of `state_checks`."""
        return (*self._setup_results, *self._before, *self._state)

    @property
    def read_only(self) -> tuple[str, ...]:
        """Return the tools of the plan (`server.tool`) of which their servers say that they only read."""
        planned = {f"{step.server}.{step.tool}" for step in self.task.truth.tool_sequence}
        read_only_tools = {spec.dotted for spec in self._catalog.values() if spec.annotations.read_only}
        return tuple(sorted(planned & read_only_tools))

    @property
    def writing(self) -> tuple[str, ...]:
        """The tools called (`server.tool`) that may change something, on servers that declare some of theirs
        read-only: of other servers nothing is known."""
        specs = self._catalog.values()
        telling = {spec.server for spec in specs if spec.annotations.read_only}
        writes = {s.dotted for s in specs if s.server in telling and not s.annotations.read_only}
        return tuple(sorted(writes & {f"{c.server}.{c.tool}" for turn in self._turns for c in turn.calls}))

    @property
    def record(self) -> EpisodeRecord:
        """Return what the reward sees. An episode that has not ended counts as failed."""
        return EpisodeRecord(
            turns=tuple(self._turns),
            final_answer=self.final_answer,
            stop_reason=self.stop_reason or StopReason.FAILED,
            state_results=tuple(self._state),
            state_before=tuple(self._before),
            read_only=frozenset(self.read_only),
            writing=frozenset(self.writing),
            judgement=self.judgement,
        )

    async def start(self) -> EpisodeStart:
        """Put the servers into their initial state.

        Raises UserError if the catalog lacks a tool that is or will be offered, EpisodeError if the
        set-up fails.
        """
        truth, timeout_s = self.task.truth, self._limits.timeout_s
        if truth.tools_added:
            self._offered_in(len(truth.user_turns))
        offered = self._offered_in(0)
        if self._discovery is not None:
            names = self.task.offered_in(0)
            self._searchable = SearchableTools(
                self._catalog,
                names,
                self._discovery,
                task_id=self.task.id,
                tool_format=self._tool_format,
            )
            offered = self._searchable.offered
        self._runner = CallRunner(
            self._session,
            offered,
            max_calls=self._limits.max_tool_calls,
            limits=truth.limits,
            deadline_s=None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s,
            tools=self._searchable,
        )
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
        if self._runner is None or self.done:
            raise RuntimeError("step needs an episode that was started and is not done")
        parsed = parse_action(
            action,
            first_id=self._runner.made,
            tool_format=self._tool_format,
            schema_of=self._runner.offer.schema_of,
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
        """Return the reward terms; reads the state that is still to be checked first. Needs a finished
        episode."""
        if not self.done:
            raise RuntimeError("grade needs a finished episode; call finish first")
        if self._terms is None:
            if self.stop_reason is not StopReason.FAILED:
                await self._read_state(state_checks(self.task.truth)[len(self._state) :])
            if self._judge is not None:
                self.judgement = await self._judge.judge(self.task, self.record)
            graded = self._reward.grade(self.task, self.record)
            self._terms, self.turn_terms = graded.terms, turn_terms(self.task, self.record)
            self.errors += graded.errors
        return self._terms

    async def trajectory(
        self, turns: Sequence[Turn], *, prompt: Sequence[JsonObject], group_id: str, attempt: int, seed: int
    ) -> Trajectory:
        """Return the record of the ended episode, graded; `turns` are those of its steps, in order."""
        terms = await self.grade()
        graded = self.turn_terms or ((),) * len(turns)
        return Trajectory(
            id=self.episode_id,
            task_id=self.task.id,
            group_id=group_id,
            attempt=attempt,
            seed=seed,
            complexity=self.task.truth.complexity,
            prompt=tuple(prompt),
            turns=tuple(
                turn.model_copy(update={"reward_terms": turn_terms})
                for turn, turn_terms in zip(turns, graded, strict=True)
            ),
            final_answer=self.final_answer,
            stop_reason=self.stop_reason or StopReason.FAILED,
            reward_terms=terms,
            state_results=self.state_results,
            read_only=self.read_only,
            writing=self.writing,
            judgement=self.judgement,
            grader=GRADER,
            errors=tuple(self.errors),
        )

    async def close(self) -> None:
        """End the episode's own server instances. May be called more than once."""
        await self._session.close()

    def _stop(self, reason: StopReason, *errors: str) -> None:
        self.errors += errors
        self.stop_reason = self.stop_reason or reason

    async def _end_user_turn(self, text: str) -> StepOutput:
        """Text without a call: the final answer if no user message remains."""
        remaining = self.task.truth.user_turns[self._user_turn :]
        if remaining:
            checks = state_checks(self.task.truth)
            await self._read_state([item for item in checks if item[1].user_turn == self._user_turn])
            message, _ = cut_middle(remaining[0], self._limits.message_limit_chars)
            simulated = None
            if self._user is not None:
                goal = without_form(message)
                said, simulated = await self._user.say(self._turn_of_user(goal, text), seed=self._seed)
                message = f"{said}{message[len(goal) :]}"
            self._said.append(message)
            message, added = self._add_tools(message)
            output = self._advance(CallOutcome(), (), user_message=message, added=added)
            return replace(output, simulated_user=simulated)
        self.final_answer = text
        self._stop(StopReason.ANSWERED)
        return self._advance(CallOutcome(), ())

    def _turn_of_user(self, goal: str, heard: str) -> UserTurn:
        return UserTurn(
            goal=goal,
            said=self._said,
            heard=heard,
            results=[result for turn in self._turns for result in turn.results],
            tool_names=tuple(self._catalog),
            secrets=secrets_of(self.task),
        )

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
            self._runner.offer = self._searchable.offered
        else:
            self._runner.offer = self._offered_in(self._user_turn + 1)
            added = self._runner.offer.schemas[-len(names) :]
        lines = [_TOOLS_ADDED, *(json.dumps(schema, ensure_ascii=False) for schema in added)] if added else []
        if self._searchable is not None and len(added) < len(names):
            lines.append(_MORE_TO_FIND.format(self._searchable.search_name))
        return "\n".join([*lines, "", message]), added

    def _offered_in(self, user_turn: int) -> OfferedTools:
        names = self.task.offered_in(user_turn)
        return offer(self._catalog, names, task_id=self.task.id, tool_format=self._tool_format)

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
    """Model steps that may do nothing but search, with the steps that a task allows: one for each call of
    its plan and each user turn, and two more."""
    return len(task.truth.tool_sequence) + len(task.truth.user_turns) + 3


def prompt_messages(task: Task, limit_chars: int) -> list[JsonObject]:
    """Return what a model sees of the task first; longer messages are cut in the middle."""
    return [
        {**message.model_dump(), "content": cut_middle(message.content, limit_chars)[0]}
        for message in task.prompt
    ]
