"""One sample from commission to task: write, check, execute, vote; and again, told why, where that failed."""

from __future__ import annotations

from dataclasses import dataclass

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.llm.budget import BudgetSpent
from mcpagent.llm.contract import ChatClient, ChatFailed, ChatRequest
from mcpagent.synth.llm.check import FaultFound, FormatCheck
from mcpagent.synth.llm.commission import Commission
from mcpagent.synth.llm.committee import Committee
from mcpagent.synth.llm.draft import Draft, form_of, read_reply
from mcpagent.synth.llm.execute import Executed, Executor
from mcpagent.synth.llm.faults import Fault, Stage
from mcpagent.synth.llm.journal import Journal
from mcpagent.synth.llm.prompts import Prompts, fill_in
from mcpagent.synth.llm.yields import Outcome


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """What every sample is made with. `provenance` goes into the extra_info of each task."""

    client: ChatClient
    journal: Journal
    prompts: Prompts
    check: FormatCheck
    executor: Executor
    committee: Committee
    repairs: int
    max_output_tokens: int
    seed: int
    provenance: JsonObject

    async def make(self, commission: Commission) -> Outcome:
        """Raises UserError where no sample could be made."""
        faults: list[Fault] = []
        try:
            executed = await self._until_good(commission, faults)
        except BudgetSpent as spent:
            return Outcome(number=commission.number, faults=tuple(faults), cap=spent.cap)
        return Outcome(number=commission.number, executed=executed, faults=tuple(faults))

    async def _until_good(self, commission: Commission, faults: list[Fault]) -> Executed | None:
        messages = commission.messages
        for attempt in range(self.repairs + 1):
            key = f"{self.seed}:{commission.number}"
            try:
                reply = await self.client.ask(self._request(messages), key=f"{key}:draft:{attempt}")
            except ChatFailed as failure:
                faults.append(Fault(Stage.GENERATE, failure.reason.value, failure.text))
                return None
            outcome = await self._consider(read_reply(reply, Draft), commission, f"{key}:{{}}:{attempt}")
            if isinstance(outcome, Executed):
                return self._signed(outcome, commission, attempt)
            faults.append(outcome)
            if not outcome.is_repairable:
                return None
            told = fill_in(
                self.prompts.texts.repair, stage=outcome.stage, code=outcome.code, detail=outcome.detail
            )
            # Only the last attempt goes back: a longer history costs more than it helps.
            messages = (
                *commission.messages,
                {"role": "assistant", "content": reply.text},
                {"role": "user", "content": told},
            )
        return None

    async def _consider(self, draft: Draft | Fault, commission: Commission, key: str) -> Executed | Fault:
        if isinstance(draft, Fault):
            return draft
        try:
            task = self.check.task(draft, complexity=commission.complexity)
        except FaultFound as found:
            return found.fault
        executed = await self._executed(task, key.format("executed"))
        if isinstance(executed, Fault):
            return executed
        votes = await self.committee.decide(executed, key=key.format("vote"))
        if isinstance(votes, Fault):
            return votes
        info = {**executed.task.extra_info, "votes": votes}
        return Executed(task=executed.task.model_copy(update={"extra_info": info}), calls=executed.calls)

    async def _executed(self, task: Task, key: str) -> Executed | Fault:
        """From the journal where it is there: a live tool may answer differently today, or cost money."""
        known: JsonObject | None = self.journal.executed(key)
        if known is None:
            outcome = await self.executor.run(task)
            known = {"fault": outcome.as_json()} if isinstance(outcome, Fault) else outcome.as_json()
            self.journal.keep_executed(key, known)
        if "fault" in known:
            return Fault.from_json(known["fault"])
        return Executed.from_json(known)

    def _request(self, messages: tuple[JsonObject, ...]) -> ChatRequest:
        return ChatRequest(
            messages=messages,
            max_output_tokens=self.max_output_tokens,
            schema=form_of(Draft),
            schema_name="task",
        )

    def _signed(self, executed: Executed, commission: Commission, attempt: int) -> Executed:
        info = {
            **executed.task.extra_info,
            **self.provenance,
            "sample": commission.number,
            "attempt": attempt,
            "domain": commission.domain,
            **({"curriculum": commission.curriculum_id} if commission.curriculum_id else {}),
        }
        return Executed(task=executed.task.model_copy(update={"extra_info": info}), calls=executed.calls)
