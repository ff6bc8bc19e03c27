"""`mcpagent doctor`, `mcpagent env check` and `mcpagent smoke`, what can be checked before a run; and
`mcpagent env serve`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mcpagent.cli.options import (
    ConfigFiles,
    ConfigOptions,
    Json,
    Overwrite,
    Servers,
    Settings,
    group_app,
    out_file,
    refuse_existing,
)
from mcpagent.console import Block, Console, Facts, counted
from mcpagent.errors import RunError, UserError
from mcpagent.storage.packages import require

if TYPE_CHECKING:
    from mcpagent.checks.environment import EnvCheckOutcome, ServerIsolation
    from mcpagent.checks.smoke import SmokeResult
    from mcpagent.core.records import CheckResult


def doctor(
    servers: Servers = None,
    model: Annotated[
        str | None, typer.Option(help="A hub id or folder: is it safe to train on its template's tokens?")
    ] = None,
    set_: Settings = None,
    as_json: Json = False,
) -> None:
    """Check this machine: Python, packages, device, servers, API keys, disk.

    Exits 1 if a check fails; each failure comes with the command that fixes it. Keys are never shown.
    Nothing leaves this machine, unless --model names one that is not on it.

    Without --servers, list the files in which MCP clients of this machine keep servers.

    With --model, check its tokens too: suffixes that do not depend on the history, calls that read back,
    control tokens that tools cannot forge, and what is done to its logits.

    Example: mcpagent doctor --servers mcp.json
    """
    try:
        from mcpagent.checks.doctor import doctor as check_all
        from mcpagent.core.records import CheckStatus
        from mcpagent.run.episodes import load_for_dataset
    except ModuleNotFoundError as error:
        # The one thing that the checks cannot report: without its base packages mcpagent has no checks.
        raise UserError(
            f"the package {error.name} is missing", remedy="python -m pip install --force-reinstall mcpagent"
        ) from error

    console = Console(is_json=as_json)
    config = load_for_dataset((), set_ or (), data=None, split=None, note=console.note, for_training=False)
    console.note("checking; servers are started and stopped")
    checks = check_all(servers=servers, model=model, tool_format=config.rollout.tool_format)
    console.print_blocks(checks, _checked(checks))
    if any(check.status is CheckStatus.FAIL for check in checks):
        raise typer.Exit(RunError.exit_code)


def _checked(checks: Sequence[CheckResult]) -> Iterator[Block]:
    for check in checks:
        yield from _one_check(check)
    counts = Counter(check.status.value for check in checks)
    yield ", ".join(f"{count} {status}" for status, count in counts.items())


def _one_check(result: CheckResult) -> Iterator[Block]:
    yield f"{result.status.value:<5} {result.name}: {result.detail}"
    if result.remedy is not None:
        yield f"      {result.remedy}"


_SHOWN = 20  # failing tasks listed on a terminal; --json has all


def check(
    data: Annotated[
        Path | None,
        typer.Option(
            help="Tasks: .jsonl or .json, also .gz and .zst; or a dataset's folder: the tasks of every split."
        ),
    ] = None,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="The isolation probe may call every tool.")
    ] = False,
    *,
    options: ConfigOptions,
    as_json: Json = False,
) -> None:
    """Check that the environment tells right from wrong and keeps episodes apart.

    Exits 1 if it does not. The gold plan must score 1.0 on every task, silence must fail every task but
    those for which no call is right, and a policy that always calls must fail those.

    Two instances of each server show whether one episode's calls affect another's. It calls only tools that
    need no path and that the server declares read-only, or additive and closed, with a text that can be
    found again; --allow-writes calls every tool.

    Without --data: the sample tasks that ship with mcpagent.

    Example: mcpagent env check --data data/processed/train.jsonl
    """
    from mcpagent.checks.environment import env_check

    console = Console(is_json=as_json)
    config = options.config(console, data=data, has_data=data is not None)
    outcome = env_check(
        config,
        data=data,
        allow_writes=allow_writes,
        console=console,
    )
    console.print_blocks(outcome, _verdicts(outcome))
    if not outcome.passed:
        raise typer.Exit(1)


def serve(
    data: Annotated[
        Path, typer.Option("--data", help="A dataset's folder: every split; or a file, as the split train.")
    ],
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The port; 0 is a free one.")] = 8000,
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="How many may be open at once.")] = 1100,
    idle: Annotated[
        float,
        typer.Option(
            "--idle",
            min=1.0,
            metavar="SECONDS",
            help="End a session that no request has come for in this time; its episode is lost.",
        ),
    ] = 900.0,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=out_file("trajectories.jsonl.zst"),
            help="Write each episode here as it ends: .jsonl.zst, .jsonl.gz or .jsonl; or a folder.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    files: ConfigFiles = None,
    settings: Settings = None,
) -> None:
    """Serve episodes of a dataset over HTTP, for other trainers; Ctrl-C ends it.

    It speaks the Open Reward Standard: tasks by split, an episode by session, its tools with schemas, calls,
    and in the end the reward with its terms. An address that other machines reach needs a token:
    MCPAGENT_SERVE_TOKEN, which clients send as a bearer token.

    Example: mcpagent env serve --data data/samples --port 8000
    """
    from mcpagent.bridges.host import open_host
    from mcpagent.bridges.ors import ServeLimits
    from mcpagent.bridges.serving import serve_until_interrupted
    from mcpagent.run.rollout import check_out
    from mcpagent.storage.trajectories import RECORDS_SUFFIXES, token_file

    console = Console()
    if out is not None:
        refuse_existing(out, token_file(out), overwrite=overwrite)
        check_out(out, *RECORDS_SUFFIXES)
    with open_host(data, config_files=files or (), overrides=settings or (), on_note=console.note) as opened:
        serve_until_interrupted(
            opened,
            address=host,
            port=port,
            limits=ServeLimits(sessions=sessions, idle_s=idle),
            out=out,
            say=console.say,
            note=console.note,
        )


def _verdicts(outcome: EnvCheckOutcome) -> Iterator[Block]:
    if outcome.source is not None:
        yield f"{counted(outcome.n_tasks, 'task')} from {outcome.source}"
    for result in outcome.checks:
        yield from _one_check(result)
    yield from _isolation(outcome.isolation)
    if outcome.failing:
        yield "failing tasks:"
    for task_id, names in list(outcome.failing.items())[:_SHOWN]:
        yield f"  {task_id}: {'; '.join(names)}"
    if len(outcome.failing) > _SHOWN:
        yield f"  and {len(outcome.failing) - _SHOWN} more (--json lists all)"


def _isolation(servers: Sequence[ServerIsolation]) -> Iterator[Block]:
    for server in servers:
        yield from _one_check(server.check)
        verdict = server.verdict
        if verdict is None:
            continue
        if verdict.writes:
            yield f"      the probe wrote {verdict.probe_text!r} with {', '.join(verdict.writes)}"
        if verdict.left:
            yield f"      and left {', '.join(verdict.left)}"
        tools_by_reason: dict[str, list[str]] = {}
        for tool, reason in verdict.not_tried.items():
            tools_by_reason.setdefault(reason, []).append(tool)
        for reason, tools in tools_by_reason.items():
            yield f"      not judged: {', '.join(tools)}: {reason}"


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
    """Prove that the sampler has the new weights: sample, swap an adapter, sample again, compare both with
    the trainer.

    Example: mcpagent smoke --backend hf
    """
    from mcpagent.policy.backend import require_vllm
    from mcpagent.storage.checkpoints import find_model

    if model is not None:
        find_model(model)
    if backend == "vllm":
        require_vllm()
    require("hf", use="smoke")
    from mcpagent.checks.smoke import smoke as run

    console = Console(is_json=as_json)
    result = run(backend=backend, model=model, console=console)
    console.print_blocks(result, _proofs(result))


def _proofs(result: SmokeResult) -> Iterator[Block]:
    proofs = [
        (
            name,
            f"{proof.difference:.1e} nats a token apart from the trainer, at most {proof.largest:.1e}, over "
            f"{proof.tokens} tokens ({proof.cpu_s:.3f} CPU s)",
        )
        for name, proof in (("parity", result.first), ("swapped", result.swapped))
    ]
    yield Facts(
        [
            ("backend", f"{result.backend} ({result.why})"),
            ("model", f"{result.model}, {result.dtype} on {result.device}"),
            ("versions", "  ".join(f"{name} {version}" for name, version in result.versions.items())),
            ("sampled", f"{result.sampled_tokens} tokens, {result.tokens_per_cpu_s:.0f} per CPU second"),
            *proofs,
            ("stale", "the old adapter was noticed, as it must be"),
        ]
    )


env_app = group_app("Check the environment, or serve its episodes.", {"check": check, "serve": serve})
