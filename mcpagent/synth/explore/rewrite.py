"""Explored questions in a model's words: kept where another model reaches the answer from them, and where a
blind reading does not tell which of two questions was generated.

The plan and the checks stay; only the question changes. Everything goes through the journal and the caps of
`gen-data --llm`: a run that was killed asks nothing twice.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from mcpagent.console import Console
from mcpagent.core.placeholders import reference_texts
from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolCall, ToolSpec
from mcpagent.core.trajectory import StopReason
from mcpagent.interrupts import Interrupted
from mcpagent.llm.budget import ApiBudget, BudgetSpent
from mcpagent.llm.client import RetryingClient
from mcpagent.llm.contract import ChatClient, ChatFailed, ChatRequest
from mcpagent.llm.endpoint import Endpoint, EndpointSettings, read_chat, read_responses
from mcpagent.llm.journal import Journal, JournaledClient
from mcpagent.reward.record import EpisodeRecord, RecordedTurn
from mcpagent.storage.datasets import DiskList
from mcpagent.synth.explore.graph import scalars
from mcpagent.synth.explore.naming import frames, said_value
from mcpagent.synth.explore.naturalness import spells_plan
from mcpagent.synth.tasks.inspect import answer_in_prompt
from mcpagent.synth.tasks.run import CallCache, score
from mcpagent.synth.templates.rules import GeneratedData
from mcpagent.tools.contract import ToolProvider
from mcpagent.tools.io_thread import IOThread

_RESULT_CHARS = 4000  # of one result that the solver reads
# Why a question stays as it was.
UNREADABLE, LOST, PLAN, TOLD, UNSOLVED, APART = (
    "unreadable", "entity_lost", "spells_plan", "answer_in_prompt", "not_solved", "told_apart",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RewriteSettings:
    """`solver` is whom the question is given to (None: the same model, which is told nothing of the plan)."""

    endpoint: EndpointSettings
    solver: EndpointSettings | None = None
    concurrency: int = 8
    per_minute: float | None = None
    max_output_tokens: int = 1024
    seed: int = 0

    def description(self, catalog_hash: str) -> JsonObject:
        """What makes a journal another run's."""
        return {
            "rewrite": frames()["rewrite"],
            "model": self.endpoint.model,
            "solver": (self.solver or self.endpoint).model,
            "max_output_tokens": self.max_output_tokens,
            "seed": self.seed,
            "catalog_hash": catalog_hash,
        }


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """`tasks` by split, those whose question stayed among them; `kept` counts by reason why it did."""

    tasks: Mapping[str, Sequence[Task]]
    rewritten: int
    kept: Mapping[str, int]
    spend: JsonObject

    def as_json(self) -> JsonObject:
        """The part of the document of `gen-data --json`."""
        return {"rewritten": self.rewritten, "kept_as_they_were": dict(self.kept), "spend": self.spend}


@dataclass(frozen=True, kw_only=True)
class RewriteRun:
    """What a rewriting may spend, and the file that keeps every answer."""

    settings: RewriteSettings
    budget: ApiBudget
    journal: Path
    retry_failed: bool = False

    def open_journal(self, catalog_hash: str) -> Journal:
        """The journal of this run. Raises UserError where the file is of another run."""
        read = read_chat if self.settings.endpoint.backend == "chat" else read_responses
        run = self.settings.description(catalog_hash)
        return Journal(self.journal, run=run, read=read, retry_failed=self.retry_failed)

    def apply(
        self, data: GeneratedData, pool: ToolProvider, io: IOThread, console: Console
    ) -> tuple[GeneratedData, JsonObject]:
        """The tasks with their questions in the model's words, and what became of them."""
        with console.progress("Rewriting", total=sum(map(len, data.tasks.values()))) as advance:
            rewriting = rewrite_tasks(
                data.tasks,
                pool,
                run=self,
                catalog_hash=data.catalog_hash,
                on_note=console.note,
                on_progress=lambda: advance(1),
            )
            try:
                done = io.run(rewriting)
            except KeyboardInterrupt as interrupt:
                raise Interrupted(f"{self.journal} has every answer so far") from interrupt
        return replace(data, tasks=done.tasks), {**done.as_json(), "journal": str(self.journal)}


async def rewrite_tasks(
    tasks: Mapping[str, Sequence[Task]],
    pool: ToolProvider,
    *,
    run: RewriteRun,
    catalog_hash: str,
    on_note: Callable[[str], None] = lambda _: None,
    on_progress: Callable[[], None] = lambda: None,
) -> Rewritten:
    """Each task, with its question in the model's words where all checks hold. Where a cap is reached the
    rest stays as it is. Raises UserError where no request can succeed."""
    reasons: Counter[str] = Counter()
    settings, budget = run.settings, run.budget
    with run.open_journal(catalog_hash) as journal:
        journal.charge(budget)
        async with (
            Endpoint(settings.endpoint, on_note=on_note) as writer,
            Endpoint(settings.solver or settings.endpoint, on_note=on_note) as solver,
        ):

            def client(endpoint: Endpoint) -> ChatClient:
                patient = RetryingClient(
                    endpoint,
                    budget=budget,
                    observer=journal,
                    max_in_flight=settings.concurrency,
                    per_minute=settings.per_minute,
                )
                return JournaledClient(patient, journal)

            rewriter = _Rewriter(client(writer), client(solver), pool, settings)
            made: dict[str, DiskList[Task]] = {split: DiskList() for split in tasks}

            async def work(split: str, queue: Iterator[tuple[int, Task]]) -> None:
                for index, task in queue:
                    outcome = await _outcome(rewriter, task)
                    on_progress()
                    made[split].put(index, outcome if isinstance(outcome, Task) else task)
                    reasons.update([outcome] if isinstance(outcome, str) else [])

            for split, members in tasks.items():
                queue = enumerate(members)
                await asyncio.gather(*(work(split, queue) for _ in range(settings.concurrency)))
    total = sum(map(len, made.values()))
    return Rewritten(
        tasks=made,
        rewritten=total - sum(reasons.values()),
        kept=dict(sorted(reasons.items())),
        spend=budget.as_json(),
    )


async def _outcome(rewriter: _Rewriter, task: Task) -> Task | str:
    try:
        return await rewriter.rewrite(task)
    except BudgetSpent:
        return "cap_reached"
    except ChatFailed as failure:
        return failure.reason.value


@dataclass(frozen=True)
class _Rewriter:
    writer: ChatClient
    solver: ChatClient
    pool: ToolProvider
    settings: RewriteSettings

    async def rewrite(self, task: Task) -> Task | str:
        """The task in other words, or why it stays."""
        question = task.prompt[-1].content
        reply = await self._ask(
            self.writer, f"{task.id}:write", _told("write", question=question, values=", ".join(_named(task)))
        )
        text = reply.get("question") if reply is not None else None
        if not isinstance(text, str) or not text.strip():
            return UNREADABLE
        text = text.strip()
        changed = _with_question(task, text, self.settings)
        if reason := self._fault(changed, text):
            return reason
        if not await self._is_solved(changed):
            return UNSOLVED
        return APART if await self._is_told_apart(changed, text) else changed

    def _fault(self, task: Task, text: str) -> str | None:
        if any(value not in text for value in _named(task)):
            return LOST
        if spells_plan(text, list(self.pool.tools.values()), entities=_named(task)):
            return PLAN
        return TOLD if answer_in_prompt(task) is not None else None

    async def _is_solved(self, task: Task) -> bool:
        """Whether the solver reaches the answer from the words of the user and the tools, which it calls."""
        offered = self._offered(task)
        messages: list[JsonObject] = _told("solve", tools=_listed(offered))
        turns: list[RecordedTurn] = []
        answer: str | None = None
        async with CallCache(self.pool).session() as session:
            for user_turn, said in enumerate((task.prompt[-1].content, *task.truth.user_turns)):
                messages.append({"role": "user", "content": said})
                answer = None
                for _ in range(task.truth.max_turns):
                    key = f"{task.id}:solve:{len(messages)}"
                    reply = await self._ask(self.solver, key, messages)
                    if reply is None:
                        return False
                    messages.append({"role": "assistant", "content": json.dumps(reply)})
                    if isinstance(reply.get("answer"), str):
                        answer = reply["answer"]
                        turns.append(RecordedTurn(user_turn=user_turn))
                        break
                    spec, arguments = offered.get(str(reply.get("tool"))), reply.get("arguments")
                    if spec is None or not isinstance(arguments, dict) or not spec.annotations.read_only:
                        return False
                    result = await session.call(server=spec.server, tool=spec.name, arguments=arguments)
                    call = ToolCall(
                        id=result.call_id, server=spec.server, tool=spec.name, arguments=arguments
                    )
                    turns.append(RecordedTurn(user_turn=user_turn, calls=(call,), results=(result,)))
                    messages.append({"role": "user", "content": f"Result: {result.content[:_RESULT_CHARS]}"})
        record = EpisodeRecord(
            turns=tuple(turns),
            final_answer=answer,
            stop_reason=StopReason.ANSWERED if answer is not None else StopReason.MAX_TURNS,
            read_only=frozenset(spec.dotted for spec in offered.values() if spec.annotations.read_only),
        )
        return score(task, record)["success"] == 1.0

    async def _is_told_apart(self, task: Task, text: str) -> bool:
        """Whether the model names the question as the generated one of two, whichever stands first. The other
        was typed by a person."""
        rng = Random(derive_seed(self.settings.seed, "people", task.id))
        other = rng.choice(frames()["people"])
        named = 0
        for place, pair in enumerate(((text, other), (other, text))):
            told = _told("tell", first=pair[0], second=pair[1])
            reply = await self._ask(self.writer, f"{task.id}:tell:{place}", told)
            named += reply is not None and reply.get("generated") == place + 1
        return named == 2

    def _offered(self, task: Task) -> dict[str, ToolSpec]:
        names = task.offered_tools
        return {n: t for n, t in self.pool.tools.items() if names is None or t.dotted in names}

    async def _ask(self, client: ChatClient, key: str, messages: Sequence[JsonObject]) -> JsonObject | None:
        """The JSON object of an answer; None where it is none."""
        request = ChatRequest(messages=tuple(messages), max_output_tokens=self.settings.max_output_tokens)
        reply = await client.ask(request, key=key)
        text = reply.text[reply.text.find("{") : reply.text.rfind("}") + 1]
        try:
            value: Any = json.loads(text)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


def _told(what: str, **parts: str) -> list[JsonObject]:
    """What the model is told, as a system message and a user message where there is one."""
    told: dict[str, str] = frames()["rewrite"][what]
    return [{"role": role, "content": text.format(**parts)} for role, text in told.items()]


def _listed(tools: Mapping[str, ToolSpec]) -> str:
    return "\n".join(
        json.dumps({"tool": name, "description": spec.description, "arguments": spec.input_schema})
        for name, spec in tools.items()
    )


def _named(task: Task) -> list[str]:
    """The values that the first message of the user names and that the plan needs as they are."""
    calls = [step.params for step in task.truth.tool_sequence]
    calls += [call.get("params", {}) for call in task.extra_info.get("would_call", ())]
    values = [value for call in calls for value in scalars(call) if not isinstance(value, bool)]
    question = task.extra_info.get("rewritten", {}).get("from") or task.prompt[-1].content
    texts = [said_value(value).strip('"') for value in values if not reference_texts(value)]
    return [text for text in dict.fromkeys(texts) if text in question]


def _with_question(task: Task, text: str, settings: RewriteSettings) -> Task:
    *before, last = task.prompt
    told = {
        "from": last.content,
        "model": settings.endpoint.model,
        "solver": (settings.solver or settings.endpoint).model,
    }
    return task.model_copy(
        update={
            "prompt": (*before, last.model_copy(update={"content": text})),
            "extra_info": {**task.extra_info, "rewritten": told},
        }
    )
