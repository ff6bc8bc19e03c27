"""Votes on what no rule can tell: does the plan answer the request, and would anybody ask it?"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from mcpagent.core.records import JsonObject
from mcpagent.llm.contract import ChatClient, ChatFailed, ChatRequest
from mcpagent.synth.llm.draft import Vote, form_of, read_reply
from mcpagent.synth.llm.execute import Executed
from mcpagent.synth.llm.faults import Fault, FaultCode, Stage
from mcpagent.synth.llm.prompts import Prompts, fill_in


@dataclass(frozen=True, kw_only=True)
class Committee:
    """`votes` members; more than half of all of them must accept. A vote that cannot be read counts for
    neither side and is named."""

    client: ChatClient
    prompts: Prompts
    votes: int
    max_output_tokens: int

    async def decide(self, executed: Executed, *, key: str) -> list[JsonObject] | Fault:
        """The votes of an accepted task; the key of each is `key` and its number."""
        outcomes = await asyncio.gather(
            *(self._vote(executed, f"{key}:{n}", n) for n in range(self.votes)), return_exceptions=True
        )
        # Every answer that was paid for is in the journal before the budget ends the sample.
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        votes = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        accepting = sum(vote["accept"] is True for vote in votes)
        refusing = sum(vote["accept"] is False for vote in votes)
        if 2 * accepting > self.votes or self.votes == 0:
            return votes
        reasons = " / ".join(vote["reason"] for vote in votes if vote["accept"] is not True)
        # Could the votes that are missing have made a majority?
        if 2 * (self.votes - refusing) > self.votes:
            return Fault(Stage.COMMITTEE, FaultCode.VOTES_MISSING, reasons)
        return Fault(Stage.COMMITTEE, FaultCode.VOTED_DOWN, reasons)

    async def _vote(self, executed: Executed, key: str, number: int) -> JsonObject:
        texts, truth = self.prompts.texts, executed.task.truth
        check = truth.final_answer
        system = fill_in(texts.judge.system, lens=texts.lenses[number % len(texts.lenses)])
        user = fill_in(
            texts.judge.user,
            user_prompt=executed.task.prompt[-1].content,
            calls="\n".join(map(_shown, executed.calls)),
            answer="none" if check is None else f"{check.type} {json.dumps(check.value)}",
            reference_answer=truth.reference_answer,
        )
        request = ChatRequest(
            messages=({"role": "system", "content": system}, {"role": "user", "content": user}),
            max_output_tokens=self.max_output_tokens,
            schema=form_of(Vote),
            schema_name="vote",
        )
        try:
            vote = read_reply(await self.client.ask(request, key=key), Vote)
        except ChatFailed as failure:
            return {"accept": None, "reason": f"no vote: {failure.reason}"}
        if isinstance(vote, Fault):
            return {"accept": None, "reason": f"no vote: {vote.code}"}
        return vote.model_dump()


def _shown(call: JsonObject) -> str:
    return f"- {call['server']}.{call['tool']}({json.dumps(call['arguments'])}) -> {call['result']}"
