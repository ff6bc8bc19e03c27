"""The judge of a run: the model call behind the `Judge` protocol, and what tells one judge from another."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from weakref import WeakValueDictionary

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Judgement
from mcpagent.errors import UserError
from mcpagent.judge.prompt import PROMPT_SHA256, SCHEMA, Question, question
from mcpagent.llm.budget import BudgetSpent
from mcpagent.llm.contract import ChatClient, ChatFailed, ChatReply, ChatRequest, Finish
from mcpagent.reward.judge import is_open_to_judge
from mcpagent.reward.record import EpisodeRecord


@dataclass(frozen=True, kw_only=True)
class JudgeRules:
    """All that decides what a judge is asked. It is asked at temperature 0."""

    model: str
    base_url: str | None = None
    prompt_sha256: str = PROMPT_SHA256

    @property
    def identity(self) -> str:
        """Equal for two judges that are asked the same."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def as_json(self) -> JsonObject:
        """Return what a manifest and a result say of the judge."""
        return {**asdict(self), "temperature": 0.0, "identity": self.identity}


@dataclass
class ModelJudge:
    """A `Judge` behind an API. A verdict that takes longer than `timeout_s` is given up; `on_note` is told of
    each kind of failure once."""

    client: ChatClient
    rules: JudgeRules
    timeout_s: float
    on_note: Callable[[str], None] = lambda _: None
    _told: set[str] = field(default_factory=set[str])
    _asking: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary[str, asyncio.Lock]
    )

    async def judge(self, task: Task, record: EpisodeRecord) -> Judgement | None:
        """Return the verdict on an episode that `is_open_to_judge`."""
        return await self.ask(task, record) if is_open_to_judge(task, record) else None

    async def ask(self, task: Task, record: EpisodeRecord) -> Judgement:
        """Return the verdict on any episode."""
        asked = question(task, record)
        said = Judgement(model=self.rules.model, identity=self.rules.identity, question_sha256=asked.sha256)
        try:
            async with asyncio.timeout(self.timeout_s):
                reply = await self._reply(asked)
        except TimeoutError:
            kind, fault = "slow", f"no verdict within {self.timeout_s:g} s"
        except BudgetSpent as spent:
            kind, fault = "spent", f"its budget is spent (api.{spent.cap})"
        except (ChatFailed, UserError) as failure:
            kind, fault = "down", f"no answer: {failure}"[:300]
        else:
            verdict = asked.read(reply.text) if reply.finish is Finish.STOP else None
            said = said.model_copy(update={"answer": reply.text, "verdict": verdict})
            if verdict is not None:
                return said
            kind, fault = "unreadable", f"its answer, ended by {reply.finish}, is not a verdict"
        if kind not in self._told:
            self._told.add(kind)
            self.on_note(f"the judge: {fault}; such episodes stay unscored")
        return said.model_copy(update={"fault": fault})

    async def _reply(self, asked: Question) -> ChatReply:
        request = ChatRequest(
            messages=asked.messages,
            max_output_tokens=1024,
            schema=SCHEMA,
            schema_name="verdict",
            temperature=0.0,
        )
        # Attempts at one task often say the same: the second waits for the answer that the first is kept.
        async with self._asking.setdefault(asked.sha256, asyncio.Lock()):
            return await self.client.ask(request, key=asked.sha256)
