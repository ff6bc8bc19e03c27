"""`mcpagent certify`: a gain with its evidence, and the check that believes none of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpagent.cli.options import ConfigOptions, Data, Json, Overwrite, refuse_existing, with_options
from mcpagent.console import Console, counted
from mcpagent.errors import UserError

if TYPE_CHECKING:
    from mcpagent.run.certify import CertifyOutcome
    from mcpagent.run.certify_check import CheckOutcome

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@with_options
def certify(
    run: Annotated[
        Path | None, typer.Argument(help="A run folder, or a checkpoint of one.", show_default=False)
    ] = None,
    data: Data = None,
    samples: Annotated[int, typer.Option(min=1, help="Attempts at each held-out task, on each side.")] = 4,
    baseline: Annotated[
        str | None,
        typer.Option(help="The model to compare with. Default: the one that the run began with."),
    ] = None,
    control: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=RUN: a control experiment at the cost of the run; may be repeated. Those in "
            "RUN/controls are taken by themselves."
        ),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            "--check", help="A certificate: derive every figure again, and name what does not hold."
        ),
    ] = None,
    replay: Annotated[
        int, typer.Option(min=0, help="With --check: play so many episodes of each side again.")
    ] = 0,
    replay_seed: Annotated[
        int | None, typer.Option(help="With --replay: which episodes. Default: by chance.")
    ] = None,
    *,
    options: ConfigOptions,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder to write. Default: RUN/certificate.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Certify what a run gained, with the evidence for every figure; or check a certificate.

    Plays the model that the run began with and the trained one on the held-out tasks, with the same seeds,
    tools and limits, its controls, and attacks on the reward. The folder holds all episodes, the tools'
    answers and the weights, so that anybody can derive it again: exit code 1 where something does not hold.

    Example: mcpagent certify outputs/mine --out certificate
    """
    console = Console(is_json=as_json)
    from mcpagent.storage.packages import require

    require("hf", use="certificates")
    if check is not None:
        if run is not None:
            raise UserError("a run and --check were named", where="--check", remedy="name one of the two")
        from mcpagent.run.certify_check import check as check_folder

        outcome = check_folder(check, replay=replay, replay_seed=replay_seed, console=console)
        console.print_result(outcome, _print_check)
        if outcome.frauds:
            raise typer.Exit(1)
        return
    if run is None:
        raise UserError(
            "neither a run nor a certificate was named",
            where="certify",
            remedy="mcpagent certify RUN, or --check FOLDER",
        )
    if replay:
        raise UserError(
            "--replay is of --check", where="--replay", remedy="mcpagent certify --check FOLDER --replay 8"
        )
    from mcpagent.run.certify import certify as make

    out = _destination(run, out, overwrite=overwrite)
    options = replace(options, default_temperature=0.0 if samples == 1 else 1.0)
    made = make(
        run,
        options.config(console, policy=str(run), data=data),
        out=out,
        data=data,
        baseline=baseline,
        samples=samples,
        controls=_controls(control or []),
        console=console,
    )
    console.print_result(made, _print_made)


def _destination(run: Path, out: Path | None, *, overwrite: bool) -> Path:
    from mcpagent.storage.checkpoints import choose_checkpoint, run_of

    if out is None:
        of = run_of(choose_checkpoint(run).path)
        out = (of.path if of is not None else Path.cwd()) / "certificate"
    refuse_existing(out, overwrite=overwrite)
    return out


def _controls(named: list[str]) -> dict[str, Path]:
    controls: dict[str, Path] = {}
    for each in named:
        name, _, path = each.partition("=")
        if not name or not path:
            raise UserError(
                f"--control {each} is not NAME=RUN",
                where="--control",
                remedy='for example --control "random rewards=outputs/random"',
            )
        controls[name] = Path(path)
    return controls


def _print_made(outcome: CertifyOutcome, console: Console) -> None:
    gain, attacks = outcome.figures["gain"], outcome.figures["attacks"]
    difference = gain["difference"]
    if difference is not None and difference["value"] is not None and difference["ci_low"] is not None:
        console.say(
            f"gain      {difference['value'] * 100:+.1f} points of task success "
            f"[{difference['ci_low'] * 100:+.1f}, {difference['ci_high'] * 100:+.1f}] on "
            f"{counted(difference['n'], 'task')}: {gain['verdict']} (a is the baseline, b the trained model)"
        )
    if outcome.excluded:
        console.say(f"left out  {counted(outcome.excluded, 'held-out task')} that training has too")
    console.say(f"attacks   {attacks['succeeded']} of {attacks['episodes']} on these tasks were a success")
    if not outcome.has_weights:
        console.say("weights   too large for the folder: who checks it cannot play again")
    console.say(f"written   {outcome.folder}")
    console.say(f"next      mcpagent certify --check {outcome.folder} --replay 8")


def _print_check(outcome: CheckOutcome, console: Console) -> None:
    for fraud in outcome.frauds[:40]:
        where = f"{fraud.where}: " if fraud.where else ""
        console.say(f"{fraud.name}: {where}{fraud.detail}")
    if len(outcome.frauds) > 40:
        console.say(f"and {len(outcome.frauds) - 40} more")
    console.say(f"derived again: {', '.join(outcome.checked)}")
    if outcome.not_checked:
        console.say(f"not checked: {', '.join(outcome.not_checked)}")
    if outcome.frauds:
        names = sorted({fraud.name for fraud in outcome.frauds})
        console.say(f"the certificate does not hold: {', '.join(names)}")
        if outcome.other_version is not None:
            console.say(outcome.other_version)
    else:
        console.say("the certificate holds")
