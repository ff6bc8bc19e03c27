"""One sample from commission to task: write, check, execute, vote; and again, told why, if that failed."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mcpagent.core.records import JsonObject, Record
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.llm.budget import ApiBudget, BudgetSpent
from mcpagent.llm.contract import ChatClient, ChatFailed, ChatRequest
from mcpagent.llm.endpoint import EndpointSettings
from mcpagent.llm.journal import Journal
from mcpagent.storage.datasets import task_record
from mcpagent.synth.llm.draft import (
    Draft,
    DraftFault,
    DraftFaultCode,
    DraftStage,
    FaultFound,
    FormatCheck,
    Vote,
    read_reply,
)
from mcpagent.synth.llm.prompts import Commission, Prompts, fill_in
from mcpagent.synth.tasks.inspect import groups_by
from mcpagent.synth.tasks.prove import grounded
from mcpagent.synth.tasks.run import CallCache
from mcpagent.synth.tasks.stages import Rejection, yield_table
from mcpagent.synth.templates.pools import SPLITS, SplitShares
from mcpagent.tools.contract import ToolProvider

_SHOWN_CHARS = 1500  # of one result; what the committee reads and the journal keeps
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
        outcome = await grounded(draft, cache)
        self.executed_calls += cache.executed
        if isinstance(outcome, Rejection):
            detail = outcome.detail[:_DETAIL_CHARS]
            return {"fault": asdict(DraftFault(DraftStage.EXECUTE, outcome.code.value, detail))}
        task, run = outcome
        calls = [
            {
                "server": call.server,
                "tool": call.tool,
                "arguments": call.arguments,
                "result": result.content[:_SHOWN_CHARS],
            }
            for _, call, result in run.calls
        ]
        return {"task": task_record(task), "calls": calls}


def _shown(call: JsonObject) -> str:
    return f"- {call['server']}.{call['tool']}({json.dumps(call['arguments'])}) -> {call['result']}"


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
    """How the model is asked: `samples` tasks, `votes` on each, up to `repairs` further attempts at one; what
    that may cost; where every answer is kept, and whether what the service failed to answer is asked
    again."""

    endpoint: EndpointSettings
    prompts: Prompts
    budget: ApiBudget
    journal: Path
    retry_failed: bool = False
    samples: int
    votes: int = 3
    repairs: int = 2
    max_output_tokens: int = 4096


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """What every sample is made with. `provenance` goes into the extra_info of each task."""

    client: ChatClient
    journal: Journal
    asking: AskSettings
    check: FormatCheck
    executor: Executor
    provenance: JsonObject

    async def make(self, commission: Commission) -> SampleOutcome:
        """Raise UserError if no sample could be made."""
        faults: list[DraftFault] = []
        try:
            executed = await self._until_good(commission, faults)
        except BudgetSpent as spent:
            return SampleOutcome(number=commission.number, faults=tuple(faults), cap=spent.cap)
        return SampleOutcome(number=commission.number, executed=executed, faults=tuple(faults))

    async def _until_good(self, commission: Commission, faults: list[DraftFault]) -> Executed | None:
        messages = commission.messages
        for attempt in range(self.asking.repairs + 1):
            key = self._key(commission, "draft", attempt)
            try:
                reply = await self.client.ask(self._request(messages, Draft, "task"), key=key)
            except ChatFailed as failure:
                faults.append(DraftFault(DraftStage.GENERATE, failure.reason.value, failure.text))
                return None
            try:
                return await self._made(read_reply(reply, Draft), commission, attempt)
            except FaultFound as fault_found:
                fault = fault_found.fault
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
        """Check a draft, run its plan, and have it voted on. Raises FaultFound."""
        task = self.check.task(draft, complexity=commission.complexity)
        executed = await self._executed(task, self._key(commission, "executed", attempt))
        info = {
            **executed.task.extra_info,
            "votes": await self._votes(executed, key=self._key(commission, "vote", attempt)),
            **self.provenance,
            "sample": commission.number,
            "attempt": attempt,
            "domain": commission.domain,
            **({"curriculum": commission.curriculum_id} if commission.curriculum_id else {}),
        }
        return replace(executed, task=executed.task.model_copy(update={"extra_info": info}))

    async def _executed(self, task: Task, key: str) -> Executed:
        """Take it from the journal if it is there: a live tool may answer differently, or cost money."""
        recorded: JsonObject | None = self.journal.executed(key)
        if recorded is None:
            recorded = await self.executor.run(task)
            self.journal.keep_executed(key, recorded)
        if (fault := recorded.get("fault")) is not None:
            raise FaultFound(DraftFault(DraftStage(fault["stage"]), fault["code"], fault["detail"]))
        return Executed(task=Task.model_validate(recorded["task"]), calls=tuple(recorded["calls"]))

    async def _votes(self, executed: Executed, *, key: str) -> list[JsonObject]:
        """Return the votes of an accepted task: more than half of all must accept, or FaultFound is raised.
        One that cannot be read counts for neither side and is named."""
        votes = self.asking.votes
        outcomes = await asyncio.gather(
            *(self._vote(executed, f"{key}:{n}", n) for n in range(votes)), return_exceptions=True
        )
        # Every answer that was paid for is in the journal before the budget ends the sample.
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        cast = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        accepting = sum(vote["accept"] is True for vote in cast)
        refusing = sum(vote["accept"] is False for vote in cast)
        if 2 * accepting > votes or votes == 0:
            return cast
        reasons = " / ".join(vote["reason"] for vote in cast if vote["accept"] is not True)
        # Could the votes that are missing have made a majority?
        could_pass = 2 * (votes - refusing) > votes
        code = DraftFaultCode.VOTES_MISSING if could_pass else DraftFaultCode.VOTED_DOWN
        raise FaultFound(DraftFault(DraftStage.COMMITTEE, code, reasons))

    async def _vote(self, executed: Executed, key: str, number: int) -> JsonObject:
        texts, truth = self.asking.prompts.texts, executed.task.truth
        check = truth.final_answer
        system = fill_in(texts.judge.system, lens=texts.lenses[number % len(texts.lenses)])
        user = fill_in(
            texts.judge.user,
            user_prompt=executed.task.prompt[-1].content,
            calls="\n".join(map(_shown, executed.calls)),
            answer="none" if check is None else f"{check.type} {json.dumps(check.value)}",
            reference_answer=truth.reference_answer,
        )
        messages = ({"role": "system", "content": system}, {"role": "user", "content": user})
        try:
            vote = read_reply(await self.client.ask(self._request(messages, Vote, "vote"), key=key), Vote)
        except ChatFailed as failure:
            return {"accept": None, "reason": f"no vote: {failure.reason}"}
        except FaultFound as fault_found:
            return {"accept": None, "reason": f"no vote: {fault_found.fault.code}"}
        return vote.model_dump()

    def _request(self, messages: tuple[JsonObject, ...], form: type[Record], name: str) -> ChatRequest:
        return ChatRequest(
            messages=messages,
            max_output_tokens=self.asking.max_output_tokens,
            schema=form.model_json_schema(),  # every field required, no other allowed: strict outputs
            schema_name=name,
        )


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
    `splits` has a group, if there are enough."""
    named = [sorted(called_entities(item.calls, tools) or {item.task.id}) for item in executed]
    group_of = [named[first][0] for first in groups_by(named)]
    result: dict[str, list[Task]] = {split: [] for split in SPLITS}
    split_of = shares.assign(group_of, seed=seed, least=dict.fromkeys(splits, 1))
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
        properties = tools[f"{call['server']}.{call['tool']}"].input_schema.get("properties", {})
        for name, value in call["arguments"].items():
            schema = properties.get(name, {})
            is_constant = value in schema.get("enum", ()) or value == schema.get("default")
            if isinstance(value, str) and len(value) <= _LONGEST and not is_constant:
                names |= {word for word in _WORD.findall(value) if _is_name(word)}
    return names


def _is_name(word: str) -> bool:
    has_mark = any(c.isupper() or c.isdigit() for c in word)
    is_number = word.replace(".", "", 1).replace(",", "").isdigit()
    return has_mark and len(word) > 1 and not _DATE.fullmatch(word) and not is_number
