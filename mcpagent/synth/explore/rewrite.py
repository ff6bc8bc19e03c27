"""Explored questions in a model's words: kept if another model reaches the answer from them.

The plan and the checks stay; only the question changes. Everything goes through the journal and the caps of
`gen-data --llm`: a run that was killed asks nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import yaml

from mcpagent.config.environment import resource_path
from mcpagent.console import Console
from mcpagent.core.answer_line import without_form
from mcpagent.core.placeholders import reference_texts
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import StopReason
from mcpagent.core.values import scalars
from mcpagent.interrupts import Interrupted
from mcpagent.llm.budget import ApiBudget, BudgetSpent
from mcpagent.llm.client import RetryingClient, gather_or_cancel
from mcpagent.llm.contract import ChatClient, ChatFailed, ChatRequest
from mcpagent.llm.endpoint import Endpoint, EndpointSettings
from mcpagent.llm.journal import Journal
from mcpagent.policy.contract import Sampling
from mcpagent.policy.openai import OpenAIPolicy
from mcpagent.rollout.collector import AgentSettings, Attempt, run_attempt
from mcpagent.storage.datasets import DiskList
from mcpagent.synth.explore.questions import said_value
from mcpagent.synth.tasks.inspect import answer_in_prompt
from mcpagent.synth.templates.rules import GeneratedData
from mcpagent.tools.contract import ToolProvider
from mcpagent.tools.io_thread import IOThread


@dataclass(frozen=True, kw_only=True)
class RewriteRun:
    """Whom to ask, over Chat Completions, what that may cost, and the file that keeps every answer. `solver`
    is whom the question is given to (None: the same model, which is told nothing of the plan)."""

    endpoint: EndpointSettings
    budget: ApiBudget
    journal: Path
    solver: EndpointSettings | None = None
    max_output_tokens: int = 1024
    seed: int = 0
    retry_failed: bool = False

    @property
    def models(self) -> JsonObject:
        """Who writes, and who solves."""
        return {"model": self.endpoint.model, "solver": (self.solver or self.endpoint).model}

    def apply(
        self, data: GeneratedData, pool: ToolProvider, io: IOThread, console: Console
    ) -> tuple[GeneratedData, JsonObject]:
        """Return the tasks with their questions in the model's words, and what became of them."""
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
                tasks, kept = io.run(rewriting)
            except KeyboardInterrupt as interrupt:
                raise Interrupted(f"{self.journal} has every answer so far") from interrupt
        return replace(data, tasks=tasks), {
            "rewritten": sum(map(len, tasks.values())) - sum(kept.values()),
            "kept_as_they_were": dict(sorted(kept.items())),
            "spend": self.budget.as_json(),
            "journal": str(self.journal),
        }


async def rewrite_tasks(
    tasks: Mapping[str, Sequence[Task]],
    pool: ToolProvider,
    *,
    run: RewriteRun,
    catalog_hash: str,
    on_note: Callable[[str], None] = lambda _: None,
    on_progress: Callable[[], None] = lambda: None,
) -> tuple[Mapping[str, Sequence[Task]], Mapping[str, int]]:
    """Return each task by split, with its question in the model's words if all checks hold, and by reason how
    many stayed as they were, the rest if a cap is reached. Raises UserError if no request can succeed."""
    kept: Counter[str] = Counter()
    made: dict[str, DiskList[Task]] = {split: DiskList() for split in tasks}
    asked: JsonObject = {
        "rewrite": dict(prompts()),
        **run.models,
        "max_output_tokens": run.max_output_tokens,
        "seed": run.seed,
        "catalog_hash": catalog_hash,
    }
    with closing(Journal(run.journal, run=asked, retry_failed=run.retry_failed)) as journal:
        journal.charge(run.budget)
        async with (
            aclosing(Endpoint(run.endpoint, on_note=on_note)) as writer,
            aclosing(Endpoint(run.solver or run.endpoint, on_note=on_note)) as solver,
        ):
            rewriter = _Rewriter(
                RetryingClient(writer, budget=run.budget, journal=journal),
                RetryingClient(solver, budget=run.budget, journal=journal),
                pool,
                run,
            )

            async def work(split: str, queue: Iterator[tuple[int, Task]]) -> None:
                for index, task in queue:
                    try:
                        outcome = await rewriter.rewrite(task)
                    except BudgetSpent:
                        outcome = "cap_reached"
                    except ChatFailed as failure:
                        outcome = failure.reason.value
                    on_progress()
                    made[split].put(index, outcome if isinstance(outcome, Task) else task)
                    kept.update([outcome] if isinstance(outcome, str) else [])

            for split, members in tasks.items():
                queue = enumerate(members)
                await gather_or_cancel(work(split, queue) for _ in range(run.endpoint.max_in_flight))
    return made, kept


@dataclass(frozen=True)
class _Rewriter:
    writer: ChatClient
    solver: ChatClient
    pool: ToolProvider
    run: RewriteRun

    async def rewrite(self, task: Task) -> Task | str:
        """Return the task in other words, or why it stays."""
        parts = {"question": without_form(task.prompt[-1].content), "values": ", ".join(_named(task))}
        told = tuple({"role": role, "content": text.format(**parts)} for role, text in prompts().items())
        request = ChatRequest(messages=told, max_output_tokens=self.run.max_output_tokens)
        text = (await self.writer.ask(request, key=f"{task.id}:write")).text.strip()
        if not text:
            return "empty"
        changed = _with_question(task, text, self.run)
        if any(value not in text for value in _named(task)):
            return "entity_lost"
        if answer_in_prompt(changed) is not None:
            return "answer_in_prompt"
        return await self._unsolved(changed) or changed

    async def _unsolved(self, task: Task) -> str | None:
        """Return None if the solver reaches the answer in an episode, which offers no tool but those of the
        plan that may change something; else why the question stays."""
        planned = {f"{step.server}.{step.tool}" for step in task.truth.tool_sequence}
        offered = [
            spec.dotted
            for spec in self.pool.tools.values()
            if (spec.annotations.read_only or spec.dotted in planned)
            and (task.offered_tools is None or spec.dotted in task.offered_tools)
        ]
        played = task.model_copy(update={"extra_info": {**task.extra_info, "tools": offered}})
        trajectory = await run_attempt(
            Attempt(task=played, attempt=0, group_id=task.id, seed=self.run.seed),
            policy=OpenAIPolicy(self.solver, run="solve"),
            tools=self.pool,
            settings=AgentSettings(sampling=Sampling(max_new_tokens=self.run.max_output_tokens)),
            renderer=None,
        )
        if trajectory.stop_reason is StopReason.FAILED:
            return "not_played"
        return None if trajectory.term("success") == 1.0 else "not_solved"


@lru_cache(maxsize=1)
def prompts() -> Mapping[str, str]:
    """Return `templates/prompts/rewrite.yaml`: by role, what the model is told."""
    return yaml.safe_load(resource_path("templates/prompts/rewrite.yaml").read_text("utf-8"))


def _named(task: Task) -> list[str]:
    """The values that the first message of the user names and that the plan or the evidence needs."""
    calls = [step.params for step in task.truth.tool_sequence]
    calls += [call.get("params", {}) for call in task.extra_info.get("would_call", ())]
    values = [value for value in scalars(calls) if not isinstance(value, bool) and not reference_texts(value)]
    for name in (name for fact in task.truth.evidence for name in fact.about):
        values += [name] if isinstance(name, str) else name
    texts = dict.fromkeys(said_value(value).strip('"') for value in values)
    return [text for text in texts if text in without_form(task.prompt[-1].content)]


def _with_question(task: Task, text: str, run: RewriteRun) -> Task:
    *before, last = task.prompt
    asked = without_form(last.content)
    info = {**task.extra_info, "rewritten": {"from": asked, **run.models}}
    prompt = (*before, last.model_copy(update={"content": f"{text}{last.content[len(asked) :]}"}))
    return task.model_copy(update={"prompt": prompt, "extra_info": info})
