"""`mcpagent doctor`: check this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from mcpagent.cli.options import ConfigOptions, Data, Group, Json, ToolFormat, with_options
from mcpagent.errors import RunError, UserError

if TYPE_CHECKING:
    from mcpagent.checks.environment import EnvCheckOutcome, ServerIsolation
    from mcpagent.checks.servers import ChaosOutcome
    from mcpagent.checks.smoke import SmokeResult
    from mcpagent.console import Console
    from mcpagent.core.records import CheckResult
    from mcpagent.tools.probes.chaos import ChaosResult, Seen

doctor_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@doctor_app.command()
def doctor(
    servers: Annotated[
        Path | None, typer.Option(help="An mcp.json whose servers to start. Default: the built-in ones.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="A dataset, or its folder, to check with the servers that it remembers. Default: train and "
            "validation in data/processed."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A hub id or folder: is it safe to train on its template's tokens?")
    ] = None,
    tool_format: ToolFormat = None,
    hub: Annotated[
        bool,
        typer.Option("--hub", help="Ask the model hub whether it answers: one request over the network."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check this machine: Python, packages, device, servers, API keys, hub, data, disk.

    Exits 1 if a check fails; each failure comes with the command that fixes it. Keys are never shown.
    Nothing leaves this machine, but with --hub, and with a --model that is not on it.

    With --model also whether tokens survive: suffixes that do not depend on the history, calls that read
    back, control tokens that tools cannot forge, and what is done to its logits.

    Example: mcpagent doctor --servers mcp.json
    """
    try:
        from mcpagent.checks.doctor import doctor as check_all
        from mcpagent.console import Console
        from mcpagent.core.records import CheckStatus
        from mcpagent.run.episodes import load_for_dataset
        from mcpagent.storage.datasets import dataset_file
    except ModuleNotFoundError as error:
        # The one thing that the checks cannot report: without its base packages mcpagent has no checks.
        raise UserError(
            f"the package {error.name} is missing", remedy="python -m pip install --force-reinstall mcpagent"
        ) from error

    console = Console(is_json=as_json)
    if data is not None:
        data = dataset_file(data, "train", "validation", "heldout")
    if data is not None and servers is None:
        tools = load_for_dataset(data=data, split=None, note=console.note, for_training=False).config.tools
        servers = None if tools.servers is None else Path(tools.servers)
    console.note("checking; servers are started and stopped")
    checks = check_all(servers=servers, data=data, model=model, tool_format=tool_format or "auto", hub=hub)
    if as_json:
        console.print_json(checks)
    else:
        _print_checks(checks, console)
    if any(check.status is CheckStatus.FAIL for check in checks):
        raise typer.Exit(RunError.exit_code)


def _print_checks(checks: Sequence[CheckResult], console: Console) -> None:
    from collections import Counter

    from mcpagent.core.records import CheckStatus

    rows = [(check.status.value, check.name, check.detail) for check in checks]
    console.table("mcpagent doctor", ("", "Check", "Detail"), rows, is_text=True)
    counts = Counter(check.status.value for check in checks)
    console.say(", ".join(f"{count} {status}" for status, count in counts.items()))
    wrong = [check for check in checks if check.status in (CheckStatus.FAIL, CheckStatus.WARN)]
    if wrong:
        console.say("To fix it:")
    for check in wrong:
        console.say(f"  {check.name}: {check.remedy}")


env_app = typer.Typer(
    cls=Group,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Check the environment.",
)
CheckOutcome = TypeVar("CheckOutcome", "EnvCheckOutcome", "ChaosOutcome")

_SHOWN = 20  # failing tasks listed on a terminal; --json has all


@env_app.callback()
def _group() -> None:
    """A group of commands, though there is one now."""


@env_app.command()
@with_options
def check(
    data: Data = None,
    chaos: Annotated[
        bool, typer.Option("--chaos", help="Injure the servers instead, and see what episodes would see.")
    ] = False,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="The isolation probe may call every tool.")
    ] = False,
    engine: Annotated[
        Literal["native", "skyrl"],
        typer.Option(help="skyrl: play the episodes through skyrl_gym's own make, as SkyRL does."),
    ] = "native",
    *,
    options: ConfigOptions,
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

    With --engine skyrl the records are written as SkyRL reads them and played through skyrl_gym's own make,
    init, step and close, on threads; what SkyRL gets must be what the episodes are worth.

    Example: mcpagent env check --data data/processed/train.jsonl

    Example: mcpagent env check --chaos --servers mcp.json

    Example: mcpagent env check --engine skyrl --data data/samples
    """
    from mcpagent.checks.environment import env_check
    from mcpagent.console import Console

    console = Console(is_json=as_json)
    config = options.config(console, data=data, has_data=data is not None)
    if chaos and engine != "native":
        raise UserError("--chaos plays no episodes", where="--engine", remedy="leave one of them out")
    if chaos:
        from mcpagent.checks.servers import check_chaos

        injured = check_chaos(config, console=console)
        _finish(injured, console, _print_chaos)
    else:
        from mcpagent.engines.skyrl.gym import gym_episodes

        outcome = env_check(
            config,
            data=data,
            allow_writes=allow_writes,
            open_player=gym_episodes if engine == "skyrl" else None,
            console=console,
        )
        _finish(outcome, console, _print_verdicts)


def _finish(outcome: CheckOutcome, console: Console, show: Callable[[CheckOutcome, Console], None]) -> None:
    console.print_result(outcome, show)
    if not outcome.passed:
        raise typer.Exit(1)


def _print_verdicts(outcome: EnvCheckOutcome, console: Console) -> None:
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


smoke_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@smoke_app.command()
def smoke(
    backend: Annotated[
        Literal["auto", "hf", "vllm"], typer.Option(help="auto: what would be chosen here.")
    ] = "auto",
    model: Annotated[
        str | None,
        typer.Option(
            help="A folder, a run, or a hub id (downloaded). Default: a small model of random weights."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Prove that what samples is what is trained: sample, swap an adapter, sample again, compare both with
    the trainer.

    Example: mcpagent smoke --backend hf
    """
    from mcpagent.console import Console
    from mcpagent.policy.contract import require_vllm
    from mcpagent.storage.checkpoints import find_model
    from mcpagent.storage.packages import require

    if model is not None:
        find_model(model)
    if backend == "vllm":
        require_vllm()
    require("hf", use="smoke")
    from mcpagent.checks.smoke import smoke as run

    console = Console(is_json=as_json)
    result = run(backend=backend, model=model, console=console)
    console.print_result(result, _print_proofs)


def _print_proofs(result: SmokeResult, console: Console) -> None:
    versions = "  ".join(f"{name} {version}" for name, version in result.versions.items())
    console.say(f"backend    {result.backend} ({result.why})")
    console.say(f"model      {result.model}, {result.dtype} on {result.device}")
    console.say(f"versions   {versions}")
    console.say(f"sampled    {result.sampled_tokens} tokens, {result.tokens_per_cpu_s:.0f} per CPU second")
    for name, proof in (("parity", result.first), ("swapped", result.swapped)):
        console.say(
            f"{name:10} {proof.difference:.1e} nats a token apart from the trainer, at most "
            f"{proof.largest:.1e}, over {proof.tokens} tokens ({proof.cpu_s:.3f} CPU s)"
        )
    console.say("stale      the old adapter was noticed, as it must be")
