"""`mcpagent eval`: evaluate, compare two evaluations, measure a judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpagent.cli.benchmark import benchmark
from mcpagent.cli.compare import calibration_rows, compare, note_gold
from mcpagent.cli.options import (
    BaseUrl,
    ConfigOptions,
    Data,
    Group,
    Json,
    Overwrite,
    Samples,
    Shard,
    Temperature,
    ToolFormat,
    out_file,
    refuse_existing,
    shard_of,
    with_options,
)
from mcpagent.console import METRIC_COLUMNS, Console, counted, metric_row
from mcpagent.core.records import JsonObject, Metric
from mcpagent.errors import UserError
from mcpagent.evaluate.breakdown import COUNTS, ERRORS, Breakdown
from mcpagent.evaluate.summary import RATE_METRICS, EvalResult, EvalSummary, success_of_all

if TYPE_CHECKING:
    from mcpagent.run.evaluate import EvalOutcome, RegradeOutcome
    from mcpagent.run.judge import JudgeCheckOutcome

app = typer.Typer(
    cls=Group,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Evaluate, and compare evaluations.",
)
app.command()(compare)
app.command()(benchmark)

_Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        callback=out_file("evaluation.json"),
        help="A .json file for the result, or a folder; the trajectories go beside it.",
    ),
]


_Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with an interrupted evaluation of the same --out.")
]
_RetryInfra = Annotated[
    bool,
    typer.Option("--retry-infra", help="Play again what of --out could not be scored, as servers failed."),
]


_Calibration = Annotated[
    bool,
    typer.Option(help="Also play the reference calls and silence, which asks no model: rows gold and empty."),
]


@app.command()
@with_options
def checkpoint(
    path: Annotated[
        Path,
        typer.Argument(
            help="A checkpoint folder, or a run folder: its best one; RUN@latest and RUN@STEP name others.",
            show_default=False,
        ),
    ],
    data: Data = None,
    samples: Samples = 1,
    temperature: Temperature = None,
    *,
    options: ConfigOptions,
    shard: Shard = None,
    out: _Out = None,
    overwrite: Overwrite = False,
    resume: _Resume = False,
    retry_infra: _RetryInfra = False,
    calibration: _Calibration = True,
    base: Annotated[
        bool,
        typer.Option("--base", help="Also play the untrained model where the run has not measured it."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Evaluate a checkpoint in Hugging Face or PEFT format.

    A checkpoint of a run is evaluated with that run's settings (servers, turns, tokens), unless --config
    names others. Without --data: the validation set of the configuration.

    Example: mcpagent eval checkpoint outputs/mine --data data/processed/heldout.jsonl --samples 4 --json
    """
    from mcpagent.storage.checkpoints import find_checkpoint

    find_checkpoint(path)  # a hub id is refused here: it names a model
    options = replace(options, temperature=temperature)
    goes_on = _Continuation(resume=resume, retry_infra=retry_infra)
    goes_on.check(out, overwrite=overwrite)
    beside = _Rows(calibration, base)
    of = shard_of(shard)
    _evaluate(
        str(path), options, goes_on, beside, data=data, samples=samples, shard=of, out=out, as_json=as_json
    )


@app.command()
@with_options
def model(
    name_or_path: Annotated[
        str, typer.Argument(help="A hub id, a model folder, or openai:NAME.", show_default=False)
    ],
    base_url: BaseUrl = None,
    data: Data = None,
    samples: Samples = 1,
    temperature: Temperature = None,
    tool_format: ToolFormat = None,
    *,
    options: ConfigOptions,
    shard: Shard = None,
    out: _Out = None,
    overwrite: Overwrite = False,
    resume: _Resume = False,
    retry_infra: _RetryInfra = False,
    calibration: _Calibration = True,
    as_json: Json = False,
) -> None:
    """Evaluate a model that no run of mcpagent made: the base model before training, or one behind an API.

    Example: mcpagent eval model Qwen/Qwen3-0.6B --data data/processed/heldout.jsonl --out base.json
    """
    options = replace(options, tool_format=tool_format, base_url=base_url, temperature=temperature)
    goes_on = _Continuation(resume=resume, retry_infra=retry_infra)
    goes_on.check(out, overwrite=overwrite)
    beside = _Rows(calibration)
    of = shard_of(shard)
    _evaluate(
        name_or_path, options, goes_on, beside, data=data, samples=samples, shard=of, out=out, as_json=as_json
    )


@app.command()
@with_options
def regrade(
    results: Annotated[
        Path, typer.Argument(help="A result of eval --out, or its trajectories.", show_default=False)
    ],
    data: Data = None,
    *,
    options: ConfigOptions,
    out: _Out = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Grade stored episodes anew, after a task's checks or the reward changed; nothing is played.

    Without --data: the tasks that the result was made with, as their file is now. --set reward.weights and
    reward.terms choose the reward; without them it is the documented one.

    Example: mcpagent eval regrade after.json --out again.json
    """
    from mcpagent.run.evaluate import check_evaluation_path
    from mcpagent.run.evaluate import regrade as grade_again

    console = Console(is_json=as_json)
    if out is not None:
        check_evaluation_path(out)
    _refuse_replacing(out, overwrite=overwrite)
    config = options.config(console, data=data, has_data=False)
    console.print_result(grade_again(results, config, data=data, out=out), _print_regraded)


def _print_regraded(outcome: RegradeOutcome, console: Console) -> None:
    print_metrics(outcome.result, console)
    console.say(f"changed   {counted(len(outcome.changed), 'episode')} of {outcome.result.n_episodes}")
    for name in outcome.changed[:5]:
        console.say(f"          {name}")
    if outcome.path is not None:
        console.say(f"written   {outcome.path}")


@app.command("judge-check")
@with_options
def judge_check(
    data: Data = None,
    episodes: Annotated[
        Path | None,
        typer.Option(help="Stored episodes of these tasks, instead of gold plans played now."),
    ] = None,
    *,
    options: ConfigOptions,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=out_file("judge-check.json"),
            help="A .json file for the record that training asks for (judge.check), or a folder.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Measure a judge against the rule on your own tasks: agreement, kappa, and what changes its mind.

    The judge is asked about the gold episode of each task and one with something wrong in it; again with the
    question worded and ordered otherwise, with a longer answer, and with an order to the judge in a tool's
    answer. Exit code 1 where kappa is below judge.min_kappa.

    Example: mcpagent eval judge-check --data train.jsonl --set judge.model=gpt-5-mini --out judge-check.json
    """
    from mcpagent.run.evaluate import check_evaluation_path
    from mcpagent.run.judge import measure_judge

    console = Console(is_json=as_json)
    if out is not None:
        check_evaluation_path(out)
        refuse_existing(out, overwrite=overwrite)
    config = options.config(console, data=data)
    outcome = measure_judge(config, data=data, episodes=episodes, out=out, console=console)
    console.print_result(outcome, _print_judge_check)
    if not outcome.is_good_enough:
        raise typer.Exit(1)


def _print_judge_check(outcome: JudgeCheckOutcome, console: Console) -> None:
    check = outcome.check
    bias = check.length_bias.difference
    rows = [
        metric_row("agreement with the rule", check.agreement, is_rate=True),
        *(metric_row(f"  {kind}", metric, is_rate=True) for kind, metric in check.by_kind.items()),
        metric_row("Cohen's kappa", check.kappa, is_rate=False),
        metric_row("error of single votes", check.vote_error, is_rate=True),
        metric_row("wrong approved", check.false_approvals, is_rate=True),
        metric_row("right refused", check.false_refusals, is_rate=True),
        *(metric_row(f"changed by {name}", metric, is_rate=True) for name, metric in check.flips.items()),
        metric_row("approved more when longer", bias, is_rate=True, signed=True),
    ]
    model, count = check.judge["model"], counted(check.n_episodes, "episode")
    console.table(f"{model}: {count} of {counted(check.n_tasks, 'task')}", METRIC_COLUMNS, rows)
    if check.unscored:
        faults = ", ".join(f"{name} ({n})" for name, n in check.faults.items())
        console.say(f"unscored  {check.unscored}: {faults}")
    cost = check.spend["cost_usd"]
    spent = "" if cost is None else f", ${cost:.4f}"
    console.say(f"asked     {counted(check.spend['requests'], 'request')}{spent}")
    verdict = "training takes this judge" if outcome.is_good_enough else "training refuses this judge"
    console.say(f"kappa     judge.min_kappa is {outcome.min_kappa:g}: {verdict}")
    if outcome.path is not None:
        console.say(f"written   {outcome.path}")
        console.say(f"next      mcpagent train --set judge.check={outcome.path}")


@app.command()
def merge(
    parts: Annotated[
        list[Path],
        typer.Argument(
            metavar="PARTS", help="Trajectories that rollout or eval --shard I/N wrote.", show_default=False
        ),
    ],
    data: Annotated[Path, typer.Option(help="The dataset that the shards are of.", show_default=False)],
    out: Annotated[
        Path,
        typer.Option(
            callback=out_file("trajectories.jsonl.zst"),
            help="File for the trajectories of all shards.",
            show_default=False,
        ),
    ],
    samples: Samples = 1,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Join the shards of a rollout or an evaluation; a lost or doubled episode is refused.

    Example: mcpagent eval merge a.jsonl b.jsonl --data data/samples/train.jsonl --out all.jsonl
    """
    from mcpagent.run.rollout import merge_shards
    from mcpagent.storage.trajectories import token_file

    console = Console(is_json=as_json)
    refuse_existing(out, token_file(out), overwrite=overwrite)
    summary = merge_shards(parts, out, data=data, samples=samples)
    if as_json:
        console.print_json({"path": str(out), **summary.model_dump(mode="json", exclude={"tasks"})})
        return
    print_metrics(summary, console)
    console.say(f"written   {out}")


def _refuse_replacing(out: Path | None, *, overwrite: bool) -> None:
    """Neither the result nor what is written beside it."""
    from mcpagent.storage.trajectories import token_file

    if out is not None:
        records = out.with_suffix(".jsonl.zst")
        refuse_existing(out, records, token_file(records), overwrite=overwrite)


@dataclass(frozen=True, kw_only=True)
class _Continuation:
    """Which evaluation of the same `--out` is gone on with, if any."""

    resume: bool
    retry_infra: bool

    def check(self, out: Path | None, *, overwrite: bool) -> None:
        """Refuse to replace a result, or what an interrupted evaluation left, unless that was asked for."""
        if out is None or self.resume or self.retry_infra:
            return
        partial = out.with_suffix(".partial.jsonl")
        if partial.exists() and not overwrite:
            raise UserError(
                "an interrupted evaluation is there",
                where=str(partial),
                remedy="go on with it with --resume, or begin anew with --overwrite",
            )
        _refuse_replacing(out, overwrite=overwrite)


@dataclass(frozen=True)
class _Rows:
    """Which calibration rows stand beside an evaluation."""

    calibration: bool
    base: bool = False


def _evaluate(
    name: str,
    options: ConfigOptions,
    goes_on: _Continuation,
    beside: _Rows,
    *,
    data: Path | None,
    samples: int,
    shard: tuple[int, int],
    out: Path | None,
    as_json: bool,
) -> None:
    from mcpagent.run.evaluate import evaluate_model, resumable
    from mcpagent.storage.locks import locked_file

    console = Console(is_json=as_json)
    options = replace(options, default_temperature=0.0 if samples == 1 else 1.0)
    config = options.config(console, policy=name, data=data)
    with resumable(out), locked_file(out) if out is not None else nullcontext():
        outcome = evaluate_model(
            config,
            model=name,
            data=data,
            samples=samples,
            out=out,
            shard=shard,
            resume=goes_on.resume,
            retry_infra=goes_on.retry_infra,
            calibrate=beside.calibration,
            base=beside.base,
            console=console,
        )
    if as_json:
        console.print_json(outcome.result)
    else:
        _print(outcome, console)
    if outcome.failure is not None:
        console.note(f"no episode could be scored; the first error: {outcome.failure}")
        raise typer.Exit(1)


def _print(outcome: EvalOutcome, console: Console) -> None:
    print_metrics(outcome.result, console)
    note_gold(outcome.result, console)
    if outcome.result.breakdown is not None:
        _print_breakdown(outcome.result.breakdown, console)
    reasons = outcome.result.stop_reasons.items()
    console.say("ended by  " + ", ".join(f"{name} {n}" for name, n in reasons))
    if outcome.result.cassette is not None:
        print_cassette(outcome.result.cassette, console)
    if outcome.in_run is not None:
        console.say(f"kept      {outcome.in_run}")
    if outcome.path is not None:
        console.say(f"written   {outcome.path} and {outcome.trajectories}")
        console.say(f"next      mcpagent eval compare {outcome.path} OTHER.json")


def _print_breakdown(breakdown: Breakdown, console: Console) -> None:
    rows = [
        metric_row(_words(name), metric, is_rate=name not in COUNTS)
        for name, metric in breakdown.measures.items()
        if metric.value is not None
    ]
    for name, parts in breakdown.slices.items():
        if len(parts) > 1:
            rows.append((f"task success by {name}", "", "", ""))
            rows += [metric_row(f"  {part}", s.task_success, is_rate=True) for part, s in parts.items()]
    console.table("In detail", METRIC_COLUMNS, rows)
    times = breakdown.episode_latency
    if times.p50_s is not None and times.p95_s is not None:
        console.say(f"episode   {times.p50_s:.2f} s (median), {times.p95_s:.2f} s (95th percentile)")
    for kind, error in breakdown.errors.items():
        console.say(f"failed    {error.episodes} {_words(kind)}: {ERRORS[kind]} ({error.example})")


_BY_COMPLEXITY = (
    "task_success_all",
    "task_success",
    "tool_sequence_accuracy",
    "mean_reward",
    "invalid_call_rate",
    "mean_turns",
)
_NAMES = {"task_success_all": "task success", "task_success": "task success, scored only"}


def print_metrics(summary: EvalSummary, console: Console) -> None:
    """Every metric with its interval over all tasks, the main ones by complexity too; one line each, so that
    it fits a narrow terminal."""
    rows: list[Sequence[str]] = []
    whole = {**summary.metrics, "task_success_all": success_of_all(summary)}
    for name in _BY_COMPLEXITY:
        rows.append(metric_row(_words(name), whole[name], is_rate=_is_rate(name)))
        if len(summary.by_complexity) > 1:
            parts: Mapping[str, Metric] = {
                complexity: success_of_all(summary, complexity=complexity)
                if name == "task_success_all"
                else getattr(part, name)
                for complexity, part in summary.by_complexity.items()
            }
            rows += [metric_row(f"  {c}", part, is_rate=_is_rate(name)) for c, part in parts.items()]
        if name == "task_success_all" and isinstance(summary, EvalResult):
            rows += calibration_rows(summary)
    rows += [
        metric_row(_words(name), metric, is_rate=_is_rate(name))
        for name, metric in summary.metrics.items()
        if name not in _BY_COMPLEXITY and metric.value is not None
    ]
    console.table(
        f"{counted(summary.n_episodes, 'episode')} of {counted(summary.n_tasks, 'task')}",
        METRIC_COLUMNS,
        rows,
    )
    if summary.unscored:
        console.say(
            f"{summary.unscored} of {summary.n_episodes} episodes are unscored (infrastructure failed): the "
            "first line counts them as failed, no other has them"
        )


def print_cassette(counts: JsonObject, console: Console) -> None:
    """One line on what a cassette did (`Cassette.take_counts`)."""
    parts = [f"{counts[name]} {name}" for name in ("replayed", "live", "recorded")]
    parts += [f"{counts[name]} {name}" for name in ("restored", "refused", "volatile") if counts[name]]
    parts += [f"{count} missed ({reason.replace('_', ' ')})" for reason, count in counts["misses"].items()]
    console.say(f"cassette  {counts['mode']}: {', '.join(parts)}")


def _is_rate(name: str) -> bool:
    return name in RATE_METRICS or name.startswith("pass")


def _words(name: str) -> str:
    return _NAMES.get(name, name.replace("_", " "))
