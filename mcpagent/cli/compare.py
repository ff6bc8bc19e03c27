"""`mcpagent eval compare`: two evaluations task by task, stored ones or two models played side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpagent.cli.options import (
    BaseUrl,
    ConfigOptions,
    Json,
    Overwrite,
    Samples,
    Temperature,
    config_of_run,
    task_file,
    with_options,
)
from mcpagent.console import METRIC_COLUMNS, Console, counted, metric_row
from mcpagent.errors import UserError
from mcpagent.evaluate.compare import POINTS, Comparison
from mcpagent.evaluate.intervals import FEWEST_TASKS
from mcpagent.evaluate.summary import CALIBRATION, EvalResult

if TYPE_CHECKING:
    from mcpagent.config.schema import TrainConfig
    from mcpagent.run.compare import PlayedComparison

# What both must be played alike in.
_LIMITS = {
    "rollout.max_new_tokens": "the limit of tokens a turn",
    "rollout.max_steps_per_episode": "the limit of turns",
    "tools": "the settings of tools",
    "reward": "the reward",
}
_SLICE_COLUMNS = ("", "b - a", "95 % interval", "tasks", "p")


@with_options
def compare(
    a: Annotated[
        str,
        typer.Argument(
            help="A result of eval --out, or trajectories; with --on a model.", show_default=False
        ),
    ],
    b: Annotated[str, typer.Argument(help="What it is compared with.", show_default=False)],
    on: Annotated[
        Path | None,
        typer.Option(
            "--on",
            callback=task_file,
            help="Tasks to play both on. A and B are then models: a checkpoint or run folder, a hub id, "
            "openai:NAME, gold or empty.",
        ),
    ] = None,
    samples: Samples = 1,
    temperature: Temperature = None,
    points: Annotated[
        float,
        typer.Option(min=0.1, max=100.0, help="Say how many tasks decide a difference of so many points."),
    ] = 100 * POINTS,
    base_url: BaseUrl = None,
    *,
    options: ConfigOptions,
    out: Annotated[
        Path | None, typer.Option(help="With --on: a folder for both results, episodes and the cassette.")
    ] = None,
    overwrite: Overwrite = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted comparison of the same --out.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare two evaluations task by task: whether B is better than A, or it is chance.

    With --on TASKS both are models, and are played now: with the same seeds and limits, and on one cassette,
    so that a call that both make has one answer. The settings are those of the run of A, else of B, unless
    --config names others.

    Example: mcpagent eval compare before.json after.json

    Example: mcpagent eval compare outputs/warm RUN --on data/mine --out both
    """
    console = Console(is_json=as_json)
    if on is None:
        given: dict[str, object] = {"--out": out, "--resume": resume, "--overwrite": overwrite}
        given |= {"--samples": samples > 1, "--temperature": temperature is not None, "--base-url": base_url}
        given |= {"--servers": options.servers, "--cassette": options.cassette, "--set": options.settings}
        given |= {"--cassette-mode": options.cassette_mode, "--max-tasks": options.max_tasks}
        given |= {"--seed": options.seed is not None, "--config": options.files}
        _compare_files(Path(a), Path(b), points / 100, [name for name in given if given[name]], console)
        return
    from mcpagent.run.compare import play_both

    options = replace(options, base_url=base_url, temperature=temperature)
    options = replace(options, default_temperature=0.0 if samples == 1 else 1.0)
    outcome = play_both(
        (a, b),
        _settings(options, a, b, on, console),
        data=on,
        samples=samples,
        points=points / 100,
        out=out,
        resume=resume,
        overwrite=overwrite,
        console=console,
    )
    console.print_result(outcome, _print_played)


def _compare_files(a: Path, b: Path, points: float, options: Sequence[str], console: Console) -> None:
    from mcpagent.run.evaluate import compare_files

    for path in (a, b):
        if path.is_dir():
            raise UserError(
                "is a folder, and two results are files",
                where=str(path),
                remedy=f"name its .json file; or play both models: mcpagent eval compare {a} {b} --on TASKS",
            )
    if options:
        raise UserError(
            "is for models that are played, and these are stored results",
            where=options[0],
            remedy="leave it out, or name the tasks to play: --on TASKS",
        )
    result = compare_files(a, b, points=points, console=console)
    if console.is_json:
        console.print_json(result)
    else:
        _print_comparison(result, (str(a), str(b)), console)


def _settings(
    options: ConfigOptions, a: str, b: str, on: Path, console: Console
) -> tuple[TrainConfig, TrainConfig]:
    """What each model is played with: the limits, the tools and the reward of one configuration, and of the
    model's own what belongs to the model."""
    runs = [None if options.files else config_of_run(model) for model in (a, b)]
    of_a = options.config(console, policy=a, data=on)
    of_b = of_a if runs == [None, None] else options.config(console, policy=b, data=on)
    lender, name = (of_b, b) if runs[0] is None and runs[1] is not None else (of_a, a)
    differing = [words for key, words in _LIMITS.items() if _at(of_a, key) != _at(of_b, key)]
    if None not in runs and differing:
        console.note(
            f"{' and '.join(differing)} differ between the two runs: both play as {name} was trained"
        )
    return _played_as(lender, of_a), _played_as(lender, of_b)


def _played_as(common: TrainConfig, of_model: TrainConfig) -> TrainConfig:
    rollout = common.rollout.model_copy(update={"tool_format": of_model.rollout.tool_format})
    return common.model_copy(
        update={"model": of_model.model, "finetune": of_model.finetune, "rollout": rollout}
    )


def _at(config: TrainConfig, key: str) -> object:
    section, _, name = key.partition(".")
    value = getattr(config, section)
    return getattr(value, name) if name else value


def _print_played(outcome: PlayedComparison, console: Console) -> None:
    _print_comparison(outcome.comparison, outcome.models, console, beside=outcome.results[0])
    note_gold(outcome.results[0], console)
    if outcome.folder is not None:
        console.say(f"written   {outcome.folder}: comparison.json, and both results with their episodes")
    else:
        console.note("nothing of this is kept; --out FOLDER keeps both results and the cassette")


def _print_comparison(
    result: Comparison, names: tuple[str, str], console: Console, *, beside: EvalResult | None = None
) -> None:
    rows = [
        metric_row(f"a  {names[0]}", result.a_all, is_rate=True),
        metric_row("   scored only", result.a, is_rate=True),
        metric_row(f"b  {names[1]}", result.b_all, is_rate=True),
        metric_row("   scored only", result.b, is_rate=True),
        metric_row("b - a", result.difference_all, is_rate=True, signed=True),
        metric_row("   scored only", result.difference, is_rate=True, signed=True),
        *(() if beside is None else calibration_rows(beside)),
    ]
    console.table("Task success, unscored counted as failed", METRIC_COLUMNS, rows)
    _print_slices(result, console)
    counts = (("a", result.a_count), ("b", result.b_count))
    console.say(
        "unscored  " + ", ".join(f"{name} {n.unscored} of {n.episodes} episodes" for name, n in counts)
    )
    if result.why_no_verdict is not None:
        console.say(f"no verdict: {result.why_no_verdict}; evaluate again where the servers hold")
    else:
        p_value = "" if result.p_value is None else f" (p = {result.p_value:.3g})"
        console.say(f"{result.verdict}{p_value}")
    console.say(
        f"b wins {counted(result.wins, 'task')}, loses {result.losses}, ties {result.ties}; "
        f"{counted(result.unpaired, 'task')} in one of the two only"
    )
    _print_needed(result, console)


def _print_slices(result: Comparison, console: Console) -> None:
    rows: list[Sequence[str]] = []
    for name, parts in result.slices.items():
        rows.append((f"by {name}", "", "", "", ""))
        for part, one in parts.items():
            cells = metric_row(f"  {part}", one.difference, is_rate=True, signed=True)
            p_value = "-" if one.adjusted_p is None else f"{one.adjusted_p:.3f}{' *' if one.differs else ''}"
            rows.append((*cells, p_value))
    if not rows:
        return
    console.table("Where they differ, scored only", _SLICE_COLUMNS, rows)
    count = sum(len(parts) for parts in result.slices.values())
    differing = sum(one.differs for parts in result.slices.values() for one in parts.values())
    console.say(
        f"slices    {differing} of {count} differ (*); p values are corrected for their number (Holm), "
        f"intervals are not; a part of fewer than {FEWEST_TASKS} tasks is not tested"
    )


def _print_needed(result: Comparison, console: Console) -> None:
    needed = result.needed
    if needed is None or result.difference.value is None:
        return
    parts: list[str] = []
    if needed.for_seen is not None:
        seen = 100 * abs(result.difference.value)
        parts.append(f"{needed.for_seen} for the difference seen ({seen:.1f} points)")
    parts.append(f"{needed.for_points} for one of {100 * needed.points:g} points")
    console.say(f"needed    tasks to find a difference in 4 of 5 comparisons: {', '.join(parts)}")
    if needed.smallest is not None:
        console.say(
            f"          these {counted(result.difference.n, 'task')} find one of "
            f"{100 * needed.smallest:.1f} points"
        )


def calibration_rows(result: EvalResult) -> list[Sequence[str]]:
    """The rows that an evaluation is read against, for the table of `METRIC_COLUMNS`."""
    return [
        metric_row(f"{name}: {CALIBRATION.get(name, 'another policy')}", row.task_success, is_rate=True)
        for name, row in result.calibration.items()
    ]


def note_gold(result: EvalResult, console: Console) -> None:
    """Say that tasks or servers are wrong where their reference calls do not succeed."""
    from mcpagent.run.calibration import gold_fault

    if (fault := gold_fault(result.calibration)) is not None:
        console.say(f"gold      {fault}")
