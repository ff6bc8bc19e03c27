"""`mcpagent chat`: a person talks to an agent, whose tools are live."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from mcpagent.cli.options import ConfigOptions, Json, Servers, Settings, command_app, config_of_run
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import FailureKind, ToolCall, ToolResult, failed_result
from mcpagent.core.trajectory import Completion
from mcpagent.env.parsing import observations, parse_action
from mcpagent.errors import RunError, UserError
from mcpagent.policy.contract import CompletionRequest
from mcpagent.tools.contract import Purpose, ToolSession

if TYPE_CHECKING:
    from mcpagent.config.schema import TrainConfig
    from mcpagent.run.policies import ReadyPolicy
    from mcpagent.tools.setup import Tools

app = command_app()
_NOT_ALLOWED = "the user did not allow this call"


@app.command()
def chat(
    model: Annotated[
        str, typer.Argument(help="A run, a checkpoint, a model folder, a hub id, or openai:NAME.")
    ],
    servers: Servers = None,
    once: Annotated[
        str | None, typer.Option(metavar="QUESTION", help="Ask this alone, and ask nothing back.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Allow every call, also of tools that do not say they only read.")
    ] = False,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Talk to an agent, and see what it calls and what comes back.

    A tool that does not say that it only reads is called only if you allow it. With --once no question is
    asked: such a call is refused, unless --yes allows all. The exit code is then 1 if there is no answer.

    Example: mcpagent chat outputs/own --servers mcp.json

    Example: mcpagent chat outputs/own --once "Where is the Aurora moored?"
    """
    if as_json and once is None:
        raise UserError("--json is for one question", remedy='add --once "QUESTION"')
    console = Console(is_json=as_json)
    options = ConfigOptions(servers=servers, settings=settings, default_temperature=0.0)
    is_asked = once is None and sys.stdin.isatty()
    with _opened(options, model, console, allows_all=yes, is_asked=is_asked) as conversation:
        if once is not None:
            answer = conversation.ask(once)
            document = {"answer": answer, "calls": conversation.calls}
            console.print_blocks(document, [] if answer is None else [answer])
            if answer is None:
                raise RunError(f"there is no answer: {conversation.stopped}")
            return
        console.note("Ctrl-D ends the conversation")
        for question in _questions(is_asked=is_asked):
            answer = conversation.ask(question)
            console.show(f"(no answer: {conversation.stopped})" if answer is None else answer)


def _questions(*, is_asked: bool) -> Iterator[str]:
    while True:
        try:
            question = input("> " if is_asked else "").strip()
        except EOFError:
            return
        if question:
            yield question


@contextmanager
def _opened(
    options: ConfigOptions, model: str, console: Console, *, allows_all: bool, is_asked: bool
) -> Iterator[Conversation]:
    """Start the servers and load the model. Raises UserError."""
    from mcpagent.run.policies import SCRIPTED, open_policy, refuse_policy
    from mcpagent.tools.setup import open_tools

    if model in SCRIPTED:
        raise UserError(
            f"{model} is a script, which cannot be talked to", remedy="name a run, a folder or a hub id"
        )
    refuse_policy(model)
    config = options.config(console, policy=model, has_data=False)
    with (
        open_tools(config.tools, on_note=console.note) as tools,
        open_policy(model, tasks=(), config=config, slots=1, io=tools.io, on_note=console.note) as ready,
    ):
        conversation = Conversation(
            tools,
            ready,
            config,
            console,
            allows_all=allows_all,
            is_asked=is_asked,
            answer_line=asks_for_line(model, config),
        )
        try:
            yield conversation
        finally:
            conversation.close()


def asks_for_line(model: str, config: TrainConfig) -> bool:
    """Return whether a run was trained to end with the answer line: one that is not told to writes on."""
    from mcpagent.storage.datasets import find_dataset, read_tasks

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
    """What was said so far, and who goes on with it. `calls` are all that were made or refused, `stopped` is
    why the last question got no answer."""

    def __init__(
        self,
        tools: Tools,
        ready: ReadyPolicy,
        config: TrainConfig,
        console: Console,
        *,
        allows_all: bool,
        is_asked: bool,
        answer_line: bool,
    ) -> None:
        from mcpagent.env.calls import CallBudget, CallRunner
        from mcpagent.env.offer import offer
        from mcpagent.rollout.setup import agent_settings
        from mcpagent.synth.tasks.record import system_message

        self._io, self._ready, self._console = tools.io, ready, console
        self._allows_all, self._is_asked = allows_all, is_asked
        self._offer = offer(tools.pool.tools, None, task_id="chat")
        self._gate = _Gate(tools.pool.session())
        self._runner = CallRunner(self._gate, self._offer, CallBudget(max_calls=sys.maxsize))
        self._sampling = agent_settings(config, max_context=None).sampling
        self._max_turns = config.rollout.max_steps_per_episode
        told = system_message(tools.pool.tools, answer_line=answer_line)
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
                tool_format="auto" if self._ready.renderer is None else self._ready.renderer.tool_format,
                schema_of=self._offer.schema_of,
            )
            if not parsed.calls and not parsed.failures:
                return parsed.text
            for call in parsed.calls:
                self._announce(call)
            outcome = self._io.run(self._runner.run(parsed.calls))
            for call, result in zip(outcome.calls, outcome.results, strict=True):
                self._console.note(f"  = {result.content}")
                made = {"tool": f"{call.server}.{call.tool}", "arguments": call.arguments}
                self.calls.append({**made, "result": result.content, "failure": result.failure})
            for failure in parsed.failures:
                self._console.note(f"  not a call: {failure.reason}")
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

    def _announce(self, call: ToolCall) -> None:
        """Show a call, and refuse it if its tool may write and that was not allowed."""
        tool = self._offer.find(call.tool)
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        self._console.note(f"  {call.tool if tool is None else tool.spec.dotted} {arguments}")
        if tool is None or tool.spec.annotations.read_only or self._allows_all:
            return
        if not self._is_asked or not typer.confirm("  it may change something: call it?", err=True):
            self._gate.refused.add(call.id)
