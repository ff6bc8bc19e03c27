"""`mcpagent chat`: a person talks to an agent, whose tools are live."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Annotated

import typer

from mcpagent.cli.options import ConfigOptions, Json, ReadOnly, Servers, Settings
from mcpagent.cli.readers import YesReadOnly, chosen_readers
from mcpagent.console import Console
from mcpagent.core.tools import ToolCall, ToolSpec
from mcpagent.errors import RunError, UserError


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
    read_only: ReadOnly = None,
    yes_read_only: YesReadOnly = False,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Talk to an agent, and see what it calls and what comes back.

    Which of the tools that do not say it only read is asked once, in the beginning. Any other one is called
    only if you allow it. With --once you are not asked: such a call is refused, unless --yes allows all. The
    exit code is then 1 if there is no answer.

    Example: mcpagent chat outputs/own --servers mcp.json

    Example: mcpagent chat outputs/own --once "Where is the Aurora moored?"
    """
    if as_json and once is None:
        raise UserError("--json is for one question", remedy='add --once "QUESTION"')
    from mcpagent.run.chat import open_conversation

    console = Console(is_json=as_json)
    options = ConfigOptions(servers=servers, settings=settings)
    config = options.config(
        console, policy=model, has_data=False, read_only=read_only, default_temperature=0.0
    )
    is_asked = once is None and sys.stdin.isatty()
    readers: set[str] = set()
    allows = _allows(console, readers, all_calls=yes, is_asked=is_asked)
    with open_conversation(config, model, allows=allows, note=console.note) as conversation:
        if not yes and not config.tools.read_only:
            readers |= {*chosen_readers(conversation.specs, console, takes_guess=yes_read_only)}
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


def _allows(
    console: Console, readers: Collection[str], *, all_calls: bool, is_asked: bool
) -> Callable[[ToolCall, ToolSpec | None], bool]:
    """Return what shows a call, and says whether it is made: one whose tool may write, and is not of the
    `readers`, only if that is allowed."""

    def allows(call: ToolCall, tool: ToolSpec | None) -> bool:
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        console.note(f"  {call.tool if tool is None else tool.dotted} {arguments}")
        if tool is None or tool.annotations.read_only or tool.dotted in readers or all_calls:
            return True
        return is_asked and typer.confirm("  it may change something: call it?", err=True)

    return allows
