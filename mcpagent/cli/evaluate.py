"""`mcpagent eval`: evaluate, compare two evaluations, grade again, measure a judge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpagent.cli.options import (
    Checkpoint,
    ConfigOptions,
    Data,
    Json,
    Overwrite,
    Samples,
    Shard,
    Shots,
    Temperature,
    group_app,
    out_file,
    refuse_existing,
    shard_of,
)
from mcpagent.cli.results import (
    breakdown_blocks,
    cassette_fact,
    comparison_blocks,
    ended_by,
    judge_blocks,
    metrics_blocks,
)
from mcpagent.console import Block, Console, Facts, counted
from mcpagent.storage.checkpoints import choose_checkpoint
from mcpagent.storage.locks import locked_file
from mcpagent.storage.trajectories import token_file

if TYPE_CHECKING:
    from mcpagent.run.evaluate import EvalOutcome


_Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        callback=out_file("evaluation.json"),
        help="A .json file for the result, or a folder; the trajectories go next to it.",
    ),
]


def compare(
    a: Annotated[Path, typer.Argument(help="A result of eval --out, or trajectories.", show_default=False)],
    b: Annotated[Path, typer.Argument(help="What it is compared with.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Compare two evaluations task by task: whether B is better than A, or it is chance.

    Example: mcpagent eval compare before.json after.json
    """
    from mcpagent.run.evaluate import compare_files

    console = Console(is_json=as_json)
    result = compare_files(a, b, console=console)
    console.print_blocks(result, comparison_blocks(result, str(a), str(b)))


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """The options that evaluations of checkpoints and models share."""

    data: Data = None
    samples: Samples = 1
    temperature: Temperature = None
    shots: Shots = 0
    shard: Shard = None
    out: _Out = None
    overwrite: Overwrite = False
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the evaluation in --out, interrupted or finished: play what is missing, and "
            "what could not be scored because servers failed.",
        ),
    ] = False
    as_json: Json = False


def checkpoint(
    path: Checkpoint,
    *,
    options: ConfigOptions,
    evaluation: EvalOptions,
) -> None:
    """Evaluate a checkpoint in Hugging Face or PEFT format.

    A checkpoint of a run is evaluated with that run's settings (servers, turns, tokens), unless --config
    names others. Without --data: the validation set of the configuration. Three numbers tell how it answers:
    answer form rate (was it in the form asked for?), task success (strict: the reward's), and success in any
    form, an upper bound that a list of guesses would pass.

    Example: mcpagent eval checkpoint outputs/mine --data data/processed/heldout.jsonl --samples 4 --json
    """
    choose_checkpoint(path)  # a hub id is refused here: it names a model
    _evaluate(str(path), options, evaluation)


def model(
    name_or_path: Annotated[
        str, typer.Argument(help="A hub id, a model folder, or openai:NAME.", show_default=False)
    ],
    *,
    options: ConfigOptions,
    evaluation: EvalOptions,
) -> None:
    """Evaluate a model that no run of mcpagent made: the base model before training, or one behind an API
    (--set api.base_url=URL).

    An untrained model loses by form what it may know. Success in any form takes the right value anywhere in
    the last message: an upper bound, which a list of guesses would pass, too. --shots 2 shows it the form.

    Example: mcpagent eval model Qwen/Qwen3-0.6B --data data/processed/heldout.jsonl --out base.json
    """
    _evaluate(name_or_path, options, evaluation)


def _evaluate(name: str, options: ConfigOptions, evaluation: EvalOptions) -> None:
    from mcpagent.run.evaluate import evaluate_model, partial_file

    console, out = Console(is_json=evaluation.as_json), evaluation.out
    if out is not None and not evaluation.resume:
        remedy = "add --overwrite, name another place, or go on with an interrupted one with --resume"
        refuse_existing(partial_file(out), *_files(out), overwrite=evaluation.overwrite, remedy=remedy)
    shard = shard_of(evaluation.shard)
    config = options.config(
        console,
        policy=name,
        data=evaluation.data,
        temperature=evaluation.temperature,
        default_temperature=0.0 if evaluation.samples == 1 else 1.0,
    )
    with locked_file(out) if out is not None else nullcontext():
        outcome = evaluate_model(
            config,
            model=name,
            data=evaluation.data,
            samples=evaluation.samples,
            shots=evaluation.shots,
            out=out,
            shard=shard,
            resume=evaluation.resume,
            console=console,
        )
    console.print_blocks(outcome, _evaluated(outcome))
    if outcome.failure is not None:
        console.note(f"no episode could be scored; the first error: {outcome.failure}")
        raise typer.Exit(1)


def _files(out: Path) -> list[Path]:
    """Return the files of a result: itself, its episodes and their tokens."""
    records = out.with_suffix(".jsonl.zst")
    return [out, records, token_file(records)]


def _evaluated(outcome: EvalOutcome) -> Iterator[Block]:
    result, path, changed = outcome.result, outcome.path, outcome.changed
    yield from metrics_blocks(result)
    if result.breakdown is not None:
        yield from breakdown_blocks(result.breakdown)
    of = None if changed is None else f"{counted(len(changed), 'episode')} of {result.n_episodes}"
    yield Facts(
        [
            ended_by(result),
            cassette_fact(result.cassette),
            ("changed", of),
            *(("", name) for name in (changed or ())[:5]),
            ("kept", None if outcome.in_run is None else str(outcome.in_run)),
            ("written", None if path is None else f"{path} and {outcome.trajectories}"),
            ("next", None if path is None else f"mcpagent eval compare {path} OTHER.json"),
        ]
    )


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
    from mcpagent.run.evaluate import regrade as grade_again

    console = Console(is_json=as_json)
    if out is not None:
        refuse_existing(*_files(out), overwrite=overwrite)
    config = options.config(console, data=data, has_data=False)
    outcome = grade_again(results, config, data=data, out=out)
    console.print_blocks(outcome, _evaluated(outcome))


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
    """Measure a judge against the rule on your own tasks: agreement, and Cohen's kappa.

    The judge is asked about the gold episode of each task and one with something wrong in it. Exit code 1 if
    kappa is below judge.min_kappa.

    Example: mcpagent eval judge-check --data train.jsonl --set judge.model=gpt-5-mini --out judge-check.json
    """
    from mcpagent.run.judge_check import measure_judge

    console = Console(is_json=as_json)
    if out is not None:
        refuse_existing(out, overwrite=overwrite)
    config = options.config(console, data=data)
    check = measure_judge(config, data=data, episodes=episodes, out=out, console=console)
    least = config.judge.min_kappa
    is_good_enough = check.is_good_enough(least)
    verdict = {"min_kappa": least, "good_enough": is_good_enough, "path": None if out is None else str(out)}
    document = {**check.model_dump(mode="json"), **verdict}
    console.print_blocks(document, judge_blocks(check, min_kappa=least, path=out))
    if not is_good_enough:
        raise typer.Exit(1)


app = group_app(
    "Evaluate, and compare evaluations.",
    {
        "compare": compare,
        "checkpoint": checkpoint,
        "model": model,
        "regrade": regrade,
        "judge-check": judge_check,
    },
)
