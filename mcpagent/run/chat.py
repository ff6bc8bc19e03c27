"""A conversation with an agent whose tools are live."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import TaskLimits
from mcpagent.core.tools import FailureKind, ToolCall, ToolResult, ToolSpec, failed_result
from mcpagent.core.trajectory import Completion
from mcpagent.env.calls import CallRunner
from mcpagent.env.offer import offer
from mcpagent.env.parsing import observations, parse_action
from mcpagent.errors import UserError
from mcpagent.policy.contract import CompletionRequest
from mcpagent.rollout.setup import agent_settings
from mcpagent.run.policies import SCRIPTED, ReadyPolicy, config_of_run, open_policy, refuse_policy
from mcpagent.storage.datasets import find_dataset, read_tasks
from mcpagent.synth.tasks.record import system_message
from mcpagent.tools.contract import Purpose, ToolSession
from mcpagent.tools.setup import Tools, open_tools

_NOT_ALLOWED = "the user did not allow this call"


@contextmanager
def open_conversation(
    config: TrainConfig,
    model: str,
    *,
    allows: Callable[[ToolCall, ToolSpec | None], bool],
    note: Callable[[str], None],
) -> Iterator[Conversation]:
    """Start the servers and load the model. `allows` is shown each call and its tool (None: there is no such
    tool), and says whether the call is made; `note` gets what comes back. Raises UserError."""
    if model in SCRIPTED:
        raise UserError(
            f"{model} is a script, which cannot be talked to", remedy="name a run, a folder or a hub id"
        )
    refuse_policy(model)
    with (
        open_tools(config.tools, on_note=note) as tools,
        open_policy(model, tasks=(), config=config, slots=1, io=tools.io, on_note=note) as ready,
    ):
        line = asks_for_line(model, config)
        made = Conversation(tools, ready, config, answer_line=line, allows=allows, note=note)
        with closing(made) as conversation:
            yield conversation


def asks_for_line(model: str, config: TrainConfig) -> bool:
    """Return whether a run was trained to end with the answer line: one that is not told to writes on."""
    with suppress(UserError):  # its tasks may be gone
        tasks = read_tasks(find_dataset(config.data.train, split="train"))
        return config_of_run(model) is not None and next(tasks).truth.answer_line
    return False


class _Gate:
    """A session that makes only the calls that are not `refused`, by id (`tools.contract.ToolSession`)."""

    def __init__(self, session: ToolSession) -> None:
        self._session, self.refused = session, set[str]()
        self.close = session.close

    async def call(self, call: ToolCall, *, purpose: Purpose = Purpose.EPISODE) -> ToolResult:
        """Make the call, unless it is refused."""
        if call.id in self.refused:
            return failed_result(call, FailureKind.DENIED, _NOT_ALLOWED)
        return await self._session.call(call, purpose=purpose)


class Conversation:
    """The messages so far, and who goes on with them. `specs` are the tools, `calls` all that were made or
    refused, `stopped` is why the last question got no answer."""

    def __init__(
        self,
        tools: Tools,
        ready: ReadyPolicy,
        config: TrainConfig,
        *,
        answer_line: bool,
        allows: Callable[[ToolCall, ToolSpec | None], bool],
        note: Callable[[str], None],
    ) -> None:
        self._io, self._ready, self._allows, self._note = tools.io, ready, allows, note
        self._tool_format = "auto" if ready.renderer is None else ready.renderer.tool_format
        self.specs = list(tools.pool.tools.values())
        self._offer = offer(tools.pool.tools, None, task_id="chat", tool_format=self._tool_format)
        self._gate = _Gate(tools.pool.session())
        self._runner = CallRunner(self._gate, self._offer, max_calls=sys.maxsize, limits=TaskLimits())
        self._sampling = agent_settings(config, max_context=None).sampling
        self._max_turns = config.rollout.max_steps_per_episode
        told = system_message({tool.name: tool.spec for tool in self._offer.tools}, answer_line=answer_line)
        self._messages: list[JsonObject] = [{"role": "system", "content": told}]
        self._context: list[int] = []
        self.calls: list[JsonObject] = []
        self.stopped = ""

    def close(self) -> None:
        """Give back what the policy and the servers keep for it."""
        self._io.run(self._ready.policy.release("chat"))
        self._io.run(self._gate.close())

    def ask(self, question: str) -> str | None:
        """Return the answer, after the calls that the agent makes; None if it comes to none."""
        said: list[JsonObject] = [{"role": "user", "content": question}]
        for _ in range(self._max_turns):
            completion = self._complete(said)
            if completion is None:
                return None
            parsed = parse_action(
                completion.text,
                first_id=self._runner.made,
                tool_format=self._tool_format,
                schema_of=self._offer.schema_of,
            )
            if not parsed.calls and not parsed.failures:
                return parsed.text
            for call in parsed.calls:
                tool = self._offer.find(call.tool)
                if not self._allows(call, None if tool is None else tool.spec):
                    self._gate.refused.add(call.id)
            outcome = self._io.run(self._runner.run(parsed.calls))
            for call, result in zip(outcome.calls, outcome.results, strict=True):
                self._note(f"  = {result.content}")
                made = {"tool": f"{call.server}.{call.tool}", "arguments": call.arguments}
                self.calls.append({**made, "result": result.content, "failure": result.failure})
            for failure in parsed.failures:
                self._note(f"  not a call: {failure.reason}")
            said = observations(outcome.results, parsed.failures, None, calls=outcome.calls)
        self.stopped = f"it called tools in {self._max_turns} turns (rollout.max_steps_per_episode)"
        return None

    def _complete(self, said: list[JsonObject]) -> Completion | None:
        """Return what the model writes after `said`; None if that does not fit."""
        renderer, limit = self._ready.renderer, self._ready.max_context
        self._messages += said
        if renderer is not None and not self._context:
            self._context += renderer.prompt_ids(self._messages, self._offer.schemas)
        elif renderer is not None:
            self._context += renderer.suffix_ids(said, ended_by=self._context[-1])
        if limit is not None and len(self._context) >= limit:
            self.stopped = f"the conversation is longer than the {limit} tokens that the model holds"
            return None
        request = CompletionRequest(
            episode_id="chat",
            sampling=self._sampling,
            seed=len(self._messages),
            token_ids=tuple(self._context),
            messages=tuple(self._messages),
            tools=self._offer.schemas,
        )
        (completion,) = self._io.run(self._ready.policy.complete([request]))
        self._context += completion.token_ids
        self._messages.append({"role": "assistant", "content": completion.text})
        return completion
