"""`mcpagent certify`: a gain with its evidence, and the check that believes none of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpagent.cli.options import (
    ConfigOptions,
    Data,
    Json,
    Overwrite,
    refuse_existing,
)
from mcpagent.cli.results import comparison_blocks
from mcpagent.console import Block, Console, Facts, counted
from mcpagent.errors import UserError
from mcpagent.evaluate.compare import Comparison
from mcpagent.storage.packages import require

if TYPE_CHECKING:
    from mcpagent.evaluate.certificate import Certificate

_SHOWN = 40  # frauds


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
    check: Annotated[
        Path | None,
        typer.Option("--check", help="A certificate: derive it again, and name what does not hold."),
    ] = None,
    replay: Annotated[
        int, typer.Option(min=0, help="With --check: play this many episodes of each side again.")
    ] = 0,
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
    tools and limits; then attacks the reward. The folder holds all episodes, the tools' answers and the
    weights, so that anyone can derive it again: exit code 1 if something does not hold.

    Example: mcpagent certify outputs/mine --out certificate

    Example: mcpagent certify --check certificate --replay 8
    """
    require("hf", use="certificates")
    console = Console(is_json=as_json)
    if (run is None) == (check is None) or (replay and check is None):
        raise UserError(
            "takes either a run, or --check with a certificate (and --replay)",
            where="certify --replay" if replay else "certify",
            remedy="mcpagent certify RUN, or mcpagent certify --check FOLDER --replay 8",
        )
    if check is not None:
        raise typer.Exit(_check(check, replay=replay, console=console))
    from mcpagent.run.certify import certify as make
    from mcpagent.storage.checkpoints import choose_checkpoint, run_of

    assert run is not None
    if out is None:
        of = run_of(choose_checkpoint(run).path)
        out = (Path.cwd() if of is None else of.path) / "certificate"
    refuse_existing(out, overwrite=overwrite)
    temperature = 0.0 if samples == 1 else 1.0
    certificate = make(
        run,
        options.config(console, policy=str(run), data=data, default_temperature=temperature),
        out=out,
        data=data,
        baseline=baseline,
        samples=samples,
        console=console,
    )
    written = Facts([("written", str(out)), ("next", f"mcpagent certify --check {out} --replay 8")])
    console.print_blocks(
        {"folder": str(out), "figures": certificate.figures}, [*_figures(certificate), written]
    )


def _check(folder: Path, *, replay: int, console: Console) -> int:
    """Print what does not hold in a certificate, and return the exit code."""
    from mcpagent.evaluate.certificate import read_certificate
    from mcpagent.run.certify_check import check

    certificate, frauds = read_certificate(folder), check(folder, replay=replay, console=console)
    blocks: list[Block] = [f"{fraud.name}: {fraud.detail}" for fraud in frauds[:_SHOWN]]
    if len(frauds) > _SHOWN:
        blocks.append(f"and {len(frauds) - _SHOWN} more")
    if not replay:
        blocks.append("nothing was played again: --replay N does")
    if frauds:
        of, git = (certificate.code.get(name) or {} for name in ("versions", "git"))
        made = f"made by mcpagent {of.get('mcpagent')} of commit {git.get('commit')}"
        blocks.append(f"{made}: check it with that version before you call it forged")
        blocks.append("the certificate does not hold")
    else:
        blocks += [*_figures(certificate), "the certificate holds"]
    document = {"holds": not frauds, "figures": certificate.figures, "frauds": frauds, "replayed": replay}
    console.print_blocks(document, blocks)
    return 1 if frauds else 0


def _figures(certificate: Certificate) -> Iterator[Block]:
    figures = certificate.figures
    tasks, attacks = figures["tasks"], figures["attacks"]
    yield from comparison_blocks(Comparison.model_validate(figures["gain"]), "baseline", "trained")
    excluded = f"{counted(tasks['excluded'], 'task')} that training has too" if tasks["excluded"] else None
    paid = f"{attacks['succeeded']} of {attacks['episodes']} on these tasks were a success"
    yield Facts([("left out", excluded), ("attacks", paid)])
    if certificate.run["baseline_is_the_runs"] is False:
        yield "the baseline is another model than the run began with"
