"""`mcpagent env`: check the environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from mcpagent.cli.options import Group, with_options
from mcpagent.cli.sampling import Chosen, Data, Json

if TYPE_CHECKING:
    from mcpagent.console import Console
    from mcpagent.core.metrics import CheckResult
    from mcpagent.tools.chaos import ChaosResult, Seen
    from mcpagent.workflows.chaos import ChaosOutcome
    from mcpagent.workflows.env_check import EnvCheckOutcome
    from mcpagent.workflows.isolation import ServerIsolation

app = typer.Typer(
    cls=Group,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Check the environment.",
)
Outcome = TypeVar("Outcome", "EnvCheckOutcome", "ChaosOutcome")

_SHOWN = 20  # failing tasks listed on a terminal; --json has all


@app.callback()
def _group() -> None:
    """A group of commands, though there is one now."""


@app.command()
@with_options
def check(
    data: Data = None,
    chaos: Annotated[
        bool, typer.Option("--chaos", help="Injure the servers instead, and see what episodes would see.")
    ] = False,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="The isolation probe may call every tool.")
    ] = False,
    *,
    chosen: Chosen,
    as_json: Json = False,
) -> None:
    """Check that the environment tells right from wrong and keeps episodes apart.

    Exits 1 where it does not. The gold plan must score 1.0 on every task, silence must fail every task but
    those where no call is right, and a policy that always calls must fail those. MCPToolEnv must have the
    methods that SkyRL calls.

    Two instances of each server are started, and it is seen whether one episode's calls show up in another's.
    Only tools that the server declares read-only, or additive and closed, and that need no path are called
    for it, with a text that can be found again; --allow-writes calls every tool.

    Without --data: the sample tasks that ship with mcpagent. With --chaos, every server is killed, stopped,
    hung and garbled (over HTTP what is between it and us is), without one of its tools being called; exits 1
    where one does not recover. A process that one leaves behind is named, and ended.

    Example: mcpagent env check --data data/processed/train.jsonl

    Example: mcpagent env check --chaos --servers mcp.json
    """
    from mcpagent.console import Console
    from mcpagent.workflows.env_check import env_check

    console = Console(is_json=as_json)
    config = chosen.config(console, data=data, has_data=data is not None)
    if chaos:
        from mcpagent.workflows.chaos import check_chaos

        injured = check_chaos(config, console=console)
        _finish(injured, console, _print_chaos)
    else:
        outcome = env_check(config, data=data, allow_writes=allow_writes, console=console)
        _finish(outcome, console, _print)


def _finish(outcome: Outcome, console: Console, show: Callable[[Outcome, Console], None]) -> None:
    if console.is_json:
        console.print_json(outcome.as_json())
    else:
        show(outcome, console)
    if not outcome.passed:
        raise typer.Exit(1)


def _print(outcome: EnvCheckOutcome, console: Console) -> None:
    from mcpagent.console import counted

    if outcome.source is not None:
        console.say(f"{counted(outcome.n_tasks, 'task')} from {outcome.source}")
    for result in outcome.checks:
        _print_check(result, console)
    if outcome.isolation:
        _print_isolation(outcome.isolation, console)
    if outcome.failing:
        console.say("failing tasks:")
    for task_id, names in list(outcome.failing.items())[:_SHOWN]:
        console.say(f"  {task_id}: {'; '.join(names)}")
    if len(outcome.failing) > _SHOWN:
        console.say(f"  and {len(outcome.failing) - _SHOWN} more (--json lists all)")


def _print_check(result: CheckResult, console: Console) -> None:
    console.say(f"{result.status.value:<5} {result.name}: {result.detail}")
    if result.remedy is not None:
        console.say(f"      {result.remedy}")


def _print_isolation(servers: Sequence[ServerIsolation], console: Console) -> None:
    for server in servers:
        _print_check(server.check, console)
        verdict = server.verdict
        if verdict is None:
            continue
        if verdict.writes:
            console.say(f"      the probe wrote {verdict.probe_text!r} with {', '.join(verdict.writes)}")
        if verdict.left:
            console.say(f"      and left {', '.join(verdict.left)}")
        tools_by_reason: dict[str, list[str]] = {}
        for tool, reason in verdict.not_tried.items():
            tools_by_reason.setdefault(reason, []).append(tool)
        for reason, tools in tools_by_reason.items():
            console.say(f"      not judged: {', '.join(tools)}: {reason}")
    rows = [
        (v.server, v.recommended, v.state.value, v.basis.value, server.forecast)
        for server in servers
        if (v := server.verdict) is not None
    ]
    columns = ["Server", "Recommended", "State", "Basis", "An instance for every episode"]
    console.table("Isolation", columns, rows, is_text=True)


def _print_chaos(outcome: ChaosOutcome, console: Console) -> None:
    columns = ["Fault", "Status", "A read sees", "A write sees", "Recovered", "Leaked"]
    for server in dict.fromkeys(result.server for result in outcome.results):
        mine = [result for result in outcome.results if result.server == server]
        rows = [
            (
                r.fault.value,
                r.status.value,
                _seen(r.read),
                _seen(r.write),
                "-" if r.recovery_s is None else f"{r.recovery_s:.1f} s",
                _leaked(r),
            )
            for r in mine
        ]
        console.table(server, columns, rows, is_text=True)
        faults: dict[tuple[str, str], list[str]] = {}
        for result in mine:
            for line in (*([result.detail] if result.detail else []), *result.notes):
                faults.setdefault((result.status.value, line), []).append(result.fault.value)
        for (status, line), names in faults.items():
            console.say(f"{status:<5} {', '.join(names)}: {line}")


def _seen(seen: Seen | None) -> str:
    if seen is None:
        return "-"
    kind = "answer" if seen.failure is None else seen.failure.value
    return kind if seen.is_scored else f"unscored: {kind}"


def _leaked(result: ChaosResult) -> str:
    leaks = result.leaks
    if leaks is None:
        return "-"
    counts = {
        "processes": len(leaks.processes),
        "ended": len(result.ended),
        "tasks": len(leaks.tasks),
        "files": leaks.files,
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "nothing"
