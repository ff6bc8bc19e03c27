"""One sample from commission to task: write, check, execute, review, solve; and again, told why, if that
failed."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

from mcpagent.core.answer_line import written_answer
from mcpagent.core.placeholders import PlaceholderError, resolve_references
from mcpagent.core.records import JsonObject, Record, short_repr
from mcpagent.core.tasks import AnswerCheck, PlanStep, RewardSpec, Task
from mcpagent.core.tools import ToolSpec
from mcpagent.llm.budget import ApiBudget, BudgetSpent
from mcpagent.llm.contract import ChatClient, ChatFailed, ChatRequest
from mcpagent.llm.endpoint import EndpointSettings
from mcpagent.llm.journal import Journal
from mcpagent.reward.record import user_messages
from mcpagent.storage.datasets import task_record
from mcpagent.synth.llm.draft import (
    Draft,
    DraftFault,
    DraftFaultCode,
    DraftStage,
    FaultFound,
    FormatCheck,
    Solution,
    Vote,
    read_reply,
)
from mcpagent.synth.llm.evidence import is_constant, with_evidence
from mcpagent.synth.llm.prompts import Commission, PromptBuilder, Prompts, fill_in
from mcpagent.synth.tasks.inspect import groups_by
from mcpagent.synth.tasks.prove import grounded
from mcpagent.synth.tasks.run import CallCache, GoldRun, gold_record, replay, score
from mcpagent.synth.tasks.stages import RejectedTask, Rejection, yield_table
from mcpagent.synth.templates.pools import SPLITS, SplitShares
from mcpagent.tools.contract import ToolProvider

_SHOWN_CHARS = 3000  # of one result; what the review reads and the journal keeps
_DETAIL_CHARS = 600


@dataclass(frozen=True, kw_only=True)
class Executed:
    """A settled task, and its calls as they were made: server, tool, arguments, result."""

    task: Task
    calls: tuple[JsonObject, ...]


class Executor:
    """Runs plans, those that change something one at a time. Calls that a cassette answers repeat by
    nature."""

    def __init__(self, pool: ToolProvider) -> None:
        self._pool = pool
        self._turn = asyncio.Lock()
        self.executed_calls = 0

    async def run(self, draft: Task) -> JsonObject:
        """Return the settled `task` with its `calls`, or a `fault`, as the journal keeps them. The plan of a
        task without a fault ran more than once and gave the same, is worth 1.0, and is needed."""
        # A cache of its own: a call that was right for an earlier sample is evidence of that moment only.
        cache = CallCache(self._pool, turn=self._turn)
        outcome = await grounded(draft, cache, complete=with_evidence)
        self.executed_calls += cache.executed
        if isinstance(outcome, Rejection):
            return _fault(DraftStage.EXECUTE, outcome.code.value, outcome.detail)
        task, run = outcome
        return {"task": task_record(task), "calls": _calls(run)}

    async def solve(self, task: Task, plan: Sequence[JsonObject], value: Any) -> JsonObject:
        """Return what became of another way to the answer of a task, written without its plan: the `answer`
        that it ends in, or a `fault`."""
        steps = [PlanStep.model_validate({**step, "finds_nothing": True}) for step in plan]
        turn = len(task.truth.user_turns)
        steps = [step.model_copy(update={"user_turn": turn}) for step in steps]
        other = task.model_copy(
            update={
                "reward_spec": RewardSpec(
                    ground_truth=task.truth.model_copy(update={"tool_sequence": tuple(steps)})
                )
            }
        )
        cache = CallCache(self._pool, turn=self._turn)
        async with nullcontext() if cache.only_reads(other) else cache.turn:
            try:
                run = await replay(cache, other)
                answer = written_answer(
                    task.truth.final_answer or AnswerCheck(type="none"),
                    resolve_references(value, run.results) if value else None,
                )
            except (RejectedTask, PlaceholderError) as error:
                return _fault(DraftStage.SOLVE, DraftFaultCode.NOT_SOLVED.value, f"the solver's way: {error}")
            finally:
                self.executed_calls += cache.executed
        reads = frozenset(spec.dotted for spec in cache.specs if spec.annotations.read_only)
        record = gold_record(task, run, answer=f"Answer: {answer}", read_only=reads)
        if score(task, record)["success"] == 1.0:
            return {"answer": answer}
        shown = "\n".join(map(_shown, _calls(run)))
        detail = f"from the question alone another model came to {answer!r} by\n{shown or 'no call'}"
        check, evidence = task.truth.final_answer, task.truth.evidence or ()
        if check is not None and check.type != "none" and answer == written_answer(check, check.value):
            named = task.truth.success.must_call_tool
            facts = ", ".join(short_repr(fact.value) for fact in evidence) or f"a call of {named}"
            detail = (
                f"another model came to {answer!r} too, but its calls lack {facts}:\n{shown or 'no call'}"
            )
        return _fault(DraftStage.SOLVE, DraftFaultCode.NOT_SOLVED.value, detail)


def _fault(stage: DraftStage, code: str, detail: str) -> JsonObject:
    return {"fault": asdict(DraftFault(stage, code, detail[:_DETAIL_CHARS]))}


def _calls(run: GoldRun) -> list[JsonObject]:
    return [
        {
            "server": call.server,
            "tool": call.tool,
            "arguments": call.arguments,
            "result": result.content[:_SHOWN_CHARS],
        }
        for _, call, result in run.calls
    ]


def _shown(call: JsonObject) -> str:
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    cut = " ... (cut here)" if len(call["result"]) >= _SHOWN_CHARS else ""
    return f"- {call['server']}.{call['tool']}({arguments}) -> {call['result']}{cut}"


_EXAMPLES_KEPT = 3


@dataclass(frozen=True, kw_only=True)
class SampleOutcome:
    """One sample. `faults` has one for each attempt that failed; the last decides, if there is no
    `executed`. `cap` names the cap that ended the sample before it had an outcome."""

    number: int
    executed: Executed | None = None
    faults: tuple[DraftFault, ...] = ()
    cap: str | None = None


def sample_yield_table(outcomes: Sequence[SampleOutcome]) -> JsonObject:
    """`stages` by the last word on each finished sample: what enters a stage leaves it or is among its
    rejects, and the first takes in all that are finished. `attempts` counts the drafts that failed,
    fixed or not."""
    finished = [outcome for outcome in outcomes if outcome.cap is None]
    last = [outcome.faults[-1] for outcome in finished if outcome.executed is None]
    reasons = _sorted(Counter(fault.code for fault in last))
    rejects = {
        stage.value: _sorted(Counter(fault.code for fault in last if fault.stage is stage))
        for stage in DraftStage
    }
    kept = [outcome for outcome in finished if outcome.executed is not None]
    drafts = [
        fault for outcome in outcomes for fault in outcome.faults if fault.stage is not DraftStage.DISTINCT
    ]
    return {
        "samples": len(outcomes),
        "finished": len(finished),
        "unfinished": len(outcomes) - len(finished),
        "stopped_by": sorted({outcome.cap for outcome in outcomes if outcome.cap is not None}),
        "stages": yield_table(len(finished), rejects),
        "rejects": reasons,
        "reject_examples": {
            code: [fault.detail for fault in last if fault.code == code][:_EXAMPLES_KEPT] for code in reasons
        },
        "repaired": sum(bool(outcome.faults) for outcome in kept),
        "attempts": {"failed": len(drafts), "reasons": _sorted(Counter(fault.code for fault in drafts))},
    }


def _sorted(counter: Counter[str]) -> dict[str, int]:
    return dict(sorted(counter.items()))


@dataclass(frozen=True, kw_only=True)
class AskSettings:
    """The settings of the requests to the model: `samples` tasks, up to `repairs` further attempts at one;
    what that may cost; where every answer is kept, and whether what the service failed to answer is asked
    again. With a `batch` no service is asked: questions are written to that file, and `answers` is what came
    back for an earlier one."""

    endpoint: EndpointSettings
    prompts: Prompts
    budget: ApiBudget
    journal: Path
    retry_failed: bool = False
    batch: Path | None = None
    answers: Path | None = None
    samples: int
    repairs: int = 2
    max_output_tokens: int = 4096


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """The parts with which every sample is made. `provenance` goes into the extra_info of each task."""

    client: ChatClient
    journal: Journal
    asking: AskSettings
    check: FormatCheck
    executor: Executor
    prompt_builder: PromptBuilder
    provenance: JsonObject

    async def make(self, number: int) -> SampleOutcome:
        """Raise UserError if no sample could be made."""
        faults: list[DraftFault] = []
        try:
            executed = await self._until_good(self.prompt_builder(number), faults)
        except BudgetSpent as spent:
            return SampleOutcome(number=number, faults=tuple(faults), cap=spent.cap)
        return SampleOutcome(number=number, executed=executed, faults=tuple(faults))

    async def _until_good(self, commission: Commission, faults: list[DraftFault]) -> Executed | None:
        messages = commission.messages
        for attempt in range(self.asking.repairs + 1):
            key = self._key(commission, "draft", attempt)
            try:
                reply = await self.client.ask(self._request(messages, Draft, "task"), key=key)
                try:
                    return await self._made(read_reply(reply, Draft), commission, attempt)
                except FaultFound as fault_found:
                    fault = fault_found.fault
            except ChatFailed as failure:
                faults.append(DraftFault(DraftStage.GENERATE, failure.reason.value, failure.text))
                return None
            faults.append(fault)
            if not fault.is_repairable:
                return None
            told = fill_in(self.asking.prompts.texts.repair, **asdict(fault))
            # Only the last attempt goes back: a longer history costs more than it helps.
            messages = (
                *commission.messages,
                {"role": "assistant", "content": reply.text},
                {"role": "user", "content": told},
            )
        return None

    def _key(self, commission: Commission, what: str, attempt: int) -> str:
        return f"{self.check.settings.seed}:{commission.number}:{what}:{attempt}"

    async def _made(self, draft: Draft, commission: Commission, attempt: int) -> Executed:
        """Check a draft, run its plan, and have it reviewed and solved. Raises FaultFound and ChatFailed."""
        steps = self.asking.prompts.texts.classes[commission.kind].steps
        task = self.check.task(draft, kind=commission.kind, steps=steps)
        run = partial(self.executor.run, task)
        made = await self._recorded(self._key(commission, "executed", attempt), run)
        executed = Executed(task=Task.model_validate(made["task"]), calls=tuple(made["calls"]))
        # Both are asked at once, and every answer is kept before the first reason to stop is raised.
        asked = await asyncio.gather(
            self._review(executed, self._key(commission, "review", attempt)),
            self._solve(executed, self._key(commission, "solve", attempt)),
            return_exceptions=True,
        )
        for outcome in sorted(asked, key=lambda outcome: not isinstance(outcome, BudgetSpent)):
            if isinstance(outcome, BaseException):
                raise outcome
        info = {
            **executed.task.extra_info,
            **self.provenance,
            "sample": commission.number,
            "attempt": attempt,
            "domain": commission.domain,
        }
        return replace(executed, task=executed.task.model_copy(update={"extra_info": info}))

    async def _recorded(self, key: str, run: Callable[[], Awaitable[JsonObject]]) -> JsonObject:
        """Return what running something gave, from the journal if it is there: a live tool may answer
        differently, or cost money. Raises FaultFound."""
        recorded = self.journal.executed(key)
        if recorded is None:
            recorded = await run()
            self.journal.keep_executed(key, recorded)
        if (fault := recorded.get("fault")) is not None:
            raise FaultFound(DraftFault(DraftStage(fault["stage"]), fault["code"], fault["detail"]))
        return recorded

    async def _review(self, executed: Executed, key: str) -> None:
        """Raise FaultFound if what was computed is not the answer."""
        check = executed.task.truth.final_answer
        answer = "(a change, and no answer)" if check is None else written_answer(check, check.value)
        calls = "\n".join(map(_shown, executed.calls)) or "none"
        offered = executed.task.offered_tools or ()
        messages = self.prompt_builder.review(_asked(executed.task), calls, answer, offered)
        vote = read_reply(await self.client.ask(self._request(messages, Vote, "review"), key=key), Vote)
        if not vote.accept:
            raise FaultFound(DraftFault(DraftStage.REVIEW, DraftFaultCode.NOT_THE_ANSWER, vote.reason))

    async def _solve(self, executed: Executed, key: str) -> None:
        """Raise FaultFound if a way that is written from the question alone ends in another answer."""
        task = executed.task
        messages = self.prompt_builder.solve(_asked(task), task.offered_tools or ())
        reply = await self.client.ask(self._request(messages, Solution, "solution"), key=key)
        try:
            solution = read_reply(reply, Solution)
            plan, value = self.check.plan(solution.steps), self.check.value(solution.value)
        except FaultFound as fault_found:
            detail = f"the solver's way: {fault_found.fault.detail}"
            raise FaultFound(DraftFault(DraftStage.SOLVE, DraftFaultCode.NOT_SOLVED, detail)) from None
        await self._recorded(f"{key}:executed", partial(self.executor.solve, task, plan, value))

    def _request(self, messages: tuple[JsonObject, ...], form: type[Record], name: str) -> ChatRequest:
        return ChatRequest(
            messages=messages,
            max_output_tokens=self.asking.max_output_tokens,
            schema=form.model_json_schema(),  # every field required, no other allowed: strict outputs
            schema_name=name,
        )


def _asked(task: Task) -> str:
    """Return what the user says, as an episode shows it, with the form of the answer."""
    return "\n\n(asked back, the user adds:)\n".join(user_messages(task))


_WORD = re.compile(r"[A-Za-z0-9][\w.@/-]*")
_DATE = re.compile(r"\d{4}(-\d\d){1,2}")
_LONGEST = 60  # characters; longer arguments are texts and programs


def split_tasks(
    executed: Sequence[Executed],
    *,
    tools: Mapping[str, ToolSpec],
    shares: SplitShares,
    seed: int,
    splits: Collection[str] = SPLITS,
) -> dict[str, Sequence[Task]]:
    """Every task in one split, in the order given. Two tasks whose executed calls name the same entity share
    a split; so the shares hold for the groups that this makes, and only roughly for the tasks. Each of
    `splits` has a group, if there are enough. A group with a task that needs a server which training is not
    to see is held out."""
    named = [sorted(called_entities(item.calls, tools) or {item.task.id}) for item in executed]
    group_of = [named[first][0] for first in groups_by(named)]
    is_unseen = ("unseen_servers" in item.task.extra_info for item in executed)
    split_of = dict.fromkeys(compress(group_of, is_unseen), "heldout")
    result: dict[str, list[Task]] = {split: [] for split in SPLITS}
    shared = (group for group in group_of if group not in split_of)
    split_of |= shares.assign(shared, seed=seed, least=dict.fromkeys(splits, 1))
    for item, group in zip(executed, group_of, strict=True):
        split = split_of[group]
        info = {**item.task.extra_info, "split": split}
        result[split].append(item.task.model_copy(update={"extra_info": info}))
    return {split: tuple(tasks) for split, tasks in result.items()}


def called_entities(calls: Sequence[JsonObject], tools: Mapping[str, ToolSpec]) -> set[str]:
    """Return the words in the arguments of `calls` that name something: with a capital or a digit, and
    neither a number, a date nor a constant of the tool's schema. `tools` by `server.tool`."""
    names: set[str] = set()
    for call in calls:
        spec = tools[f"{call['server']}.{call['tool']}"]
        for name, value in call["arguments"].items():
            if isinstance(value, str) and len(value) <= _LONGEST and not is_constant(spec, name, value):
                names |= {word for word in _WORD.findall(value) if _is_name(word)}
    return names


def _is_name(word: str) -> bool:
    has_mark = any(c.isupper() or c.isdigit() for c in word)
    is_number = word.replace(".", "", 1).replace(",", "").isdigit()
    return has_mark and len(word) > 1 and not _DATE.fullmatch(word) and not is_number
